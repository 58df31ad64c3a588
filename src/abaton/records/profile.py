"""What stands in records: which codes, units, answers and years there are, and how often; never a value.

Counted as a stream and in bounded memory: of people, only as many are remembered for each line as the floor asks for,
as numbers that mean nothing outside this process. What fewer people have than the floor is told as such, and a code of
no public terminology, where a local system may have written anything, is not told at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from abaton.fhir.bundles import SUBJECTS, opened
from abaton.fhir.elements import table
from abaton.fhir.partial_dates import year_of
from abaton.fhir.terminology import is_known
from abaton.fhir.ucum import read_unit
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
"""Where each type of resource says what it is about."""
_WHEN = {
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
"""Where each type of resource says when it was; the first that is there counts."""

NO_UNIT, OTHER_UNIT = "no unit", "unit that is not of UCUM"
_MOST_LINES, _MOST_UNDER = 50_000, 200
_MOST_WORDS = 80

Code = tuple[str, str]
"""A code system's address and a code; both empty where a record has no code."""


@dataclass(slots=True)
class Count:
    """How many records there are, and whether at least as many people as the floor have one."""

    records: int = 0
    people: set[int] = field(default_factory=set)

    def add(self, person: int, floor: int) -> None:
        """Count one record of a person."""
        self.records += 1
        if len(self.people) < floor:
            self.people.add(person)

    def told(self, floor: int) -> str:
        """The number of records, unless few people have them."""
        return f"{self.records}" if len(self.people) >= floor else f"<{floor}"


@dataclass(slots=True)
class Line(Count):
    """The records of one type with one code: their years, units, answers, and other forms of values."""

    years: dict[int, Count] = field(default_factory=dict)
    units: dict[str, Count] = field(default_factory=dict)
    answers: dict[Code, Count] = field(default_factory=dict)
    forms: dict[str, Count] = field(default_factory=dict)
    words: str = field(default="", repr=False)
    """The first text that stood beside the code: to find what is near in meaning, and never shown."""

    def span(self, floor: int) -> tuple[int, int] | None:
        """The first and last year in which at least as many people as the floor have such a record."""
        enough = [year for year, count in self.years.items() if len(count.people) >= floor]
        return (min(enough), max(enough)) if enough else None


class Inventory:
    """Counts over records, one at a time.

    Args:
        floor: The smallest number of people that may be told.
    """

    def __init__(self, floor: int = 5) -> None:
        self.floor = floor
        self.types: dict[str, Count] = {}
        self.lines: dict[tuple[str, Code], Line] = {}
        self.beyond = Counter[str]()

    def note(self, document: Mapping[str, Any]) -> None:
        """Count a resource, or those of a Bundle."""
        for resource in opened(dict(document)):
            kind = resource.get("resourceType")
            if not isinstance(kind, str) or not kind.isalpha():
                continue
            person = hash(_whose(resource, kind))
            self.types.setdefault(kind, Count()).add(person, self.floor)
            year = _year(resource, kind)
            if kind == "Patient":
                self._patient(resource, person, year)
            elif kind in _CODED:
                self._coded(kind, resource.get(_CODED[kind]), resource, person, year)
                for part in _list(resource.get("component")):
                    self._coded(f"{kind}.component", part.get("code"), part, person, year)

    def _patient(self, resource: Mapping[str, Any], person: int, year: int | None) -> None:
        line = self._line("Patient", ("", ""))
        if line is not None:
            line.add(person, self.floor)
            self._when(line, person, year)
            sex = resource.get("gender")
            if isinstance(sex, str) and sex in ("female", "male", "other", "unknown"):
                line.answers.setdefault(("", sex), Count()).add(person, self.floor)

    def _coded(
        self, kind: str, concept: Any, holder: Mapping[str, Any], person: int, year: int | None
    ) -> None:
        """Count one record, or component of one, under each of its codes."""
        for code, words in dict(_codings(concept)).items() or [(("", ""), "")]:
            line = self._line(kind, code)
            if line is None:
                continue
            line.words = line.words or words[:_MOST_WORDS]
            line.add(person, self.floor)
            self._when(line, person, year)
            if kind.startswith("Observation"):
                self._value(line, holder, person)

    def _line(self, kind: str, code: Code) -> Line | None:
        line = self.lines.get((kind, code))
        if line is None:
            if len(self.lines) >= _MOST_LINES:
                self.beyond[kind] += 1
                return None
            line = self.lines[kind, code] = Line()
        return line

    def _when(self, line: Line, person: int, year: int | None) -> None:
        if year is not None:
            line.years.setdefault(year, Count()).add(person, self.floor)

    def _value(self, line: Line, holder: Mapping[str, Any], person: int) -> None:
        quantity = holder.get("valueQuantity")
        if isinstance(quantity, dict):
            _under(line.units, _unit(quantity)).add(person, self.floor)
        elif "valueCodeableConcept" in holder:
            for code, _ in _codings(holder["valueCodeableConcept"]):
                _under(line.answers, code).add(person, self.floor)
        else:
            names = [
                key.removeprefix("value") for key in holder if key.startswith("value") and key != "value"
            ]
            form = names[0] if names and names[0].isalpha() else "no value"
            _under(line.forms, form).add(person, self.floor)

    def told_types(self) -> dict[str, str]:
        """How many records of each type there are, unless that gave away what few people have."""
        made = {}
        for kind, count in sorted(self.types.items()):
            follows = _follows([line for (place, _), line in self.lines.items() if place == kind], self.floor)
            made[kind] = (
                f"≥{self.floor}" if follows and count.records >= self.floor else count.told(self.floor)
            )
        return made

    def shown(self, kind: str, code: Code) -> bool:
        """Whether a code may be told: a public one always, any other only if enough people have it."""
        line = self.lines[kind, code]
        return not code[1] or is_known(*code) or len(line.people) >= self.floor


