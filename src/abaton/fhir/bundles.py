"""Bundles taken apart, for those who work on single records.

References between resources: what each of FHIR's forms points at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from abaton.fhir.elements import resources
from abaton.record_types import Deidentified, Json

_UUID = "urn:uuid:"


def apart(bundle: Deidentified) -> Iterator[Deidentified]:
    """The resources of a de-identified Bundle, each on its own; see :func:`opened`.

    >>> whole = Deidentified({"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient"}}]})
    >>> [record.type for record in apart(whole)]
    ['Patient']
    """
    for resource in opened(bundle.content):
        yield Deidentified(resource)


def opened(document: Json) -> Iterator[Json]:
    """A resource, or the resources of a Bundle, each as if it had stood alone; what was given is not changed.

    Inside the Bundle a reference may be the address of an entry; outside it is written ``Type/id``. An entry that has
    only an address, and no id yet, is known by that.

    >>> entry = {"fullUrl": "urn:uuid:1", "resource": {"resourceType": "Patient", "id": "A"}}
    >>> other = {"resource": {"resourceType": "Observation", "subject": {"reference": "urn:uuid:1"}}}
    >>> [record.get("subject") for record in opened({"resourceType": "Bundle", "entry": [entry, other]})]
    [None, {'reference': 'Patient/A'}]
    """
    if document.get("resourceType") != "Bundle":
        yield document
        return
    entries = document.get("entry")
    found = [
        (_address(entry), entry["resource"])
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("resource"), dict)
    ]
    named = [_named(address, resource) for address, resource in found]
    names = {
        address: f"{resource.get('resourceType')}/{resource['id']}"
        for (address, _), resource in zip(found, named, strict=True)
        if address and "id" in resource
    }
    for resource in named:
        yield from opened(_renamed(resource, names))


def _address(entry: Mapping[str, Any]) -> str:
    address = entry.get("fullUrl")
    return address if isinstance(address, str) else ""


def _named(address: str, resource: Json) -> Json:
    if "id" in resource or not address.startswith(_UUID):
        return resource
    return {**resource, "id": address.removeprefix(_UUID)}


def _renamed(node: Any, names: dict[str, str]) -> Any:
    """The same content with references renamed; what holds none is the same object as before."""
    if node.__class__ is dict:
        made = {key: _renamed(value, names) for key, value in node.items()}
        if made.get("reference").__class__ is str:
            made["reference"] = names.get(made["reference"], made["reference"])
        same = all(made[key] is value for key, value in node.items())
        return node if same else made
    if node.__class__ is list:
        items = [_renamed(each, names) for each in node]
        return node if all(a is b for a, b in zip(items, node, strict=True)) else items
    return node


LITERAL = re.compile(
    r"(?:(https?://.+|[a-z][a-z0-9+.-]*:.+)/)?([A-Z][A-Za-z]+)/([^/?#|]+)(?:/_history/[^/]*)?(?:#.*)?"
)
"""A reference by type and id: the server, the type, the id; with or without a version."""
_QUERY = re.compile(r"(?:(?:https?://.+)/)?([A-Z][A-Za-z]+)\?(.+)", re.DOTALL)
SUBJECTS = ("subject", "patient", "beneficiary", "individual", "for", "candidate")
"""The elements in which a resource names the person it is about."""


def target_of(pointer: object) -> str:
    """One name for what a Reference points at, whichever form it has; empty if it points nowhere else.

    >>> target_of({"reference": "https://h/r4/Patient/1/_history/2"}), target_of({"reference": "Patient/1"})
    ('Patient/1', 'Patient/1')
    >>> target_of({"reference": "Patient?identifier=urn:x|7"})
    'identifier urn:x|7'
    """
    if not isinstance(pointer, dict):
        return ""
    reference, by = pointer.get("reference"), pointer.get("identifier")
    if isinstance(reference, str) and reference:
        match = LITERAL.fullmatch(reference) if "/" in reference else None
        if match is not None and match[2] in resources():
            return f"{match[2]}/{match[3]}"
        if (asked := by_query(reference)) is not None:
            return f"identifier {asked[1]}"
        return "" if reference.startswith("#") else reference
    if isinstance(by, dict) and isinstance(by.get("value"), str):
        return f"identifier {by.get('system') or ''}|{by['value']}"
    return ""


def by_query(reference: str) -> tuple[str, str] | None:
    """The type and the identifier in a conditional reference, if it asks for one identifier.

    >>> by_query("Patient?identifier=urn:x|7"), by_query("Patient?name=Smith")
    (('Patient', 'urn:x|7'), None)
    """
    query = _QUERY.fullmatch(reference) if "?" in reference else None
    pairs = parse_qsl(query[2]) if query else []
    return (query[1], pairs[0][1]) if query and len(pairs) == 1 and pairs[0][0] == "identifier" else None


def server_of(full_url: object) -> str:
    """The server in the address of an entry, if it has one."""
    match = LITERAL.fullmatch(full_url) if isinstance(full_url, str) else None
    return (match[1] or "") if match is not None else ""
