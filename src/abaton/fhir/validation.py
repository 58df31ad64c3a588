"""Validation of resources against R4; problems name paths and rules, never values.

Checked: type and length of ``id``, unknown and required elements, cardinality, JSON type and form of primitives,
duplicate choices, empty elements (ele-1), unresolved references to contained resources (ref-1), unreferenced contained
resources (dom-3), duplicate URLs (bdl-7), and the invariants of single types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from abaton.fhir.elements import (
    ElementDefinition,
    element_table,
    is_primitive,
    is_resource_slot,
    resource_types,
)


class ValidityProblem(NamedTuple):
    """One problem with its path."""

    path: str
    rule: str


_DAY = r"\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?"
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
_ZONE = r"(?:Z|[+-](?:(?:0\d|1[0-3]):[0-5]\d|14:00))"
_FORMS: Mapping[str, re.Pattern[str]] = {
    "id": re.compile(r"[A-Za-z0-9\-.]{1,64}"),
    "code": re.compile(r"[^\s]+(?:\s[^\s]+)*"),
    "uri": re.compile(r"\S*"),
    "url": re.compile(r"\S*"),
    "canonical": re.compile(r"\S*"),
    "oid": re.compile(r"urn:oid:[0-2](?:\.(?:0|[1-9]\d*))+"),
    "uuid": re.compile(r"urn:uuid:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "date": re.compile(_DAY),
    "dateTime": re.compile(rf"{_DAY}|\d{{4}}-\d\d-\d\dT{_CLOCK}{_ZONE}"),
    "instant": re.compile(rf"\d{{4}}-\d\d-\d\dT{_CLOCK}{_ZONE}"),
    "time": re.compile(_CLOCK),
    "base64Binary": re.compile(r"[A-Za-z0-9+/=\s]*"),
}
_INTEGER_TYPES = frozenset({"integer", "positiveInt", "unsignedInt"})


def validate_resource(record: dict[str, Any]) -> list[ValidityProblem]:
    """Validate a FHIR R4 resource and return all its problems.

    >>> validate_resource({"resourceType": "Patient", "id": "x" * 65})
    [ValidityProblem(path='Patient.id', rule='id is not 1 to 64 letters, digits, hyphens or points')]
    """
    return list(_validate_resource(record, top=True))


def _validate_resource(node: Any, *, top: bool) -> Iterator[ValidityProblem]:
    kind = node.get("resourceType") if isinstance(node, dict) else None
    if not isinstance(kind, str) or kind not in resource_types():
        yield ValidityProblem("(resource)", "its resource type is not in R4")
        return
    name = node.get("id")
    if name is not None and not (isinstance(name, str) and _FORMS["id"].fullmatch(name)):
        yield ValidityProblem(f"{kind}.id", "id is not 1 to 64 letters, digits, hyphens or points")
    body = {key: value for key, value in node.items() if key not in ("resourceType", "id")}
    yield from _validate_object(body, kind, kind)
    yield from _validate_invariants(node, kind, kind)
    if kind == "Bundle":
        yield from _validate_bundle(node)
    elif top or node.get("contained"):
        yield from _validate_contained(node, kind)


def _validate_object(node: dict[str, Any], kind: str, path: str) -> Iterator[ValidityProblem]:
    fields = element_table()[kind]
    choices: dict[str, int] = {}
    for key, value in node.items():
        element = fields.get(key)
        beside = fields.get(key[1:]) if key.startswith("_") else None
        if element is None and beside is None:
            yield ValidityProblem(f"{path}.(unknown)", "R4 has no such element")
        elif element is not None:
            if element.is_choice:
                choices[element.stem] = choices.get(element.stem, 0) + 1
            yield from _validate_element(value, element, f"{path}.{key}")
    for element in fields.values():
        if (
            element.is_required
            and not element.is_choice
            and element.name not in node
            and f"_{element.name}" not in node
        ):
            yield ValidityProblem(f"{path}.{element.name}", "required element is missing")
    required_stems = {e.stem for e in fields.values() if e.is_choice and e.is_required}
    for stem in required_stems:
        if not any(
            e.name in node or f"_{e.name}" in node for e in fields.values() if e.is_choice and e.stem == stem
        ):
            yield ValidityProblem(f"{path}.{stem}[x]", "required element is missing")
    yield from (
        ValidityProblem(f"{path}.{stem}[x]", "choice is made twice") for stem, n in choices.items() if n > 1
    )
    if path != kind:
        yield from _validate_invariants(node, kind, path)


def _validate_invariants(node: dict[str, Any], kind: str, path: str) -> Iterator[ValidityProblem]:
    invariant = _INVARIANTS.get(kind)
    if invariant is not None:
        yield from (ValidityProblem(path, rule) for rule in invariant(node))


def _validate_element(value: Any, element: ElementDefinition, path: str) -> Iterator[ValidityProblem]:
    if element.is_list != isinstance(value, list):
        yield ValidityProblem(path, "a list where none belongs, or none where one does")
        return
    values = value if isinstance(value, list) else [value]
    if not values:
        yield ValidityProblem(path, "ele-1: empty list")
    for item in values:
        if is_primitive(element.type):
            yield from _validate_primitive(item, element.type, path)
        elif not isinstance(item, dict):
            yield ValidityProblem(path, "not an object")
        elif not item:
            yield ValidityProblem(path, "ele-1: empty object")
        elif is_resource_slot(element.type):
            yield from _validate_resource(item, top=False)
        else:
            yield from _validate_object(item, element.type, path)


def _validate_primitive(value: Any, kind: str, path: str) -> Iterator[ValidityProblem]:
    if kind == "boolean":
        is_valid = isinstance(value, bool)
    elif kind in _INTEGER_TYPES:
        is_valid = isinstance(value, int) and not isinstance(value, bool)
    elif kind == "decimal":
        is_valid = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        form = _FORMS.get(kind)
        is_valid = (
            isinstance(value, str) and value != "" and (form is None or form.fullmatch(value) is not None)
        )
        is_valid = is_valid or value is None  # null in a list, with an extension beside it
    if not is_valid:
        yield ValidityProblem(path, f"not a valid {kind}")


def _references(node: Any, *, into: bool = True) -> Iterator[str]:
    if isinstance(node, dict):
        reference = node.get("reference")
        if isinstance(reference, str):
            yield reference
        for key, child in node.items():
            if into or key not in ("contained", "entry"):
                yield from _references(child, into=into)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child, into=into)


def _validate_contained(node: dict[str, Any], kind: str) -> Iterator[ValidityProblem]:
    contained = [resource for resource in node.get("contained", ()) if isinstance(resource, dict)]
    ids = [resource.get("id") for resource in contained]
    references = {reference[1:] for reference in _references(node) if reference.startswith("#")}
    if references - set(ids) - {""}:
        yield ValidityProblem(kind, "ref-1: reference to a contained resource that is not there")
    for resource in contained:
        has_parent_reference = "#" in list(_references(resource))
        if resource.get("id") not in references and not has_parent_reference:
            yield ValidityProblem(f"{kind}.contained", "dom-3: contained resource without a reference")


def _validate_bundle(node: dict[str, Any]) -> Iterator[ValidityProblem]:
    entries = [entry for entry in node.get("entry", ()) if isinstance(entry, dict)]
    addresses = [entry["fullUrl"] for entry in entries if "fullUrl" in entry]
    versions = [
        (entry["fullUrl"], entry.get("resource", {}).get("meta", {}).get("versionId"))
        for entry in entries
        if "fullUrl" in entry
    ]
    if len(set(versions)) != len(versions):
        yield ValidityProblem("Bundle.entry.fullUrl", "bdl-7: address used twice")
    for entry in entries:
        for reference in _references(entry.get("resource")):
            if reference.startswith("urn:uuid:") and addresses and reference not in addresses:
                yield ValidityProblem("Bundle.entry.resource", "reference to an entry that is not there")
    if node.get("type") == "document":
        identifier = node.get("identifier")
        if not (isinstance(identifier, dict) and "system" in identifier and "value" in identifier):
            yield ValidityProblem("Bundle.identifier", "bdl-9: a document has an identifier")
        if "timestamp" not in node:
            yield ValidityProblem("Bundle.timestamp", "bdl-10: a document has a date")


def _has(node: dict[str, Any], *names: str) -> bool:
    return any(name in node for name in names)


def _observation(node: dict[str, Any]) -> Iterator[str]:
    if "dataAbsentReason" in node and any(key.startswith("value") for key in node):
        yield "obs-6: a value and a reason for its absence"


def _section(node: dict[str, Any]) -> Iterator[str]:
    if not _has(node, "text", "entry", "section"):
        yield "cmp-1: a section without text, entries or sections"
    if _has(node, "entry") and _has(node, "emptyReason"):
        yield "cmp-2: entries and a reason for their absence"


def _requires_any(rule: str, *names: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    def check(node: dict[str, Any]) -> Iterator[str]:
        if not _has(node, *names):
            yield rule

    return check


def _quantity(node: dict[str, Any]) -> Iterator[str]:
    if "code" in node and "system" not in node:
        yield "qty-3: a coded unit without a system"


def _extension(node: dict[str, Any]) -> Iterator[str]:
    if ("extension" in node) == any(key.lstrip("_").startswith("value") for key in node):
        yield "ext-1: an extension has a value or extensions, not both"


_INVARIANTS: Mapping[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "Composition.section": _section,
    "Condition.evidence": _requires_any("con-2: evidence without a code or detail", "code", "detail"),
    "Condition.stage": _requires_any("con-1: a stage without summary or assessment", "summary", "assessment"),
    "Consent": _requires_any("ppc-1: a consent without a policy", "policy", "policyRule"),
    "Extension": _extension,
    "Observation": _observation,
    "Organization": _requires_any("org-1: an organisation without name or identifier", "name", "identifier"),
    "Patient.contact": _requires_any(
        "pat-1: a contact without details", "name", "telecom", "address", "organization"
    ),
    "Quantity": _quantity,
}