def _whose(resource: dict[str, Any], kind: str) -> str | None:
    """Whom a resource is about; what can be about nobody, such as an Organization, counts as itself."""
    about_people = kind != "Patient" and any(name in table().get(kind, ()) for name in SUBJECTS)
    key = reference_key([resource], "Patient") if about_people else resource_key([resource])
    return key[0] if key else None


def told_parts(parts: Mapping[Any, Count], floor: int) -> dict[Any, str]:
    """The parts of a sum as they may be told: where subtraction gave away a small one, the largest is hidden, too.

    >>> few, many = Count(2, {1}), Count(40, {1, 2, 3, 4, 5})
    >>> told_parts({"no unit": few, "mm[Hg]": many}, 5)
    {'no unit': '<5', 'mm[Hg]': '≥5'}
    """
    made = {key: count.told(floor) for key, count in parts.items()}
    if _follows(list(parts.values()), floor):
        told = [key for key, count in parts.items() if len(count.people) >= floor]
        made |= {max(told, key=lambda key: parts[key].records): f"≥{floor}"} if told else {}
    return made


def _follows(parts: list[Count], floor: int) -> bool:
    """Whether a sum and the parts that are told give away a part that is not."""
    few = [count.records for count in parts if len(count.people) < floor]
    return bool(few) and (len(few) == 1 or sum(few) == len(few))


def _under(counts: dict[Any, Count], key: Any) -> Count:
    """The count under a key; what comes after very many keys is counted together."""
    if key not in counts and len(counts) >= _MOST_UNDER:
        key = ("", "…") if isinstance(key, tuple) else "…"
    return counts.setdefault(key, Count())


def _unit(quantity: Mapping[str, Any]) -> str:
    found = quantity.get("code")
    if not isinstance(found, str):
        return NO_UNIT
    return found if read_unit(found) is not None else OTHER_UNIT


def _codings(concept: Any) -> Iterator[tuple[Code, str]]:
    for each in _list(concept):
        for coding in _list(each.get("coding")):
            system, code, words = (
                coding.get("system"),
                coding.get("code"),
                coding.get("display") or each.get("text"),
            )
            if isinstance(code, str):
                yield (
                    (system if isinstance(system, str) else "", code),
                    words if isinstance(words, str) else "",
                )


def _list(value: Any) -> list[dict[str, Any]]:
    listed = value if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, dict)]


def _year(resource: Mapping[str, Any], kind: str) -> int | None:
    for name in _WHEN.get(kind, ()):
        value = resource.get(name)
        text = value.get("start") if isinstance(value, dict) else value
        if text is not None:
            return year_of(text)
    return None
