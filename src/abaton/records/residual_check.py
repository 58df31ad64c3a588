"""Check of an export: retained elements with their rules, validity, and residual identifiers.

The check reads the written files. It returns counts; the identifiers of the original records are kept in memory as
keyed digests.
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
from abaton.deid.settings import DataRequest
from abaton.fhir.elements import element_table, is_primitive, is_resource_slot, resource_types
from abaton.fhir.validation import validate_resource
from abaton.record_types import Record

_PERSON_TYPES = frozenset({"Patient", "Person", "Practitioner", "RelatedPerson"})
_IDENTIFYING_ELEMENTS = frozenset({"family", "given", "text", "value", "line", "postalCode", "id"})
_TEXTS = frozenset({"markdown", "xhtml"})
_MIN_TERM_LENGTH = 4  # characters; shorter terms also occur in codes and units
_WORD = re.compile(r"\w+")


class KnownIdentifiers:
    """Names, numbers, addresses and ids of persons in the original records, as keyed digests."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._terms: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._terms)

    def add(self, document: dict[str, Any]) -> None:
        """Add the identifiers of every person in a source document, for the residual check of the export."""
        for resource_type, path, _, value in leaves(document):
            parts = path.split(".")
            if (
                resource_type in _PERSON_TYPES
                and parts[-1] in _IDENTIFYING_ELEMENTS
                and isinstance(value, str)
            ):
                name_parts = _WORD.findall(value) if parts[-1] in ("family", "given") else ()
                self._terms.update(
                    self._digest(term) for term in (value, *name_parts) if len(term) >= _MIN_TERM_LENGTH
                )

    def occur_in(self, value: str) -> bool:
        """Return whether a text of the export, or one of its words, is a residual identifier."""
        return any(
            self._digest(term) in self._terms
            for term in (value, *_WORD.findall(value))
            if len(term) >= _MIN_TERM_LENGTH
        )

    def _digest(self, term: str) -> bytes:
        return hashlib.blake2b(term.casefold().encode(), key=self._key, digest_size=16).digest()


@dataclass(slots=True)
class ResidualCheck:
    """Counts over the records of an export.

    Attributes:
        retained: Number of elements by path and rule.
        records, invalid: Numbers of records, and of those that are not valid R4.
        texts, attachments: Numbers of remaining free texts (more than one word) and binary contents.
        residuals: Number of values with an identifier.
    """

    retained: Counter[tuple[str, str]] = field(default_factory=Counter)
    records: int = 0
    invalid: int = 0
    texts: int = 0
    attachments: int = 0
    residuals: int = 0

    def add(
        self, document: dict[str, Any], request: DataRequest, identifiers: KnownIdentifiers, *, year: int
    ) -> None:
        """Check one document of the export: count retained elements, free texts and residual identifiers."""
        self.records += 1
        self.invalid += bool(validate_resource(document))
        names = Pseudonyms(request.study, secrets.token_bytes(32))  # not stored
        for trace in explain(Record(document), request, names, year=year):
            self.retained[trace.path, trace.reason] += trace.kept_count
        for _, _, type_name, value in leaves(document):
            self.texts += type_name in _TEXTS or (type_name == "string" and len(str(value).split()) > 1)
            self.attachments += type_name == "base64Binary"
            self.residuals += isinstance(value, str) and identifiers.occur_in(value)


def leaves(document: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Yield every primitive value of a document for the residual check, with its type, path and R4 type.

    >>> list(leaves({"resourceType": "Patient", "name": [{"family": "Chalmers"}]}))
    [('Patient', 'Patient.name.family', 'string', 'Chalmers')]
    """
    resource_type = document.get("resourceType")
    if isinstance(resource_type, str) and resource_type in resource_types():
        yield from _leaves(document, resource_type, resource_type, resource_type)


def _leaves(
    node: dict[str, Any], type_name: str, path: str, resource_type: str
) -> Iterator[tuple[str, str, str, Any]]:
    fields = element_table()[type_name]
    for key, value in node.items():
        element = fields.get(key)
        if element is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if is_primitive(element.type):
                yield resource_type, f"{path}.{key}", element.type, item
            elif isinstance(item, dict):
                if is_resource_slot(element.type):
                    yield from leaves(item)
                else:
                    yield from _leaves(item, element.type, f"{path}.{key}", resource_type)
