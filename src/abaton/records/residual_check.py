"""A survey of an export: what stands in it and why, whether it is valid, and whether the people are still in it.

It reads the files that were written, not what the program meant to write. It holds counts; the terms that are sought,
taken from the records before, are kept in memory as digests only.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from abaton.deid.api import explain
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import Need
from abaton.fhir.elements import is_primitive, is_resource_slot, resources, table
from abaton.fhir.validation import problems
from abaton.record_types import Record

_PEOPLE = frozenset({"Patient", "Person", "Practitioner", "RelatedPerson"})
_NAMING = frozenset({"family", "given", "text", "value", "line", "postalCode", "id"})
_TEXTS = frozenset({"markdown", "xhtml"})
_SHORTEST = 4  # letters: shorter terms stand in codes and units by chance
_WORDS = re.compile(r"\w+")


class Sought:
    """Names, numbers, addresses and ids of the people in the records before, as keyed digests."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._terms: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._terms)

    def note(self, document: dict[str, Any]) -> None:
        """Take the terms of every person in a document."""
        for kind, path, _, value in leaves(document):
            parts = path.split(".")
            if kind in _PEOPLE and parts[-1] in _NAMING and isinstance(value, str):
                words = _WORDS.findall(value) if parts[-1] in ("family", "given") else ()
                self._terms.update(self._digest(term) for term in (value, *words) if len(term) >= _SHORTEST)

    def found_in(self, value: str) -> bool:
        """Whether a text is one of the terms, or has one among its words."""
        return any(
            self._digest(term) in self._terms
            for term in (value, *_WORDS.findall(value))
            if len(term) >= _SHORTEST
        )

    def _digest(self, term: str) -> bytes:
        return hashlib.blake2b(term.casefold().encode(), key=self._key, digest_size=16).digest()


@dataclass(slots=True)
class Survey:
    """Counts over the records of an export.

    Attributes:
        kept: How often each element stands in it, by path and the rule that keeps it.
        records, invalid: How many records there are, and how many of them R4 would refuse.
        texts, attachments: How many free texts (of more than one word) and binary contents are left.
        found: How many values hold something of a person.
    """

    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    records: int = 0
    invalid: int = 0
    texts: int = 0
    attachments: int = 0
    found: int = 0

    def note(self, document: dict[str, Any], need: Need, sought: Sought, *, year: int) -> None:
        """Count one document of the export; it must have gone through the study's plan before."""
        self.records += 1
        self.invalid += bool(problems(document))
        names = Pseudonyms(need.study, secrets.token_bytes(32))  # nothing made with them is kept
        for told in explain(Record(document), need, names, year=year):
            self.kept[told.path, told.why] += told.kept
        for _, _, type_name, value in leaves(document):
            self.texts += type_name in _TEXTS or (type_name == "string" and len(str(value).split()) > 1)
            self.attachments += type_name == "base64Binary"
            self.found += isinstance(value, str) and sought.found_in(value)


def leaves(document: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Every plain value of a document: the resource type it stands in, its path, its R4 type, the value.

    >>> list(leaves({"resourceType": "Patient", "name": [{"family": "Chalmers"}]}))
    [('Patient', 'Patient.name.family', 'string', 'Chalmers')]
    """
    kind = document.get("resourceType")
    if isinstance(kind, str) and kind in resources():
        yield from _leaves(document, kind, kind, kind)


def _leaves(
    node: dict[str, Any], type_name: str, path: str, kind: str
) -> Iterator[tuple[str, str, str, Any]]:
    fields = table()[type_name]
    for key, value in node.items():
        element = fields.get(key)
        if element is None:
            continue
        for each in value if isinstance(value, list) else [value]:
            if is_primitive(element.type):
                yield kind, f"{path}.{key}", element.type, each
            elif isinstance(each, dict):
                if is_resource_slot(element.type):
                    yield from leaves(each)
                else:
                    yield from _leaves(each, element.type, f"{path}.{key}", kind)
