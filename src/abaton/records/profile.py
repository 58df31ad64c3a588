"""Profile of records: codes, units, coded values and years as counts, without values.

Records are counted as a stream in bounded memory: subjects are remembered only up to `min_cell_count` per entry, as
hashes that are meaningless outside the process. Counts of fewer subjects are suppressed. Codes outside public
terminologies are shown only if enough subjects have them, since local codes and texts may contain names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from abaton.fhir.bundles import SUBJECT_ELEMENTS, bundle_resources
from abaton.fhir.elements import element_table
from abaton.fhir.partial_dates import parse_year
from abaton.fhir.terminology import is_known
from abaton.fhir.ucum import parse_unit
from abaton.fhirpath.functions import reference_key, resource_key

_CODED = {
    "AllergyIntolerance": "code",
    "Condition": "code",
    "Device": "type",
    "DiagnosticReport": "code",
    "Encounter": "type",
    "Immunization": "vaccineCode",
    "MedicationAdministration": "medicationCodeableConcept",
    "MedicationRequest": "medicationCodeableConcept",
    "MedicationStatement": "medicationCodeableConcept",
    "Observation": "code",
    "Procedure": "code",
    "ServiceRequest": "code",
}
"""Element with the code, by resource type."""
_DATE_ELEMENTS = {
    "AllergyIntolerance": ("onsetDateTime", "recordedDate"),
    "Condition": ("onsetDateTime", "onsetPeriod", "recordedDate"),
    "DiagnosticReport": ("effectiveDateTime", "effectivePeriod", "issued"),
    "Encounter": ("period",),
    "Immunization": ("occurrenceDateTime",),
    "MedicationAdministration": ("effectiveDateTime", "effectivePeriod"),
    "MedicationRequest": ("authoredOn",),
    "MedicationStatement": ("effectiveDateTime", "effectivePeriod", "dateAsserted"),
    "Observation": ("effectiveDateTime", "effectivePeriod", "effectiveInstant", "issued"),
    "Patient": ("birthDate",),
    "Procedure": ("performedDateTime", "performedPeriod"),
    "ServiceRequest": ("authoredOn",),
}
"""Elements with the date, by resource type; the first that is present counts."""

NO_UNIT, OTHER_UNIT = "no unit", "not a UCUM unit"
_MAX_ENTRIES, _MAX_KEYS = 50_000, 200
_MAX_DISPLAY_LENGTH = 80

Code = tuple[str, str]
"""URL of a code system, and a code; both empty for a record without a code."""


@dataclass(slots=True)
class ProfileCount:
    """Number of records, and their subjects up to the minimum cell count."""

    records: int = 0
    subjects: set[int] = field(default_factory=set)

    def add(self, subject: int, min_cell_count: int) -> None:
        """Count one record of a subject in the record profile."""
        self.records += 1
        if len(self.subjects) < min_cell_count:
            self.subjects.add(subject)

    def released(self, min_cell_count: int) -> str:
        """Return a profile's number of records, suppressed if fewer than `min_cell_count` subjects have them."""
        return f"{self.records}" if len(self.subjects) >= min_cell_count else f"<{min_cell_count}"


@dataclass(slots=True)
class ProfileEntry(ProfileCount):
    """Records of one type and code: years, units, coded values and types of other values."""

    years: dict[int, ProfileCount] = field(default_factory=dict)
    units: dict[str, ProfileCount] = field(default_factory=dict)
    coded_values: dict[Code, ProfileCount] = field(default_factory=dict)
    value_types: dict[str, ProfileCount] = field(default_factory=dict)
    display: str = field(default="", repr=False)
    """First text beside the code, for the comparison with other codes; not released."""

    def year_range(self, min_cell_count: int) -> tuple[int, int] | None:
        """Return the years of a profile entry: first and last with at least `min_cell_count` subjects."""
        years = [year for year, count in self.years.items() if len(count.subjects) >= min_cell_count]
        return (min(years), max(years)) if years else None


