"""Splitting of Bundles into resources, and the targets of references."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from abaton.fhir.elements import resource_types
from abaton.record_types import DeidentifiedRecord, Json

_UUID = "urn:uuid:"


def split_deidentified_bundle(bundle: DeidentifiedRecord) -> Iterator[DeidentifiedRecord]:
    """Split a de-identified Bundle into its resources; see :func:`bundle_resources`.

    >>> bundle = DeidentifiedRecord({"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient"}}]})
    >>> [record.type for record in split_deidentified_bundle(bundle)]
    ['Patient']
    """
    for resource in bundle_resources(bundle.content):
        yield DeidentifiedRecord(resource)


def bundle_resources(document: Json) -> Iterator[Json]:
    """Yield a resource, or the resources of a Bundle as stand-alone resources; the document is not modified.

    References to the ``fullUrl`` of an entry are rewritten to ``Type/id``. An entry with a ``urn:uuid:`` URL and no id
    gets the UUID as its id.

    >>> entry = {"fullUrl": "urn:uuid:1", "resource": {"resourceType": "Patient", "id": "A"}}
    >>> other = {"resource": {"resourceType": "Observation", "subject": {"reference": "urn:uuid:1"}}}
    >>> [record.get("subject") for record in bundle_resources({"resourceType": "Bundle", "entry": [entry, other]})]
    [None, {'reference': 'Patient/A'}]
    """
    if document.get("resourceType") != "Bundle":
        yield document
        return
    entries = document.get("entry")
    entries_by_url = [
        (_full_url(entry), entry["resource"])
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("resource"), dict)
    ]
    with_ids = [_with_id(address, resource) for address, resource in entries_by_url]
    names = {
        address: f"{resource.get('resourceType')}/{resource['id']}"
        for (address, _), resource in zip(entries_by_url, with_ids, strict=True)
        if address and "id" in resource
    }
    for resource in with_ids:
        yield from bundle_resources(_rewrite_references(resource, names))


def _full_url(entry: Mapping[str, Any]) -> str:
    address = entry.get("fullUrl")
    return address if isinstance(address, str) else ""


def _with_id(address: str, resource: Json) -> Json:
    if "id" in resource or not address.startswith(_UUID):
        return resource
    return {**resource, "id": address.removeprefix(_UUID)}


def _rewrite_references(node: Any, names: dict[str, str]) -> Any:
    """Rewrite references to entries of a Bundle as ``Type/id``; parts without references are the same objects."""
    if node.__class__ is dict:
        rewritten = {key: _rewrite_references(value, names) for key, value in node.items()}
        if rewritten.get("reference").__class__ is str:
            rewritten["reference"] = names.get(rewritten["reference"], rewritten["reference"])
        same = all(rewritten[key] is value for key, value in node.items())
        return node if same else rewritten
    if node.__class__ is list:
        items = [_rewrite_references(item, names) for item in node]
        return node if all(a is b for a, b in zip(items, node, strict=True)) else items
    return node


LITERAL_REFERENCE = re.compile(
    r"(?:(https?://.+|[a-z][a-z0-9+.-]*:.+)/)?([A-Z][A-Za-z]+)/([^/?#|]+)(?:/_history/[^/]*)?(?:#.*)?"
)
"""A reference by type and id: the server, the type, the id; with or without a version."""
_QUERY = re.compile(r"(?:(?:https?://.+)/)?([A-Z][A-Za-z]+)\?(.+)", re.DOTALL)
SUBJECT_ELEMENTS = ("subject", "patient", "beneficiary", "individual", "for", "candidate")
"""The elements in which a resource names the person it is about."""


def reference_target(reference_object: object) -> str:
    """Return one name for the target of a FHIR Reference in any form; empty if none or a contained resource.

    >>> reference_target({"reference": "https://h/r4/Patient/1/_history/2"})
    'Patient/1'
    >>> reference_target({"reference": "Patient?identifier=urn:x|7"})
    'identifier urn:x|7'
    """
    if not isinstance(reference_object, dict):
        return ""
    reference, identifier = reference_object.get("reference"), reference_object.get("identifier")
    if isinstance(reference, str) and reference:
        match = LITERAL_REFERENCE.fullmatch(reference) if "/" in reference else None
        if match is not None and match[2] in resource_types():
            return f"{match[2]}/{match[3]}"
        if (conditional := conditional_identifier(reference)) is not None:
            return f"identifier {conditional[1]}"
        return "" if reference.startswith("#") else reference
    if isinstance(identifier, dict) and isinstance(identifier.get("value"), str):
        return f"identifier {identifier.get('system') or ''}|{identifier['value']}"
    return ""


def conditional_identifier(reference: str) -> tuple[str, str] | None:
    """Return type and identifier of a conditional reference, as in transaction Bundles: ``Patient?identifier=…``.

    >>> conditional_identifier("Patient?identifier=urn:x|7"), conditional_identifier("Patient?name=Smith")
    (('Patient', 'urn:x|7'), None)
    """
    query = _QUERY.fullmatch(reference) if "?" in reference else None
    pairs = parse_qsl(query[2]) if query else []
    return (query[1], pairs[0][1]) if query and len(pairs) == 1 and pairs[0][0] == "identifier" else None


def server_url(full_url: object) -> str:
    """Return the server in the ``fullUrl`` of a Bundle's entry, if it has one."""
    match = LITERAL_REFERENCE.fullmatch(full_url) if isinstance(full_url, str) else None
    return (match[1] or "") if match is not None else ""
