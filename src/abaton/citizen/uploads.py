"""Files that a citizen chooses: FHIR Bundles, NDJSON, single resources or SMART Health Cards of one patient.

Each refusal has a code, for which the page has a text in the citizen's language; it contains nothing of the file. The
signature of a SMART Health Card is not verified, because the page does not contact its issuer; a card counts like any
other file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from abaton.canonical_json import to_canonical_json
from abaton.errors import RefusedError
from abaton.fhir.bundles import bundle_resources
from abaton.fhir.elements import resource_types
from abaton.fhir.json_format import parse
from abaton.fhir.versions import foreign_version

Json = dict[str, Any]
_PREFIX_BYTES = 4096


def health_cards(text: bytes) -> list[bytes]:
    """Return the SMART Health Cards of a file that a citizen uploads; empty if it contains none.

    >>> health_cards(b'{"verifiableCredential":["eyJ6aXAi.e30.c2ln"]}')
    [b'eyJ6aXAi.e30.c2ln']
    """
    if text.startswith(b"eyJ"):
        return [text] if text.count(b".") == 2 else []
    if b'"verifiableCredential"' not in text[:_PREFIX_BYTES] or b'"resourceType"' in text[:_PREFIX_BYTES]:
        return []
    cards = parse(text).get("verifiableCredential")
    return [card.encode() for card in cards if isinstance(card, str)] if isinstance(cards, list) else []


def card_bundle(card: bytes, limit: int) -> Json:
    """Return the Bundle of an uploaded SMART Health Card.

    Resources of a card have no ids and are numbered. The Patient id is derived from name and birth date, so that two
    cards of one patient match.

    Args:
        card: The signed text.
        limit: Largest decompressed size in bytes.
    """
    try:
        header, body, _ = card.split(b".")
        raw = _decode_base64url(body)
        if parse(_decode_base64url(header)).get("zip") == "DEF":
            raw = _inflate(raw, limit)
        bundle = parse(raw)["vc"]["credentialSubject"]["fhirBundle"]
        entries = [(str(entry.get("fullUrl", "")), dict(entry["resource"])) for entry in bundle["entry"]]
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        raise RefusedError("the file is not a SMART Health Card", remedy="choose another file") from None
    digest = hashlib.sha256(raw).hexdigest()[:16]
    for number, (_, resource) in enumerate(entries):
        resource.setdefault("id", _patient_id(resource) if _is_patient(resource) else f"{digest}-{number}")
    return {**bundle, "entry": [{"fullUrl": url, "resource": resource} for url, resource in entries]}


def _is_patient(resource: Json) -> bool:
    return resource.get("resourceType") == "Patient"


def _patient_id(resource: Json) -> str:
    known = [resource.get("name"), resource.get("birthDate")]
    return hashlib.sha256(to_canonical_json(known)).hexdigest()[:32]


def _decode_base64url(part: bytes) -> bytes:
    return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)


def _inflate(raw: bytes, limit: int) -> bytes:
    """Decompress at most `limit` bytes of an uploaded SMART Health Card."""
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    inflated = decompressor.decompress(raw, limit)
    if not decompressor.eof:
        raise ValueError("too large or truncated")
    return inflated


MAX_UPLOAD_BYTES = 32 * 1024 * 1024
"""Largest file; a phone must hold several copies of it in memory."""
_SEALED_MAGIC = b"ABATSEAL"
_RECORD_SEPARATOR = b"\x1e"  # precedes each text of a sequence (RFC 7464), as the page joins fetched files


class UnusableReason(StrEnum):
    """Reason for which a file is refused."""

    EMPTY = "empty"
    TOO_LARGE = "too-large"
    SEALED = "sealed"
    ENCRYPTED = "encrypted"
    XML = "xml"
    NOT_JSON = "not-json"
    TOO_DEEP = "too-deep"
    NOT_FHIR = "not-fhir"
    OTHER_VERSION = "other-version"
    SEVERAL_PATIENTS = "several-patients"
    UNCLEAR = "unclear"


class UploadError(RefusedError):
    """Error of a file that cannot be used."""

    def __init__(self, code: UnusableReason) -> None:
        self.code = code
        super().__init__(f"the file cannot be used: {code.value}", remedy="choose another file")


def read_upload(raw: bytes) -> list[Json]:
    """Return the documents of a citizen's upload: one, one per line, or those of its health cards.

    >>> [document["resourceType"] for document in read_upload(b'{"resourceType":"Patient","id":"7"}')]
    ['Patient']
    """
    if len(raw) > MAX_UPLOAD_BYTES:
        raise UploadError(UnusableReason.TOO_LARGE)
    texts = [
        text
        for piece in raw.split(_RECORD_SEPARATOR)
        if (text := piece.removeprefix(b"\xef\xbb\xbf").strip())
    ]
    if not texts:
        raise UploadError(UnusableReason.EMPTY)
    documents = [document for text in texts for document in _documents(text)]
    for document in documents:
        _check_resource_type(document)
    return documents


def _check_format(text: bytes) -> None:
    """Raise the error for an uploaded file that is not JSON, by its first bytes."""
    if text.startswith(_SEALED_MAGIC):
        raise UploadError(UnusableReason.SEALED)
    if text.startswith((b"shlink:", b"eyJ", b"age-encryption")):
        raise UploadError(UnusableReason.ENCRYPTED)
    if text.startswith(b"<"):
        raise UploadError(UnusableReason.XML)
    if not text.startswith(b"{"):
        raise UploadError(UnusableReason.NOT_JSON)


def _documents(text: bytes) -> Iterator[Json]:
    try:
        cards = [card_bundle(card, MAX_UPLOAD_BYTES) for card in health_cards(text)]
    except RefusedError:
        raise UploadError(UnusableReason.NOT_JSON) from None
    if cards:
        yield from cards
        return
    _check_format(text)
    lines = [line for line in map(bytes.strip, text.splitlines()) if line]
    if len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        yield from map(_parse, lines)
    else:
        yield _parse(text)


def _parse(raw: bytes) -> Json:
    try:
        return parse(raw)
    except RefusedError as error:
        if "nested" in error.what:
            raise UploadError(UnusableReason.TOO_DEEP) from None
        raise UploadError(UnusableReason.NOT_JSON) from None


def _check_resource_type(document: Json) -> None:
    kind = document.get("resourceType")
    if not isinstance(kind, str):
        raise UploadError(UnusableReason.NOT_FHIR)
    if kind not in resource_types():
        raise UploadError(UnusableReason.OTHER_VERSION if foreign_version(kind) else UnusableReason.NOT_FHIR)


def check_one_patient(documents: Iterable[Json]) -> None:
    """Raise an error if the uploaded documents contain more than one patient."""
    patients = set()
    for document in documents:
        for resource in bundle_resources(document):
            if resource.get("resourceType") == "Patient":
                patients.add(str(resource.get("id", "")))
    if len(patients) > 1:
        raise UploadError(UnusableReason.SEVERAL_PATIENTS)
