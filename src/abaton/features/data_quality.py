"""What a site is told about its own records: which input cannot be filled, why, and how often; never a value.

Counts of fewer subjects than the floor are not told, and neither are counts that leave fewer than the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from abaton.fhir.terminology import is_public

OTHER_SYSTEM = "a system of no public list"
NO_SYSTEM = "no system"


class Reason(StrEnum):
    """Why something is missing."""

    EMPTY_COHORT = "empty cohort"
    NO_ROWS = "no rows"
    NO_VALUE = "no value"
    NO_UNIT = "no unit"
    UNKNOWN_UNIT = "unit that is not of UCUM"
    OTHER_UNIT = "unit that cannot be converted"
    OTHER_SYSTEM = "other code system"
    OTHER_CODE = "code of no category"
    NO_DATE = "no date"
    COARSE_DATE = "date too coarse"
    NO_SUBJECT = "row of nobody"
    NOT_READ = "record that the view cannot read"
    NO_LABEL = "no label"
    CENSORED = "not watched long enough"
    BEFORE = "event before the index date"
    ONE_CLASS = "only one class"
    NO_EVENT = "nobody with the event"
    TOO_FEW = "too few subjects"
    DROPPED = "subject left out"


_REMEDY = {
    Reason.EMPTY_COHORT: "no subject has everything that the study asks for: check consents, filters and dates",
    Reason.NO_ROWS: "no record answers the view: export this resource type, or map your local codes to the study's",
    Reason.NO_VALUE: "the records are there but the element is empty",
    Reason.NO_UNIT: "write the UCUM code of the unit beside the number",
    Reason.UNKNOWN_UNIT: "write the unit's UCUM code: mm[Hg], not mmHg; nothing is guessed",
    Reason.OTHER_UNIT: "use a unit that converts into the study's, or ask the research centre for a molar mass",
    Reason.OTHER_SYSTEM: "map these codes to the study's systems, or ask the research centre to add them",
    Reason.OTHER_CODE: "these count as 'other'; ask the research centre whether a category is missing",
    Reason.NO_DATE: "give the date that the study orders by",
    Reason.COARSE_DATE: "the study needs days here: ask for dates = 'shift' instead of 'year'",
    Reason.NO_SUBJECT: "every record needs a reference to its Patient",
    Reason.NOT_READ: "a column expects one value and finds several, or another type: ask the research centre",
    Reason.NO_LABEL: "without a label a subject cannot be learned from",
    Reason.CENSORED: "these subjects were left out",
    Reason.BEFORE: "these subjects were left out",
    Reason.ONE_CLASS: "such a site teaches a model little and cannot validate one",
    Reason.NO_EVENT: "such a site teaches only how long nothing happens, and cannot judge a model",
    Reason.TOO_FEW: "fewer subjects than the study's floor: nothing is told of them",
    Reason.DROPPED: "the study leaves out subjects without this input",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a site's records lack.

    Attributes:
        about: The input, the label, or the cohort.
        reason: Why.
        count: How many rows or subjects, told so that few people are not counted.
        fatal: Whether the table cannot be used because of it.
        system: The code system that was found instead, if it is a public one.
    """

    about: str
    reason: Reason
    count: str
    fatal: bool = False
    system: str = ""

    @property
    def remedy(self) -> str:
        """What the site can do."""
        return _REMEDY[self.reason]

    def __str__(self) -> str:
        found = f" ({self.system})" if self.system else ""
        return f"{self.about}: {self.reason.value}{found}, {self.count}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a site's records on the way to a table; holds counts and no values.

    Attributes:
        subjects: How many subjects the records are about.
        rows: How many of them are rows of the table.
        missing: For each input, how many subjects have no value.
        findings: What is missing.
    """

    subjects: str
    rows: str
    missing: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether the site has a table that it can take part with."""
        return not any(finding.fatal for finding in self.findings)

    def about(self, name: str) -> tuple[Finding, ...]:
        """What was found about an input, the label or the cohort."""
        return tuple(finding for finding in self.findings if finding.about == name)


def masked(count: int, floor: int, *, of: int | None = None) -> str:
    """A count as it may be told: few, and all but few, are not told exactly.

    >>> masked(0, 5), masked(3, 5), masked(12, 5), masked(98, 5, of=100)
    ('0', '<5', '12', '>95')
    """
    if 0 < count < floor:
        return f"<{floor}"
    if of is not None and 0 < of - count < floor:
        return f">{of - floor}"
    return str(count)


def known_system(system: object) -> str:
    """The address of a code system if it is a public one; a local one may name a hospital or a person.

    >>> known_system("http://loinc.org"), known_system("http://st-mary.example/codes"), known_system(None)
    ('http://loinc.org', 'a system of no public list', 'no system')
    """
    if not isinstance(system, str):
        return NO_SYSTEM
    return system if is_public(system) else OTHER_SYSTEM
