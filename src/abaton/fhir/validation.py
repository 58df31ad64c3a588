"""Checks of a record against R4, beyond what common validators look at; problems name places and rules, never values.

Looked at: the type and length of ``id``, unknown elements, required ones, lists where lists belong, the
JSON type and form of plain values, choices made twice, nothing empty (ele-1), references that lead nowhere
(ref-1), contained resources nobody refers to (dom-3), addresses used twice (bdl-7), and the invariants of
single types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from abaton.fhir.elements import Element, is_primitive, is_resource_slot, resources, table


class ValidityProblem(NamedTuple):
    """One thing that is wrong, and where."""

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
_WHOLE = frozenset({"integer", "positiveInt", "unsignedInt"})


def problems(record: dict[str, Any]) -> list[ValidityProblem]:
    """Everything that is wrong with a record.

    >>> problems({"resourceType": "Patient", "id": "x" * 65})
    [ValidityProblem(path='Patient.id', rule='id is not 1 to 64 letters, digits, hyphens or points')]
    """
    return list(_resource(record, top=True))


def _resource(node: Any, *, top: bool) -> Iterator[ValidityProblem]:
    kind = node.get("resourceType") if isinstance(node, dict) else None
    if not isinstance(kind, str) or kind not in resources():
        yield ValidityProblem("(resource)", "no type that R4 knows")
        return
    name = node.get("id")
    if name is not None and not (isinstance(name, str) and _FORMS["id"].fullmatch(name)):
        yield ValidityProblem(f"{kind}.id", "id is not 1 to 64 letters, digits, hyphens or points")
    body = {key: value for key, value in node.items() if key not in ("resourceType", "id")}
    yield from _object(body, kind, kind)
    yield from _broken(node, kind, kind)
    if kind == "Bundle":
        yield from _bundle(node)
    elif top or node.get("contained"):
        yield from _contained(node, kind)


def _object(node: dict[str, Any], kind: str, path: str) -> Iterator[ValidityProblem]:
    fields = table()[kind]
    choices: dict[str, int] = {}
    for key, value in node.items():
        element = fields.get(key)
        beside = fields.get(key[1:]) if key.startswith("_") else None
        if element is None and beside is None:
            yield ValidityProblem(f"{path}.(unknown)", "R4 has no such element")
        elif element is not None:
            if element.choice:
                choices[element.stem] = choices.get(element.stem, 0) + 1
            yield from _element(value, element, f"{path}.{key}")
    for element in fields.values():
        if (
            element.required
            and not element.choice
            and element.name not in node
            and f"_{element.name}" not in node
        ):
            yield ValidityProblem(f"{path}.{element.name}", "required element is missing")
    needed = {e.stem for e in fields.values() if e.choice and e.required}
    for stem in needed:
        if not any(
            e.name in node or f"_{e.name}" in node for e in fields.values() if e.choice and e.stem == stem
        ):
            yield ValidityProblem(f"{path}.{stem}[x]", "required element is missing")
    yield from (
        ValidityProblem(f"{path}.{stem}[x]", "choice is made twice") for stem, n in choices.items() if n > 1
    )
    if path != kind:
        yield from _broken(node, kind, path)


def _broken(node: dict[str, Any], kind: str, path: str) -> Iterator[ValidityProblem]:
    invariant = _INVARIANTS.get(kind)
    if invariant is not None:
        yield from (ValidityProblem(path, rule) for rule in invariant(node))


def _element(value: Any, element: Element, path: str) -> Iterator[ValidityProblem]:
    if element.many != isinstance(value, list):
        yield ValidityProblem(path, "a list where none belongs, or none where one does")
        return
    values = value if isinstance(value, list) else [value]
    if not values:
        yield ValidityProblem(path, "ele-1: empty list")
    for each in values:
        if is_primitive(element.type):
            yield from _plain(each, element.type, path)
        elif not isinstance(each, dict):
            yield ValidityProblem(path, "not an object")
        elif not each:
            yield ValidityProblem(path, "ele-1: empty object")
        elif is_resource_slot(element.type):
            yield from _resource(each, top=False)
        else:
            yield from _object(each, element.type, path)


def _plain(value: Any, kind: str, path: str) -> Iterator[ValidityProblem]:
    if kind == "boolean":
        right = isinstance(value, bool)
    elif kind in _WHOLE:
        right = isinstance(value, int) and not isinstance(value, bool)
    elif kind == "decimal":
        right = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        form = _FORMS.get(kind)
        right = isinstance(value, str) and value != "" and (form is None or form.fullmatch(value) is not None)
        right = right or value is None  # a gap in a list, filled by the extension beside it
    if not right:
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


def _contained(node: dict[str, Any], kind: str) -> Iterator[ValidityProblem]:
    inside = [each for each in node.get("contained", ()) if isinstance(each, dict)]
    ids = [each.get("id") for each in inside]
    pointed = {reference[1:] for reference in _references(node) if reference.startswith("#")}
    if pointed - set(ids) - {""}:
        yield ValidityProblem(kind, "ref-1: reference to a contained resource that is not there")
    for each in inside:
        upward = "#" in list(_references(each))
        if each.get("id") not in pointed and not upward:
            yield ValidityProblem(f"{kind}.contained", "dom-3: contained resource that nobody refers to")


def _bundle(node: dict[str, Any]) -> Iterator[ValidityProblem]:
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


def _needs(rule: str, *names: str) -> Callable[[dict[str, Any]], Iterator[str]]:
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
    "Condition.evidence": _needs("con-2: evidence without a code or detail", "code", "detail"),
    "Condition.stage": _needs("con-1: a stage without summary or assessment", "summary", "assessment"),
    "Consent": _needs("ppc-1: a consent without a policy", "policy", "policyRule"),
    "Extension": _extension,
    "Observation": _observation,
    "Organization": _needs("org-1: an organisation without name or identifier", "name", "identifier"),
    "Patient.contact": _needs(
        "pat-1: a contact without details", "name", "telecom", "address", "organization"
    ),
    "Quantity": _quantity,
}
