"""Hostile records: a person's names and numbers in every element and form, and the search for them.

Independent of the rules: every value that R4 allows is written, and every output is decoded.
"""

from __future__ import annotations

import base64
import binascii
import html
import random
import re
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from abaton.fhir.elements import ElementDefinition, element_table, is_primitive, resource_types

NAMES = ("Quarkwright", "Öztürkoğlu", "Siobhán", "MRN-83920174", "zeb@ulon.example", "Rue du Zébulon 17")
NUMBERS = (83920174, 503153711)
SHORT = ("LEE", "kim", "LI", "83920174")
_SYSTEMS = (
    "http://loinc.org", "http://snomed.info/sct", "urn:iso:std:iso:3166", "urn:iso:std:iso:4217", "urn:ietf:bcp:47",
    "http://hl7.org/fhir/sid/mvx", "http://dicom.nema.org/resources/ontology/DCM", "http://standardterms.edqm.eu",
    "http://unitsofmeasure.org", "http://hl7.org/fhir/administrative-gender", "http://hospital.example/codes",
)  # fmt: skip
_URLS = (
    "https://x.example/fhir/Patient?name={}&identifier=a|{}", "https://x.example/fhir/Patient/{}", "Patient/{}",
    "Patient/{}/_history/{}", "#{}", "urn:oid:1.2.83920174", "mailto:{}", "data:,{}", "http://loinc.org/{}",
    "http://hl7.org/fhir/StructureDefinition/{}", "urn:uuid:{}",
)  # fmt: skip
_DATES = ("1937-04-21", "1937-04", "21.04.1937")
_TIMES = ("1937-04-21T13:37:59.123456789+13:45", "1937-04-21T24:00:00Z", "1937-04-21T13:37:59-12:00", *_DATES)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_PRIMITIVES = re.compile(r'1937-04-21|13:37|(?<![\dA-Z])8392\d{4}|"(?:LEE|kim)"')


def fold(text: str) -> str:
    """Return a text as a reader compares names."""
    return "".join(
        sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign)
    ).casefold()


_SOUGHT = [fold(name) for name in NAMES] + [str(number) for number in NUMBERS]


def disguised(name: str, rng: random.Random) -> str:
    """Return a name in one of several forms that occur in records."""
    name_bytes = name.encode()
    return rng.choice(
        (
            name, name.upper(), unicodedata.normalize("NFD", name), html.escape(name), quote(name), quote(quote(name)),
            "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in name),
            "".join(f"&#{ord(c)};" for c in name), base64.b64encode(name_bytes).decode(),
            base64.urlsafe_b64encode(name_bytes).decode().rstrip("="), name_bytes.hex(), f"**{name}**",
        )
    )  # fmt: skip


def record(type_name: str, rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a resource or data type with a disguised name in every element."""
    resource: dict[str, Any] = {"resourceType": type_name} if type_name in resource_types() else {}
    taken: set[str] = set()
    elements = list(element_table()[type_name].values())
    rng.shuffle(elements)
    for element in elements:
        if element.name == "modifierExtension" or (element.is_choice and element.stem in taken):
            continue
        value = _element(element, rng, depth)
        if value is None:
            continue
        taken.add(element.stem)
        resource[element.name] = [value, _element(element, rng, depth)] if element.is_list else value
        if is_primitive(element.type) and element.name != "id" and depth < 2:
            beside = {"id": _primitive("string", rng), "extension": [_extension(rng, depth + 1)]}
            resource[f"_{element.name}"] = [beside, None] if element.is_list else beside
    if type_name in ("Coding", "Quantity"):
        resource |= {"system": rng.choice(_SYSTEMS), "code": rng.choice((*SHORT, *NAMES))}
        resource |= (
            {"unit": rng.choice((*NAMES, "839201.74", "{Quarkwright}"))} if type_name == "Quantity" else {}
        )
    if type_name == "Reference" and rng.random() < 0.3:
        resource.pop("reference", None)
    resource[disguised(rng.choice(NAMES), rng)] = _primitive("string", rng)
    return resource


def _element(element: ElementDefinition, rng: random.Random, depth: int) -> Any:
    if is_primitive(element.type):
        return _primitive(element.type, rng)
    if element.type in ("Resource", "DomainResource"):
        return record(rng.choice(sorted(resource_types())), rng, depth + 2) if depth < 2 else None
    if element.type == "Extension":
        return _extension(rng, depth) if depth < 3 else None
    return record(element.type, rng, depth + 1) if depth < 4 else None


def _extension(rng: random.Random, depth: int) -> dict[str, Any]:
    value = rng.choice([resource for resource in element_table()["Extension"].values() if resource.is_choice])
    address = ("http://hl7.org/fhir/StructureDefinition/data-absent-reason", _primitive("uri", rng))
    resource = {"url": rng.choice(address), value.name: _element(value, rng, max(depth, 3))}
    return resource | ({"extension": [_extension(rng, depth + 1)]} if depth < 3 else {})


def _primitive(type_name: str, rng: random.Random) -> Any:
    text = disguised(rng.choice(NAMES), rng)
    if type_name == "boolean":
        return True
    if type_name in ("integer", "positiveInt", "unsignedInt", "decimal"):
        return rng.choice(NUMBERS)
    if type_name == "base64Binary":
        return base64.b64encode(text.encode()).decode()
    if type_name in ("date", "dateTime", "instant", "time"):
        return "13:37:59" if type_name == "time" else rng.choice(_DATES if type_name == "date" else _TIMES)
    if type_name == "xhtml":
        return f'<div title="{text}"><![CDATA[{text}]]>{html.escape(text)}<a href="x?{quote(text)}"/></div>'
    if type_name in ("uri", "url", "canonical", "oid", "uuid"):
        return rng.choice(_URLS).format(text, text)
    return rng.choice((text, *SHORT)) if type_name in ("code", "id") else text


def seen_through(output: str) -> set[str]:
    """Return all names, numbers, dates and times of the person in an output, in any encoding."""
    texts = {output, unquote(output), unquote(unquote(output)), html.unescape(output)}
    texts.update(inner for match in set(_BASE64.findall(output)) for inner in _decoded(match))
    hits = {hit for text in texts for hit in _PRIMITIVES.findall(text)}
    return hits | {name for text in texts for name in _SOUGHT if name in fold(text)}


def _decoded(text: str) -> Iterator[str]:
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    for start in range(4):
        part = body[start : len(body) - 1 if (len(body) - start) % 4 == 1 else len(body)]
        try:
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode("utf-8", "ignore")
        except binascii.Error:
            continue
    if len(text) % 2 == 0 and re.fullmatch("[0-9a-f]+", text):
        yield bytes.fromhex(text).decode("utf-8", "ignore")
