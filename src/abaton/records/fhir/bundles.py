"""Bundles taken apart, for those who work on single records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
