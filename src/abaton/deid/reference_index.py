"""Reference index: targets of references that a document cannot resolve itself.

``urn:uuid:…``, ``Patient?identifier=…`` and a Reference with an identifier only do not contain the target's
id. Inside a Bundle they are resolved by its entries. Across files the index is built once before the export, and only
for targets that an export could not resolve, so its size depends on these targets, not on the records.

Invariants:
(1) a name of two resources is not resolved;
(2) the index is not written to disk; unresolved references are dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from abaton.errors import RefusedError
from abaton.fhir.bundles import conditional_identifier
from abaton.fhir.file_reader import STDIN, RecordFile, read_numbered
from abaton.fhir.json_format import parse

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RESOURCE_TYPE = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"')
_PREFIX_BYTES = 256
# Marks of lines that must be parsed to find their references: a Bundle, an identifier in place of a
# reference (an object, where a resource has a list), spaces, escapes within an address.
_NEEDS_PARSING = (
    b'"Bundle"',
    b'"identifier":{',
    b'"identifier": ',
    b'"reference": ',
    b'"reference" ',
    b"\\/",
    b"\\u00",
)
_MAX_NESTED = 8
Target = tuple[str, str]
"""A resource's type, and the original identity of its pseudonym: its id, or its address if it has none."""


class UnresolvedReferenceError(Exception):
    """Reference to a resource that its document does not contain, before an index is built."""


@dataclass(frozen=True, slots=True)
class ReferenceIndex:
    """Targets by name, and the subjects' identifiers for links across sites.

    >>> ReferenceIndex({"urn:uuid:1": ("Patient", "7")}).find("urn:uuid:1")
    ('Patient', '7')
    """

    targets: dict[str, Target] = field(default_factory=dict)
    linked: dict[str, str] = field(default_factory=dict)

    def add_document(self, document: dict[str, Any], names_sought: set[str]) -> None:
        """Add the resources of a document that have one of the names to the reference index."""
        for name, target in resource_names(document):
            if name in names_sought and self.targets.setdefault(name, target) != target:
                self.targets[name] = ("", "")

    def find(self, name: str) -> Target | None:
        """Find a resource in the reference index by a name, if it is unique."""
        target = self.targets.get(name)
        return target if target and target[0] else None

    def __repr__(self) -> str:
        return "ReferenceIndex(…)"  # contains identities


EMPTY_INDEX = ReferenceIndex()
"""Index for documents without other files."""


def identifier_name(resource_type: str, identifier: str) -> str:
    """Return the name in the reference index of a resource with an identifier; an empty type means any.

    >>> identifier_name("Patient", "urn:x|7")
    'Patient?urn:x|7'
    """
    return f"{resource_type}?{identifier}"


def identifier_of(resource: dict[str, Any], system: str) -> str:
    """Return a resource's only identifier of a system, to index it; empty if there is none, or several.

    >>> identifier_of({"identifier": [{"system": "urn:x", "value": "7"}]}, "urn:x")
    '7'
    """
    values = {text.partition("|")[2] for text in identifiers(resource) if text.partition("|")[0] == system}
    return values.pop() if len(values) == 1 else ""


def identifiers(resource: dict[str, Any]) -> list[str]:
    """Return the identifiers by which a resource is indexed, each as ``system|value``."""
    listed = resource.get("identifier")
    return [
        f"{item.get('system') or ''}|{item['value']}"
        for item in (listed if isinstance(listed, list) else [listed])
        if isinstance(item, dict) and isinstance(item.get("value"), str)
    ]


def reference_names(document: dict[str, Any]) -> set[str]:
    """Return the references of a document that its own resources do not resolve, to look up in the index."""
    names: set[str] = set()
    stack: list[Any] = [document]
    while stack:
        node = stack.pop()
        if node.__class__ is list:
            stack += node
        elif node.__class__ is dict:
            stack += node.values()
            reference, identifier = node.get("reference"), node.get("identifier")
            if reference.__class__ is str:
                if reference.startswith("urn:"):
                    names.add(reference)
                elif (conditional := conditional_identifier(reference)) is not None:
                    names.add(identifier_name(*conditional))
            elif (
                identifier.__class__ is dict
                and "resourceType" not in node
                and identifier.get("value").__class__ is str
            ):
                resource_type = node.get("type")
                names.add(
                    identifier_name(
                        resource_type if isinstance(resource_type, str) else "",
                        f"{identifier.get('system') or ''}|{identifier['value']}",
                    )
                )
    return names - {name for name, _ in resource_names(document)} if names else names