class RecordProfile:
    """Counts over a stream of records.

    Args:
        min_cell_count: Minimum cell count.
    """

    def __init__(self, min_cell_count: int = 5) -> None:
        self.min_cell_count = min_cell_count
        self.types: dict[str, ProfileCount] = {}
        self.entries: dict[tuple[str, Code], ProfileEntry] = {}
        self.uncounted = Counter[str]()
        """Number of records by type whose codes are beyond the limit of entries."""

    def add(self, document: Mapping[str, Any]) -> None:
        """Add a resource, or those of a Bundle, to the counts of the record profile."""
        for resource in bundle_resources(dict(document)):
            resource_type = resource.get("resourceType")
            if not isinstance(resource_type, str) or not resource_type.isalpha():
                continue
            subject = hash(_subject_key(resource, resource_type))
            self.types.setdefault(resource_type, ProfileCount()).add(subject, self.min_cell_count)
            year = _year(resource, resource_type)
            if resource_type == "Patient":
                self._add_patient(resource, subject, year)
            elif resource_type in _CODED:
                self._add_coded(resource_type, resource.get(_CODED[resource_type]), resource, subject, year)
                for component in _list(resource.get("component")):
                    self._add_coded(
                        f"{resource_type}.component", component.get("code"), component, subject, year
                    )

    def _add_patient(self, resource: Mapping[str, Any], subject: int, year: int | None) -> None:
        entry = self._entry("Patient", ("", ""))
        if entry is not None:
            self._count(entry, subject, year)
            sex = resource.get("gender")
            if isinstance(sex, str) and sex in ("female", "male", "other", "unknown"):
                entry.coded_values.setdefault(("", sex), ProfileCount()).add(subject, self.min_cell_count)

    def _add_coded(
        self, resource_type: str, concept: Any, element: Mapping[str, Any], subject: int, year: int | None
    ) -> None:
        """Count a record, or a component of one, under each of its codes in the profile."""
        for code, display in dict(_codings(concept)).items() or [(("", ""), "")]:
            entry = self._entry(resource_type, code)
            if entry is None:
                continue
            entry.display = entry.display or display[:_MAX_DISPLAY_LENGTH]
            self._count(entry, subject, year)
            if resource_type.startswith("Observation"):
                self._add_value(entry, element, subject)

    def _entry(self, resource_type: str, code: Code) -> ProfileEntry | None:
        entry = self.entries.get((resource_type, code))
        if entry is None:
            if len(self.entries) >= _MAX_ENTRIES:
                self.uncounted[resource_type] += 1
                return None
            entry = self.entries[resource_type, code] = ProfileEntry()
        return entry

    def _count(self, entry: ProfileEntry, subject: int, year: int | None) -> None:
        entry.add(subject, self.min_cell_count)
        if year is not None:
            entry.years.setdefault(year, ProfileCount()).add(subject, self.min_cell_count)

    def _add_value(self, entry: ProfileEntry, element: Mapping[str, Any], subject: int) -> None:
        quantity = element.get("valueQuantity")
        if isinstance(quantity, dict):
            _count_for(entry.units, _unit(quantity)).add(subject, self.min_cell_count)
        elif "valueCodeableConcept" in element:
            for code, _ in _codings(element["valueCodeableConcept"]):
                _count_for(entry.coded_values, code).add(subject, self.min_cell_count)
        else:
            types = [
                key.removeprefix("value") for key in element if key.startswith("value") and key != "value"
            ]
            value_type = types[0] if types and types[0].isalpha() else "no value"
            _count_for(entry.value_types, value_type).add(subject, self.min_cell_count)

    def released_types(self) -> dict[str, str]:
        """Return the profile's records by type, suppressed where the number reveals a suppressed entry."""
        released = {}
        for resource_type, count in sorted(self.types.items()):
            entries = [entry for (name, _), entry in self.entries.items() if name == resource_type]
            reveals = _reveals_part(entries, self.min_cell_count) and count.records >= self.min_cell_count
            released[resource_type] = (
                f"≥{self.min_cell_count}" if reveals else count.released(self.min_cell_count)
            )
        return released

    def is_releasable(self, resource_type: str, code: Code) -> bool:
        """Return whether a profile may show a code: a public one, or one that enough subjects have."""
        entry = self.entries[resource_type, code]
        return not code[1] or is_known(*code) or len(entry.subjects) >= self.min_cell_count


def suppress_parts(parts: Mapping[Any, ProfileCount], min_cell_count: int) -> dict[Any, str]:
    """Return the counts of the parts of a profile entry, with primary and complementary suppression.

    >>> small, large = ProfileCount(2, {1}), ProfileCount(40, {1, 2, 3, 4, 5})
    >>> suppress_parts({"no unit": small, "mm[Hg]": large}, 5)
    {'no unit': '<5', 'mm[Hg]': '≥5'}
    """
    released = {key: count.released(min_cell_count) for key, count in parts.items()}
    if _reveals_part(list(parts.values()), min_cell_count):
        large = [key for key, count in parts.items() if len(count.subjects) >= min_cell_count]
        released |= {max(large, key=lambda key: parts[key].records): f"≥{min_cell_count}"} if large else {}
    return released


def _reveals_part(parts: Sequence[ProfileCount], min_cell_count: int) -> bool:
    """Return whether the sum and the released parts of a profile entry reveal a suppressed part."""
    small = [count.records for count in parts if len(count.subjects) < min_cell_count]
    return bool(small) and (len(small) == 1 or sum(small) == len(small))


def _subject_key(resource: dict[str, Any], resource_type: str) -> str | None:
    """Return the Patient under whom a profile counts a resource; the resource itself for other types."""
    has_subject = resource_type != "Patient" and any(
        name in element_table().get(resource_type, ()) for name in SUBJECT_ELEMENTS
    )
    key = reference_key([resource], "Patient") if has_subject else resource_key([resource])
    return key[0] if key else None


def _count_for(counts: dict[Any, ProfileCount], key: Any) -> ProfileCount:
    """Return the profile count of a unit or value; keys beyond the limit share one count."""
    if key not in counts and len(counts) >= _MAX_KEYS:
        key = ("", "…") if isinstance(key, tuple) else "…"
    return counts.setdefault(key, ProfileCount())


def _unit(quantity: Mapping[str, Any]) -> str:
    unit = quantity.get("code")
    if not isinstance(unit, str):
        return NO_UNIT
    return unit if parse_unit(unit) is not None else OTHER_UNIT


def _codings(concept: Any) -> Iterator[tuple[Code, str]]:
    for item in _list(concept):
        for coding in _list(item.get("coding")):
            system, code, display = (
                coding.get("system"),
                coding.get("code"),
                coding.get("display") or item.get("text"),
            )
            if isinstance(code, str):
                yield (
                    (system if isinstance(system, str) else "", code),
                    display if isinstance(display, str) else "",
                )


def _list(value: Any) -> list[dict[str, Any]]:
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, dict)]


def _year(resource: Mapping[str, Any], resource_type: str) -> int | None:
    for name in _DATE_ELEMENTS.get(resource_type, ()):
        value = resource.get(name)
        text = value.get("start") if isinstance(value, dict) else value
        if text is not None:
            return parse_year(text)
    return None
