"""Addresses across files: where a reference leads that its own document does not answer.

``urn:uuid:…``, ``Patient?identifier=…`` and a Reference that holds an identifier only name a resource without its
id. Inside a Bundle the entry is at hand. Across files it is looked for once, before anything is written, and only for
what is asked for: so as much is remembered as there are such targets, not as there are records.

Invariants:
(1) a name that two resources answer to leads nowhere;
(2) nothing of this is written anywhere; what leads nowhere is dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from abaton.errors import Refused
from abaton.fhir.bundles import by_query
from abaton.fhir.file_reader import STDIN, Source, numbered
from abaton.fhir.json_format import parse

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KIND = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"')
_HEAD = 256
# What makes a line more than one resource with references in plain words: a Bundle, an identifier in the place of a
# reference (an object, where a resource has a list), spaces, escapes within an address.
_INSIDE = (
    b'"Bundle"',
    b'"identifier":{',
    b'"identifier": ',
    b'"reference": ',
    b'"reference" ',
    b"\\/",
    b"\\u00",
)
_NESTED = 8
Place = tuple[str, str]
"""A resource's type and what its identity is made from: its id, or its address if it has none."""


class Asks(Exception):
    """A document names a resource that is not in it, and nobody has looked elsewhere yet."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Which resource a name leads to, and by which identifier people are known at other sites.

    >>> Addresses({"urn:uuid:1": ("Patient", "7")}).find("urn:uuid:1")
    ('Patient', '7')
    """

    places: dict[str, Place] = field(default_factory=dict)
    linked: dict[str, str] = field(default_factory=dict)

    def note(self, document: dict[str, Any], wanted: set[str]) -> None:
        """Note which of the wanted names a document answers."""
        for name, place in answered(document):
            if name in wanted and self.places.setdefault(name, place) != place:
                self.places[name] = ("", "")

    def find(self, name: str) -> Place | None:
        """The resource that a name leads to, if there is exactly one."""
        found = self.places.get(name)
        return found if found and found[0] else None

    def __repr__(self) -> str:
        return "Addresses(…)"  # holds identities


NOWHERE = Addresses()
"""No file is at hand but the document itself."""


def named_by(kind: str, identifier: str) -> str:
    """The name of a resource that is known by an identifier; without a type it may be of any.

    >>> named_by("Patient", "urn:x|7")
    'Patient?urn:x|7'
    """
    return f"{kind}?{identifier}"


def identifier_of(resource: dict[str, Any], system: str) -> str:
    """The value of a resource's only identifier of a system; empty if there is none, or more than one.

    >>> identifier_of({"identifier": [{"system": "urn:x", "value": "7"}]}, "urn:x")
    '7'
    """
    values = {text.partition("|")[2] for text in identifiers(resource) if text.partition("|")[0] == system}
    return values.pop() if len(values) == 1 else ""


def identifiers(resource: dict[str, Any]) -> list[str]:
    """The identifiers of a resource, each as ``system|value``."""
    listed = resource.get("identifier")
    return [
        f"{each.get('system') or ''}|{each['value']}"
        for each in (listed if isinstance(listed, list) else [listed])
        if isinstance(each, dict) and isinstance(each.get("value"), str)
    ]


def asked(document: dict[str, Any]) -> set[str]:
    """The names in a document that it does not answer itself."""
    wanted: set[str] = set()
    left: list[Any] = [document]
    while left:
        node = left.pop()
        if node.__class__ is list:
            left += node
        elif node.__class__ is dict:
            left += node.values()
            reference, by = node.get("reference"), node.get("identifier")
            if reference.__class__ is str:
                if reference.startswith("urn:"):
                    wanted.add(reference)
                elif (found := by_query(reference)) is not None:
                    wanted.add(named_by(*found))
            elif by.__class__ is dict and "resourceType" not in node and by.get("value").__class__ is str:
                kind = node.get("type")
                wanted.add(
                    named_by(kind if isinstance(kind, str) else "", f"{by.get('system') or ''}|{by['value']}")
                )
    return wanted - {name for name, _ in answered(document)} if wanted else wanted