def resource_names(document: dict[str, Any], url: Any = "", depth: int = 0) -> Iterator[tuple[str, Target]]:
    """Yield all names by which the resources of a document are indexed, with the resource."""
    resource_type, old = document.get("resourceType"), document.get("id")
    if not isinstance(resource_type, str):
        return
    if resource_type == "Bundle":
        entries = document.get("entry")
        for entry in entries if isinstance(entries, list) and depth < _MAX_NESTED else ():
            if isinstance(entry, dict) and isinstance(entry.get("resource"), dict):
                yield from resource_names(entry["resource"], entry.get("fullUrl"), depth + 1)
        return
    full_url = url if isinstance(url, str) and url else ""
    target = (resource_type, old if isinstance(old, str) and old else full_url)
    if not target[1]:
        return
    if full_url.startswith("urn:"):
        yield full_url, target
    if isinstance(old, str) and _UUID.fullmatch(old) and full_url != f"urn:uuid:{old}":
        yield f"urn:uuid:{old}", target
    for identifier in identifiers(document):
        yield identifier_name(resource_type, identifier), target
        yield identifier_name("", identifier), target


def build_index(
    names_sought: Iterable[str], sources: Sequence[RecordFile], link_by: str = ""
) -> ReferenceIndex:
    """Build the reference index of the named resources in all files, and of linking identifiers."""
    names = set(names_sought)
    resource_types = {name.partition("?")[0] for name in names if "?" in name} if names else set()
    search_all = "" in resource_types or any("?" not in name for name in names)
    index = ReferenceIndex()
    for source in sources if names or link_by else ():
        for document in _parsed_documents(
            source, None if search_all else resource_types | ({"Patient"} if link_by else set())
        ):
            index.add_document(document, names)
            if link_by:
                index.linked.update(linked_patients(document, link_by))
    return index


def index_documents(documents: Sequence[dict[str, Any]]) -> ReferenceIndex:
    """Return the reference index of several documents that refer to each other."""
    names = (
        {name for document in documents for name in reference_names(document)}
        if len(documents) > 1
        else set()
    )
    index = ReferenceIndex()
    for document in documents if names else ():
        index.add_document(document, names)
    return index


def linked_patients(document: dict[str, Any], link_by: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the ids of a document's Patients with their linking identifiers, for the reference index."""
    if document.get("resourceType") == "Bundle" and depth < _MAX_NESTED:
        entries = document.get("entry")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("resource"), dict):
                yield from linked_patients(entry["resource"], link_by, depth + 1)
    elif document.get("resourceType") == "Patient" and isinstance(document.get("id"), str):
        value = identifier_of(document, link_by)
        if value:
            yield document["id"], value


def unresolved_names(source: RecordFile) -> set[str]:
    """Return the references of a file, or a chunk of one, that its documents do not resolve themselves."""
    names: set[str] = set()
    literal: set[bytes] = set()
    for raw, _ in _raw_documents(source):
        if source.is_ndjson and not any(mark in raw for mark in _NEEDS_PARSING):
            # A single resource with literal references only: they are found without parsing.
            for fragment in raw.split(b'"reference":"')[1:]:
                text = fragment[: fragment.find(b'"')]
                if b"?" in text or text.startswith(b"urn:"):
                    literal.add(text)
            continue
        try:
            names |= reference_names(parse(raw))
        except RefusedError:
            continue
    for text in literal:
        names |= reference_names({"reference": text.decode(errors="replace")})
    return names


def _raw_documents(source: RecordFile) -> Iterator[tuple[bytes, int]]:
    """Yield the documents of a source to index as far as it is readable; the export raises errors later."""
    if source.path == STDIN:
        return
    try:
        yield from read_numbered(source)
    except (RefusedError, OSError):
        return


def _parsed_documents(source: RecordFile, resource_types: set[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the parsed documents of a source to index that may have one of the types."""
    for raw, _ in _raw_documents(source):
        match = (
            _RESOURCE_TYPE.search(raw, 0, _PREFIX_BYTES)
            if resource_types is not None and source.is_ndjson
            else None
        )
        if match is not None and match[1].decode() not in (resource_types or ()) and match[1] != b"Bundle":
            continue
        try:
            yield parse(raw)
        except RefusedError:
            continue
