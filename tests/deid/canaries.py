"""Canaries: marks planted in every element of every R4 type, and the search for them in outputs."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from abaton.fhir.elements import ElementDefinition, element_table, is_primitive, resource_types

_MARK = re.compile(r"(?i)c4n4ry\d{6}|1[0-9]{3}-0[1-9]-1[1-9]|t13:37:|13:37:")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")


class Cage:
    """Generator of distinct canaries."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def word(self) -> str:
        """Return a canary as a word."""
        return f"C4n4ry{next(self._count):06d}"

    def value(self, type_name: str, form: int = 0) -> Any:
        """Return a canary as a primitive FHIR type; ``form`` selects a variant."""
        word = self.word()
        number = int(word[-6:])
        match type_name:
            case "boolean":
                return True
            case "integer" | "positiveInt" | "unsignedInt":
                return 3
            case "decimal":
                return 1.5
            case "base64Binary":
                return base64.b64encode(f"secret {word} secret".encode()).decode()
            case "date" | "dateTime" | "instant":
                day = f"{1000 + number % 900}-0{1 + number % 9}-{11 + number % 9}"
                return day if type_name == "date" else f"{day}T13:37:42.123+02:00"
            case "time":
                return "13:37:42"
            case "uri" | "url" | "canonical":
                variants = (
                    f"https://{word}.example/fhir/{word}?name={word}",
                    f"urn:oid:1.2.{word}",
                    f"http://hl7.org/fhir/{word}",
                )
                return variants[form % 3]
            case "oid":
                return f"urn:oid:1.2.{word}"
            case "uuid":
                return f"urn:uuid:{word}"
            case "xhtml":
                return f'<div xmlns="http://www.w3.org/1999/xhtml">{word} {quote("ö" + word)}</div>'
            case _:
                return (
                    (word, f"Mr {word} of {word}", quote(f"name={word}&x"))[form % 3]
                    if type_name == "string"
                    else word
                )


def plant(type_name: str, cage: Cage, depth: int = 0, form: int = 0) -> dict[str, Any]:
    """Return an instance of a type with a canary in every element."""
    fields = element_table()[type_name]
    resource: dict[str, Any] = {"resourceType": type_name} if type_name in resource_types() else {}
    taken: set[str] = set()
    options = list(fields.values())
    if form:
        options = options[form % len(options) :] + options[: form % len(options)]
    for element in options:
        if element.name == "modifierExtension" or (element.is_choice and element.stem in taken):
            continue
        value = _element(element, cage, depth, form)
        if value is None:
            continue
        taken.add(element.stem)
        resource[element.name] = [value, value] if element.is_list else value
        if is_primitive(element.type) and element.name != "id" and depth < 2:
            primitive_extension = {"id": cage.word(), "extension": [_extension(cage, 0)]}
            resource[f"_{element.name}"] = (
                [primitive_extension, None] if element.is_list else primitive_extension
            )
    resource[cage.word()] = cage.word()
    return resource


def _element(element: ElementDefinition, cage: Cage, depth: int, form: int) -> Any:
    if is_primitive(element.type):
        return cage.value(element.type, form)
    if element.type in ("Resource", "DomainResource"):
        return plant("Patient", cage, 3, form) if depth < 2 else None
    if element.type == "Extension":
        return _extension(cage, depth)
    return plant(element.type, cage, depth + 1, form) if depth < 5 else None


def _extension(cage: Cage, depth: int) -> dict[str, Any]:
    inner = {"url": cage.word(), "valueString": cage.word(), "valueHumanName": {"family": cage.word()}}
    absent = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"
    return {
        "url": (f"https://{cage.word()}.example/x", absent)[depth % 2],
        "valueCode": cage.word(),
        "extension": [inner, {"url": absent, "valueCode": cage.word(), "id": cage.word()}],
    }


def infect(node: Any, cage: Cage, key: str = "") -> Any:
    """Return a real resource with a canary in place of every text, in the same form where possible."""
    if isinstance(node, dict):
        return {k: v if k == "resourceType" else infect(v, cage, k) for k, v in node.items()}
    if isinstance(node, list):
        return [infect(resource, cage, key) for resource in node]
    if not isinstance(node, str):
        return node
    word = cage.word()
    if re.fullmatch(r"\d{4}(-\d\d){0,2}(T.*)?", node):
        return cage.value("dateTime") if "T" in node else cage.value("date")
    if re.fullmatch(r"[A-Z][A-Za-z]+/[^/]+", node):
        return f"{node.partition('/')[0]}/{word}"
    if key == "reference" and "?" in node:
        return f"{node.partition('?')[0]}?identifier=http://{word}|{quote(word)}"
    if node.startswith("http"):
        return (f"{node}/{word}", f"{node}?{word}", f"{node}#{word}")[int(word[-6:]) % 3]
    if node.startswith("urn:"):
        return f"{node}:{word}"
    if node.startswith("<div"):
        return cage.value("xhtml")
    if key in ("data", "hash", "sigData"):
        return cage.value("base64Binary")
    if key in ("code", "status", "system", "gender", "use") and int(word[-6:]) % 2:
        return f"{node}{word}"
    return word


def found_canaries(output: str | bytes) -> list[str]:
    """Return all canaries in an output: literal, URL-encoded, or in base64 at any offset."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    marks = [match[0] for match in _MARK.finditer(text)]
    if "%" in text:
        marks += [match[0] for match in _MARK.finditer(unquote(text))]
    for match in _BASE64.finditer(text):
        marks += [hit[0] for decoded in _decoded(match[0]) for hit in _MARK.finditer(decoded)]
    return marks


def _decoded(text: str) -> Iterator[str]:
    base64_text = text.rstrip("=").replace("-", "+").replace("_", "/")
    for start in range(4):
        part = base64_text[start:]
        part = part[: len(part) - len(part) % 4] if len(part) % 4 == 1 else part + "=" * (-len(part) % 4)
        try:
            yield base64.b64decode(part).decode("latin-1")
        except (binascii.Error, ValueError):
            continue


def as_text(output: Any) -> str:
    """Return an output as JSON text."""
    return json.dumps(output, ensure_ascii=False)
