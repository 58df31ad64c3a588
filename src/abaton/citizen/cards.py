"""SMART Health Cards: a Bundle of somebody's records inside a text that a hospital or a pharmacy has signed.

The signature is not checked: the issuer's keys are at the issuer, whom the page does not ask. A card counts as much as
any other file that somebody picks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from typing import Any

from abaton.canonical_json import canonical
from abaton.errors import Refused
from abaton.fhir.json_format import parse

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
