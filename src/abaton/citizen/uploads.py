"""The files that a person picks: FHIR as a Bundle, as lines, as single resources or as health cards, of one person.

Every refusal has a code, for which the page has plain words in the person's language; nothing of a file is in it.

SMART Health Cards: a Bundle of somebody's records inside a text that a hospital or a pharmacy has signed.

The signature is not checked: the issuer's keys are at the issuer, whom the page does not ask. A card counts as much as
any other file that somebody picks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from abaton.canonical_json import canonical
from abaton.errors import Refused
from abaton.fhir.bundles import opened
from abaton.fhir.elements import resources
from abaton.fhir.json_format import parse
from abaton.fhir.versions import version_of

Json = dict[str, Any]
_LOOKED_AT = 4096


def cards_in(text: bytes) -> list[bytes]:
    """The health cards of a file, or none if it is no file of health cards.

    >>> cards_in(b'{"verifiableCredential":["eyJ6aXAi.e30.c2ln"]}')
    [b'eyJ6aXAi.e30.c2ln']
    """
    if text.startswith(b"eyJ"):
        return [text] if text.count(b".") == 2 else []
    if b'"verifiableCredential"' not in text[:_LOOKED_AT] or b'"resourceType"' in text[:_LOOKED_AT]:
        return []
    cards = parse(text).get("verifiableCredential")
    return [card.encode() for card in cards if isinstance(card, str)] if isinstance(cards, list) else []


def bundle_in(card: bytes, most: int) -> Json:
    """The Bundle in a health card.

    Inside a card records have no ids; they are numbered. A person is known by name and birthday, so that two cards of
    one person fit together.

    Args:
        card: The signed text.
        most: The largest number of bytes that may come out of it.
    """
    try:
        head, body, _ = card.split(b".")
        raw = _decoded(body)
        if parse(_decoded(head)).get("zip") == "DEF":
            raw = _unpacked(raw, most)
        bundle = parse(raw)["vc"]["credentialSubject"]["fhirBundle"]
        entries = [(str(entry.get("fullUrl", "")), dict(entry["resource"])) for entry in bundle["entry"]]
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        raise Refused("this is no health card", remedy="choose another file") from None
    mark = hashlib.sha256(raw).hexdigest()[:16]
    for number, (_, resource) in enumerate(entries):
        resource.setdefault("id", _person(resource) if _is_person(resource) else f"{mark}-{number}")
    return {**bundle, "entry": [{"fullUrl": url, "resource": resource} for url, resource in entries]}


def _is_person(resource: Json) -> bool:
    return resource.get("resourceType") == "Patient"


def _person(resource: Json) -> str:
    known = [resource.get("name"), resource.get("birthDate")]
    return hashlib.sha256(canonical(known)).hexdigest()[:32]


def _decoded(part: bytes) -> bytes:
    return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _unpacked(raw: bytes, most: int) -> bytes:
    """What was packed, but never more than a phone can hold."""
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
    made = unpacking.decompress(raw, most)
    if not unpacking.eof:
        raise ValueError("too large, or cut off")
    return made


MOST_BYTES = 32 * 1024 * 1024
"""The largest file; a phone has to hold several copies of it at once."""
_SEALED = b"ABATSEAL"
_NEXT = b"\x1e"  # stands before each text of several (RFC 7464), as the page puts together what it fetched


class Unusable(StrEnum):
    """Why a file cannot be used."""

    EMPTY = "empty"
    TOO_LARGE = "too-large"
    SEALED = "sealed"
    ENCRYPTED = "encrypted"
    XML = "xml"
    NOT_JSON = "not-json"
    TOO_DEEP = "too-deep"
    NOT_FHIR = "not-fhir"
    OTHER_VERSION = "other-version"
    SEVERAL_PEOPLE = "several-people"
    DOUBTFUL = "doubtful"


class PickedError(Refused):
    """A file that cannot be used, and why."""

    def __init__(self, code: Unusable) -> None:
        self.code = code
        super().__init__(f"the file cannot be used: {code.value}", remedy="choose another file")


def read_picked(raw: bytes) -> list[Json]:
    """The documents in a file: one, one in every line, or those of its health cards.

    >>> [document["resourceType"] for document in read_picked(b'{"resourceType":"Patient","id":"7"}')]
    ['Patient']
    """
    if len(raw) > MOST_BYTES:
        raise PickedError(Unusable.TOO_LARGE)
    texts = [text for each in raw.split(_NEXT) if (text := each.removeprefix(b"\xef\xbb\xbf").strip())]
    if not texts:
        raise PickedError(Unusable.EMPTY)
    found = [document for text in texts for document in _documents(text)]
    for document in found:
        _check(document)
    return found


def _look_at(text: bytes) -> None:
    """Tell apart what is no JSON by how it begins."""
    if text.startswith(_SEALED):
        raise PickedError(Unusable.SEALED)
    if text.startswith((b"shlink:", b"eyJ", b"age-encryption")):
        raise PickedError(Unusable.ENCRYPTED)
    if text.startswith(b"<"):
        raise PickedError(Unusable.XML)
    if not text.startswith(b"{"):
        raise PickedError(Unusable.NOT_JSON)


def _documents(text: bytes) -> Iterator[Json]:
    try:
        cards = [bundle_in(card, MOST_BYTES) for card in cards_in(text)]
    except Refused:
        raise PickedError(Unusable.NOT_JSON) from None
    if cards:
        yield from cards
        return
    _look_at(text)
    lines = [line for line in map(bytes.strip, text.splitlines()) if line]
    if len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        yield from map(_parsed, lines)
    else:
        yield _parsed(text)


def _parsed(raw: bytes) -> Json:
    try:
        return parse(raw)
    except Refused as error:
        if "nested" in error.what:
            raise PickedError(Unusable.TOO_DEEP) from None
        raise PickedError(Unusable.NOT_JSON) from None


def _check(document: Json) -> None:
    kind = document.get("resourceType")
    if not isinstance(kind, str):
        raise PickedError(Unusable.NOT_FHIR)
    if kind not in resources():
        raise PickedError(Unusable.OTHER_VERSION if version_of(kind) else Unusable.NOT_FHIR)


def one_person(documents: Iterable[Json]) -> None:
    """Refuse the records of more than one person: nobody may send somebody else's."""
    people = set()
    for document in documents:
        for resource in opened(document):
            if resource.get("resourceType") == "Patient":
                people.add(str(resource.get("id", "")))
    if len(people) > 1:
        raise PickedError(Unusable.SEVERAL_PEOPLE)
