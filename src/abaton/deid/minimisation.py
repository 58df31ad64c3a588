"""Data minimisation: a study's data requirements select resources and elements before the rules apply.

Elements that R4 requires are kept, and so is the reference to the subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from abaton.deid.context import TransformLog
from abaton.deid.settings import CodeFilter, DataRequest, DataRequirement, DateFilter, RequirementPurpose
from abaton.errors import SettingsError
from abaton.fhir.elements import child_elements, element_table, resource_types
from abaton.fhir.partial_dates import periods_overlap
from abaton.fhir.versions import foreign_elements, refuse_version

_ALWAYS_KEPT = frozenset(
    {"resourceType", "id", "meta", "identifier", "subject", "patient", "modifierExtension"}
)
_DATE_ELEMENTS = [
    "effectiveDateTime",
    "effectivePeriod",
    "effectiveInstant",
    "performedDateTime",
    "performedPeriod",
    "occurrenceDateTime",
    "occurrencePeriod",
    "onsetDateTime",
    "onsetPeriod",
    "authoredOn",
    "period",
    "date",
    "recordedDate",
    "issued",
    "created",
    "started",
    "dateAsserted",
    "whenHandedOver",
    "recorded",
    "birthDate",
]


class Minimiser:
    """Data requirements of a study, prepared for matching resources.

    >>> from abaton.deid.settings import DataRequirement
    >>> requirement = DataRequirement("Patient", RequirementPurpose.ELEMENT, ("gender",))
    >>> minimiser = Minimiser(DataRequest("heart", (requirement,)))
    >>> patient = {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1950-01-01"}
    >>> sorted(minimiser.select_elements(patient, "Patient", TransformLog()) or {})
    ['gender', 'id', 'resourceType']
    """

    def __init__(self, request: DataRequest) -> None:
        self.request = request
        self._requirements_by_type: dict[str, list[tuple[str, DataRequirement]]] = {}
        self._elements_by_name: dict[str, frozenset[str]] = {}
        for number, requirement in enumerate(request.requirements, 1):
            if requirement.type not in resource_types():
                raise SettingsError(
                    f"data requirement {number} has the unknown resource type '{requirement.type}'",
                    remedy="use the name of an R4 resource type",
                )
            _check_requirement(number, requirement)
            name = f"{number} {requirement.type}"
            self._requirements_by_type.setdefault(requirement.type, []).append((name, requirement))
            self._elements_by_name[name] = frozenset(_elements(requirement.type, requirement))

    def matching_requirements(
        self, raw: dict[str, Any], resource_type: str
    ) -> list[tuple[str, DataRequirement]]:
        """Return the data requirements that a resource matches in data minimisation, each with its name."""
        return [
            (name, requirement)
            for name, requirement in self._requirements_by_type.get(resource_type, ())
            if matches_filters(raw, requirement)
        ]

    def select_elements(
        self, raw: dict[str, Any], resource_type: str, log: TransformLog
    ) -> dict[str, Any] | None:
        """Minimise a resource to the elements that the study's data requirements select, or None."""
        if not self.request.requirements:
            return raw
        # Before elements are dropped: the element that reveals another version may not be required.
        for name, version, json_type in foreign_elements(resource_type):
            if name in raw and (json_type is None or raw[name].__class__ is json_type):
                refuse_version(version)
        required: set[str] = set()
        for name, requirement in self.matching_requirements(raw, resource_type):
            if requirement.purpose is RequirementPurpose.DATA:
                return raw
            if requirement.purpose in (RequirementPurpose.ELEMENT, RequirementPurpose.SUMMARY):
                required |= self._elements_by_name[name]
        if not required:
            return None
        fields = element_table()[resource_type]
        minimised = {}
        for key, value in raw.items():
            if key in required or key.removeprefix("_") in required:
                minimised[key] = value
            else:
                is_known = key.removeprefix("_") in fields
                path = f"{resource_type}.{key}" if is_known else f"{resource_type}.(unknown)"
                log.drops.append((path, "not needed by the study"))
        return minimised


def _check_requirement(number: int, requirement: DataRequirement) -> None:
    fields = element_table()[requirement.type]
    for name in requirement.elements if requirement.purpose is RequirementPurpose.ELEMENT else ():
        if not child_elements(fields, name.partition(".")[0]):
            raise SettingsError(
                f"data requirement {number} has an element '{name}', which {requirement.type} does not have",
                remedy="use an element of that resource type",
            )


def _elements(resource_type: str, requirement: DataRequirement) -> set[str]:
    fields = element_table()[resource_type]
    required = set(_ALWAYS_KEPT) | {element.name for element in fields.values() if element.is_required}
    if requirement.purpose is RequirementPurpose.SUMMARY:
        return required | {element.name for element in fields.values() if element.in_summary}
    for name in requirement.elements:
        required.update(element.name for element in child_elements(fields, name.partition(".")[0]))
    return required


def required_elements(resource_type: str, requirements: Iterable[DataRequirement]) -> frozenset[str]:
    """Return the elements of a resource type that remain after data minimisation.

    >>> requirement = DataRequirement("Patient", RequirementPurpose.ELEMENT, ("gender",))
    >>> sorted(required_elements("Patient", [requirement]) - _ALWAYS_KEPT)
    ['gender']
    """
    required: set[str] = set()
    for requirement in requirements:
        if requirement.purpose is RequirementPurpose.AGE_FROM_DATE and resource_type == "Observation":
            required |= _ALWAYS_KEPT | {"status", "code", "valueQuantity"}  # the age is an Observation
        elif requirement.type == resource_type and requirement.purpose is RequirementPurpose.DATA:
            required |= set(element_table()[resource_type])
        elif requirement.type == resource_type and requirement.purpose in (
            RequirementPurpose.ELEMENT,
            RequirementPurpose.SUMMARY,
        ):
            required |= _elements(resource_type, requirement)
    return frozenset(required)


def matches_filters(raw: dict[str, Any], requirement: DataRequirement) -> bool:
    """Return whether minimisation keeps a resource: it passes all filters of a data requirement.

    >>> matches_filters({"gender": "male"}, DataRequirement("Patient"))
    True
    """
    return all(_has_code(raw, code_filter) for code_filter in requirement.codes) and all(
        _is_in_period(raw, date_filter) for date_filter in requirement.dates
    )


def _values_at(node: Any, names: list[str]) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _values_at(item, names)
    elif not names:
        yield node
    elif isinstance(node, dict):
        name, remaining = names[0].removesuffix("[x]"), names[1:]
        for key, child in node.items():
            if key == name or (key.startswith(name) and key[len(name) : len(name) + 1].isupper()):
                yield from _values_at(child, remaining)


def _has_code(raw: dict[str, Any], required: CodeFilter) -> bool:
    return any(
        pattern.matches(system, code)
        for node in _values_at(raw, required.path.split("."))
        for system, code in _codes(node)
        for pattern in required.codes
    )


def _codes(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield "", node
    elif isinstance(node, dict):
        coding = node.get("coding", [node])
        for item in coding if isinstance(coding, list) else ():
            if isinstance(item, dict):
                yield str(item.get("system", "")), str(item.get("code", ""))


def _is_in_period(raw: dict[str, Any], required: DateFilter) -> bool:
    paths = [required.path] if required.path else _DATE_ELEMENTS
    for path in paths:
        for start, end in _periods(raw, path):
            if periods_overlap(start, end, required.start, required.end):
                return True
    return False


def _periods(raw: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    # A filter on effectivePeriod also applies to effectiveDateTime.
    names = path.split(".")
    for suffix in ("Period", "DateTime", "Date", "Instant"):
        if names[-1].endswith(suffix) and names[-1] != suffix:
            names[-1] = names[-1].removesuffix(suffix)
            break
    for node in _values_at(raw, names):
        if isinstance(node, str):
            yield node, node
        elif isinstance(node, dict):
            yield str(node.get("start", "")), str(node.get("end", ""))
