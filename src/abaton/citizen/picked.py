"""The files that a person picks: FHIR as a Bundle, as lines, as single resources or as health cards, of one person.

Every refusal has a code, for which the page has plain words in the person's language; nothing of a file is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from abaton.citizen.cards import bundle_in, cards_in
from abaton.errors import Refused
from abaton.records.fhir.bundles import opened
from abaton.fhir.elements import resources
from abaton.fhir.json_format import parse
from abaton.fhir.versions import version_of

Json = dict[str, Any]
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
