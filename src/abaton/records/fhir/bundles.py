"""A de-identified Bundle taken apart, for those who work on single records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from abaton.records.stages import Deidentified


def apart(bundle: Deidentified) -> Iterator[Deidentified]:
    """The resources of a de-identified Bundle, each on its own.

    Inside the Bundle a reference is the address of an entry; outside it is written ``Type/id``, as in any
    record that was de-identified alone. Nothing else changes.

    >>> entry = {"fullUrl": "urn:uuid:1", "resource": {"resourceType": "Patient", "id": "A"}}
    >>> other = {"resource": {"resourceType": "Observation", "subject": {"reference": "urn:uuid:1"}}}
    >>> whole = Deidentified({"resourceType": "Bundle", "entry": [entry, other]})
    >>> [record.content.get("subject") for record in apart(whole)]
    [None, {'reference': 'Patient/A'}]
    """
    entries = bundle.content.get("entry", ())
    names = {
        entry["fullUrl"]: f"{entry['resource']['resourceType']}/{entry['resource']['id']}"
        for entry in entries
        if "fullUrl" in entry
    }
    for entry in entries:
        yield Deidentified(_renamed(entry["resource"], names))


def _renamed(node: Any, names: dict[str, str]) -> Any:
    if node.__class__ is dict:
        made = {key: _renamed(value, names) for key, value in node.items()}
        if made.get("reference").__class__ is str:
            made["reference"] = names.get(made["reference"], made["reference"])
        return made
    return [_renamed(each, names) for each in node] if node.__class__ is list else node
