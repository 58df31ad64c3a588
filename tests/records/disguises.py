"""An attacker's records: a person's names and numbers in every element, in every writing form, and the search for them.

Written without a look at the rules: whatever R4 lets one write anywhere is written, whatever comes out is decoded.
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

from abaton.fhir.elements import Element, is_primitive, resources, table

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
_PLAIN = re.compile(r'1937-04-21|13:37|(?<![\dA-Z])8392\d{4}|"(?:LEE|kim)"')


def fold(text: str) -> str:
    """A text as a reader compares names."""
    return "".join(
        sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign)
    ).casefold()


_SOUGHT = [fold(name) for name in NAMES] + [str(number) for number in NUMBERS]


def disguised(name: str, draw: random.Random) -> str:
    """A name in one of the forms that records come in."""
    plain = name.encode()
    return draw.choice(
        (
            name, name.upper(), unicodedata.normalize("NFD", name), html.escape(name), quote(name), quote(quote(name)),
            "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in name),
            "".join(f"&#{ord(c)};" for c in name), base64.b64encode(plain).decode(),
            base64.urlsafe_b64encode(plain).decode().rstrip("="), plain.hex(), f"**{name}**",
        )
    )  # fmt: skip


def record(kind: str, draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """A resource or data type with a disguised name in every element."""
    made: dict[str, Any] = {"resourceType": kind} if kind in resources() else {}
    taken: set[str] = set()
    elements = list(table()[kind].values())
    draw.shuffle(elements)
    for element in elements:
        if element.name == "modifierExtension" or (element.choice and element.stem in taken):
            continue
        value = _element(element, draw, depth)
        if value is None:
            continue
        taken.add(element.stem)
        made[element.name] = [value, _element(element, draw, depth)] if element.many else value
        if is_primitive(element.type) and element.name != "id" and depth < 2:
            beside = {"id": _plain("string", draw), "extension": [_extension(draw, depth + 1)]}
            made[f"_{element.name}"] = [beside, None] if element.many else beside
    if kind in ("Coding", "Quantity"):
        made |= {"system": draw.choice(_SYSTEMS), "code": draw.choice((*SHORT, *NAMES))}
        made |= {"unit": draw.choice((*NAMES, "839201.74", "{Quarkwright}"))} if kind == "Quantity" else {}
    if kind == "Reference" and draw.random() < 0.3:
        made.pop("reference", None)
    made[disguised(draw.choice(NAMES), draw)] = _plain("string", draw)
    return made


def _element(element: Element, draw: random.Random, depth: int) -> Any:
    if is_primitive(element.type):
        return _plain(element.type, draw)
    if element.type in ("Resource", "DomainResource"):
        return record(draw.choice(sorted(resources())), draw, depth + 2) if depth < 2 else None
    if element.type == "Extension":
        return _extension(draw, depth) if depth < 3 else None
    return record(element.type, draw, depth + 1) if depth < 4 else None


def _extension(draw: random.Random, depth: int) -> dict[str, Any]:
    value = draw.choice([each for each in table()["Extension"].values() if each.choice])
    address = ("http://hl7.org/fhir/StructureDefinition/data-absent-reason", _plain("uri", draw))
    made = {"url": draw.choice(address), value.name: _element(value, draw, max(depth, 3))}
    return made | ({"extension": [_extension(draw, depth + 1)]} if depth < 3 else {})


def _plain(kind: str, draw: random.Random) -> Any:
    text = disguised(draw.choice(NAMES), draw)
    if kind == "boolean":
        return True
    if kind in ("integer", "positiveInt", "unsignedInt", "decimal"):
        return draw.choice(NUMBERS)
    if kind == "base64Binary":
        return base64.b64encode(text.encode()).decode()
    if kind in ("date", "dateTime", "instant", "time"):
        return "13:37:59" if kind == "time" else draw.choice(_DATES if kind == "date" else _TIMES)
    if kind == "xhtml":
        return f'<div title="{text}"><![CDATA[{text}]]>{html.escape(text)}<a href="x?{quote(text)}"/></div>'
    if kind in ("uri", "url", "canonical", "oid", "uuid"):
        return draw.choice(_URLS).format(text, text)
    return draw.choice((text, *SHORT)) if kind in ("code", "id") else text


def seen_through(output: str) -> set[str]:
    """Every name, number, day and time of the person in an output, whatever it is written in."""
    texts = {output, unquote(output), unquote(unquote(output)), html.unescape(output)}
    texts.update(inner for match in set(_BASE64.findall(output)) for inner in _decoded(match))
    hits = {hit for text in texts for hit in _PLAIN.findall(text)}
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
