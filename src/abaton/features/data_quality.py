"""Data-quality report for a site: which inputs are missing, why and how often; never a value.

Counts below the minimum cell count are suppressed, and so are counts whose complement is below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from abaton.fhir.terminology import is_public

OTHER_SYSTEM = "local system"
NO_SYSTEM = "no system"


class MissingReason(StrEnum):
    """Reason for missing data."""

    EMPTY_COHORT = "empty cohort"
    NO_ROWS = "no rows"
    NO_VALUE = "no value"
    NO_UNIT = "no unit"
    UNKNOWN_UNIT = "unknown unit"
    OTHER_UNIT = "inconvertible unit"
    IMPLAUSIBLE = "implausible value"
    MOSTLY_IMPLAUSIBLE = "most values implausible"
    OTHER_SYSTEM = "other code system"
    OTHER_CODE = "code without category"
    NO_DATE = "no date"
    COARSE_DATE = "date too coarse"
    NO_SUBJECT = "row without subject"
    NOT_READ = "record not readable by the view"
    NO_LABEL = "no label"
    CENSORED = "incomplete follow-up"
    SHORT_FOLLOW_UP = "follow-up too short for the outcome window"
    BEFORE = "event before the index date"
    ONE_CLASS = "only one class"
    NO_EVENT = "no event"
    TOO_FEW = "too few subjects"
    DROPPED = "subject dropped"


_REMEDY = {
    MissingReason.EMPTY_COHORT: "no subject has all required data: check consents, filters and dates",
    MissingReason.NO_ROWS: "no record matches: export this resource type, or map local codes to the study's",
    MissingReason.NO_VALUE: "fill in the element; the records exist but it is empty",
    MissingReason.NO_UNIT: "add the UCUM code of the unit to the value",
    MissingReason.UNKNOWN_UNIT: "use the UCUM code of the unit: mm[Hg], not mmHg",
    MissingReason.OTHER_UNIT: "use a unit that converts to the study's, or ask the research centre for a molar mass",
    MissingReason.IMPLAUSIBLE: "correct sentinels (-1, 999), units and typing errors; such values count as missing",
    MissingReason.MOSTLY_IMPLAUSIBLE: (
        "the declared unit is probably wrong, such as Cel for values in Fahrenheit: correct the unit, or map the code"
    ),
    MissingReason.OTHER_SYSTEM: "map these codes to the study's systems, or ask the research centre to add them",
    MissingReason.OTHER_CODE: "ask the research centre whether a category is missing; these values count as 'other'",
    MissingReason.NO_DATE: "fill in the date by which the study orders records",
    MissingReason.COARSE_DATE: "ask the research centre for dates = 'shift' instead of 'year'",
    MissingReason.NO_SUBJECT: "add a reference to the Patient to every record",
    MissingReason.NOT_READ: "ask the research centre: a column expects one value of one type",
    MissingReason.NO_LABEL: "complete the records of the label; subjects without a label are excluded",
    MissingReason.CENSORED: "these subjects are excluded, and the others are weighted for it",
    MissingReason.SHORT_FOLLOW_UP: (
        "even with weights the risk differs by more than 10 % from that of Kaplan and Meier: ask the research centre "
        "for a time to event (up_to with task = 'survival'), which uses incomplete follow-up"
    ),
    MissingReason.BEFORE: "these subjects are excluded",
    MissingReason.ONE_CLASS: "the site can hardly train or validate a model",
    MissingReason.NO_EVENT: "the site contributes censored times only and cannot evaluate a model",
    MissingReason.TOO_FEW: "nothing is released for fewer subjects than the minimum cell count",
    MissingReason.DROPPED: "the study drops subjects without this input",
}


@dataclass(frozen=True, slots=True)
class DataQualityIssue:
    """One deficiency of a site's records.

    Attributes:
        subject: The input, the label, or the cohort.
        reason: The reason.
        count: Number of rows or subjects, suppressed if small.
        is_fatal: Whether it makes the table unusable.
        system: The code system found instead, if it is public.
    """

    subject: str
    reason: MissingReason
    count: str
    is_fatal: bool = False
    system: str = ""

    @property
    def remedy(self) -> str:
        """Return what the site can do about the data-quality issue."""
        return _REMEDY[self.reason]

    def __str__(self) -> str:
        system = f" ({self.system})" if self.system else ""
        return f"{self.subject}: {self.reason.value}{system}, {self.count}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class DataQualityReport:
    """Counts of a site's subjects and rows, and the issues found; contains no values.

    Attributes:
        subjects: Number of subjects in the records.
        rows: Number of subjects with a row.
        missing: Number of subjects without a value, by input.
        issues: The issues.
    """

    subjects: str
    rows: str
    missing: tuple[tuple[str, str], ...] = ()
    issues: tuple[DataQualityIssue, ...] = ()

    @property
    def is_sufficient(self) -> bool:
        """Return whether the data-quality report allows the site to participate with its table."""
        return not any(issue.is_fatal for issue in self.issues)

    def issues_of(self, name: str) -> tuple[DataQualityIssue, ...]:
        """Return the data-quality issues of an input, the label or the cohort."""
        return tuple(issue for issue in self.issues if issue.subject == name)


def suppress_count(count: int, min_cell_count: int, *, total: int | None = None) -> str:
    """Format a count of a data-quality report; counts and complements below the minimum are suppressed.

    >>> suppress_count(0, 5), suppress_count(3, 5), suppress_count(12, 5), suppress_count(98, 5, total=100)
    ('0', '<5', '12', '>95')
    """
    if 0 < count < min_cell_count:
        return f"<{min_cell_count}"
    if total is not None and 0 < total - count < min_cell_count:
        return f">{total - min_cell_count}"
    return str(count)


def releasable_system(system: object) -> str:
    """Return a public code system's URL for data-quality reports; a local one is masked, as it may name a person.

    >>> [releasable_system(system) for system in ("http://loinc.org", "http://st-mary.example/codes", None)]
    ['http://loinc.org', 'local system', 'no system']
    """
    if not isinstance(system, str):
        return NO_SYSTEM
    return system if is_public(system) else OTHER_SYSTEM