def answered(document: dict[str, Any], url: Any = "", depth: int = 0) -> Iterator[tuple[str, Place]]:
    """Every name that a resource of a document answers to, and which resource that is."""
    kind, old = document.get("resourceType"), document.get("id")
    if not isinstance(kind, str):
        return
    if kind == "Bundle":
        entries = document.get("entry")
        for entry in entries if isinstance(entries, list) and depth < _NESTED else ():
            if isinstance(entry, dict) and isinstance(entry.get("resource"), dict):
                yield from answered(entry["resource"], entry.get("fullUrl"), depth + 1)
        return
    named = url if isinstance(url, str) and url else ""
    place = (kind, old if isinstance(old, str) and old else named)
    if not place[1]:
        return
    if named.startswith("urn:"):
        yield named, place
    if isinstance(old, str) and _UUID.fullmatch(old) and named != f"urn:uuid:{old}":
        yield f"urn:uuid:{old}", place
    for identifier in identifiers(document):
        yield named_by(kind, identifier), place
        yield named_by("", identifier), place


def look_up(wanted: Iterable[str], sources: Sequence[Source], link_by: str = "") -> Addresses:
    """Look for the resources that names lead to, in all files; people's linking identifiers, too, if there are any."""
    names = set(wanted)
    kinds = {name.partition("?")[0] for name in names if "?" in name} if names else set()
    every = "" in kinds or any("?" not in name for name in names)
    made = Addresses()
    for source in sources if names or link_by else ():
        for document in _readable(source, None if every else kinds | ({"Patient"} if link_by else set())):
            made.note(document, names)
            if link_by:
                made.linked.update(links(document, link_by))
    return made


def among(documents: Sequence[dict[str, Any]]) -> Addresses:
    """Where the references between documents lead that are all at hand."""
    names = {name for document in documents for name in asked(document)} if len(documents) > 1 else set()
    made = Addresses()
    for document in documents if names else ():
        made.note(document, names)
    return made


def links(document: dict[str, Any], link_by: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The Patients of a document by their ids, with the identifier that they are known by at other sites."""
    if document.get("resourceType") == "Bundle" and depth < _NESTED:
        entries = document.get("entry")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("resource"), dict):
                yield from links(entry["resource"], link_by, depth + 1)
    elif document.get("resourceType") == "Patient" and isinstance(document.get("id"), str):
        value = identifier_of(document, link_by)
        if value:
            yield document["id"], value


def asked_in(source: Source) -> set[str]:
    """The names in a file, or a stretch of one, that the documents in it do not answer themselves."""
    found: set[str] = set()
    plain: set[bytes] = set()
    for raw, _ in _numbered(source):
        if source.is_lines and not any(mark in raw for mark in _INSIDE):
            # A single resource whose references are all written out: they are told from its bytes.
            for rest in raw.split(b'"reference":"')[1:]:
                text = rest[: rest.find(b'"')]
                if b"?" in text or text.startswith(b"urn:"):
                    plain.add(text)
            continue
        try:
            found |= asked(parse(raw))
        except Refused:
            continue
    for text in plain:
        found |= asked({"reference": text.decode(errors="replace")})
    return found


def _numbered(source: Source) -> Iterator[tuple[bytes, int]]:
    """The documents of a source as far as it can be read; what is doubtful is refused later, not here."""
    if source.path == STDIN:
        return
    try:
        yield from numbered(source)
    except (Refused, OSError):
        return


def _readable(source: Source, kinds: set[str] | None) -> Iterator[dict[str, Any]]:
    """The documents of a source that may be of some types."""
    for raw, _ in _numbered(source):
        head = _KIND.search(raw, 0, _HEAD) if kinds is not None and source.is_lines else None
        if head is not None and head[1].decode() not in (kinds or ()) and head[1] != b"Bundle":
            continue
        try:
            yield parse(raw)
        except Refused:
            continue
