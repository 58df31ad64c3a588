"""Settings of de-identification and data requirements of a study.

A study document is parsed to one :class:`DataRequest`, the only input of the de-identifier from a study.

Invariants:
(1) all objects are frozen, hashable and have simple values, so that they can be sent to another process;
(2) an invalid value is refused when an object is created;
(3) empty ``requirements`` mean that the study has no list, and the rules apply to all resource types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from abaton.errors import SettingsError


class Mechanism(StrEnum):
    """Privacy mechanisms of the paper."""

    ANONYMISE = "anonymise"
    PSEUDONYMISE = "pseudonymise"


class PseudonymScheme(StrEnum):
    """Replacement of a subject's identity in a study that pseudonymises.

    A pseudo-identity is random and stored in the mapping table only; a pseudonym is derived from the study key.
    """

    PSEUDO_IDENTITY = "pseudo-identity"
    PSEUDONYM = "pseudonym"


class DateHandling(StrEnum):
    """Handling of dates: generalised to the year, shifted by the subject's offset, or removed."""

    YEAR = "year"
    SHIFT = "shift"
    REMOVE = "remove"


class RulePreset(StrEnum):
    """Built-in rule table."""

    DEFAULT = "default"
    PAPER = "paper"


class RuleOptIn(StrEnum):
    """Named set of rules that keeps more than the preset.

    ``us-core``: race, ethnicity, sex at birth and gender identity of US Core. ``zip3``: the state and the first three
    digits of a ZIP code of the United States, by HIPAA's rule.
    """

    US_CORE = "us-core"
    ZIP3 = "zip3"


class RequirementPurpose(StrEnum):
    """Purpose of a data requirement (the function codes of InteropEHRate)."""

    ELEMENT = "element"
    AGE_FROM_DATE = "ageFromDate"
    COUNT = "count"
    SUMMARY = "summary"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class CodePattern:
    """Code of a terminology; an empty system matches the code in any system.

    With ``is_prefix`` all codes with this prefix match: a chapter of ICD-10, a class of ATC.

    >>> CodePattern("http://www.whocc.no/atc", "C09", is_prefix=True).matches("http://www.whocc.no/atc", "C09AA02")
    True
    """

    system: str
    code: str
    is_prefix: bool = False

    def matches(self, system: str, code: str) -> bool:
        """Return whether a record's code matches this code of the de-identification settings."""
        if self.system not in ("", system):
            return False
        return code.startswith(self.code) if self.is_prefix else code == self.code


@dataclass(frozen=True, slots=True)
class CodeFilter:
    """Filter: the element at ``path`` must have one of the codes.

    >>> CodeFilter("code", (CodePattern("http://loinc.org", "8310-5"),)).path
    'code'
    """

    path: str
    codes: tuple[CodePattern, ...]

    def __post_init__(self) -> None:
        if not self.path or not self.codes:
            raise SettingsError(
                "a code filter has no path or no codes", remedy="add a path and at least one code"
            )


@dataclass(frozen=True, slots=True)
class DateFilter:
    """Filter: the element at ``path`` must overlap the days from ``start`` to ``end`` (ISO dates; empty means open).

    An empty path means any of the resource's clinical dates.
    """

    path: str
    start: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        if not (self.start or self.end):
            raise SettingsError("a date filter has neither start nor end", remedy="add one as YYYY-MM-DD")
        if self.start and self.end and self.start[:10] > self.end[:10]:
            raise SettingsError("a date filter starts after its end", remedy="swap start and end")


@dataclass(frozen=True, slots=True)
class DataRequirement:
    """One data requirement of a study: a resource type, filters, and a purpose.

    ``elements`` are the elements of the purpose ``element`` ("value" means every ``value[x]``), or
    the element with the date for ``ageFromDate``. Filters are combined by *and*, the codes of a filter
    by *or*.

    >>> DataRequirement("Observation", RequirementPurpose.ELEMENT, elements=("code", "value")).elements
    ('code', 'value')
    """

    type: str
    purpose: RequirementPurpose = RequirementPurpose.DATA
    elements: tuple[str, ...] = ()
    codes: tuple[CodeFilter, ...] = ()
    dates: tuple[DateFilter, ...] = ()

    def __post_init__(self) -> None:
        if not self.type.isalpha():
            raise SettingsError(
                f"the resource type '{self.type}' of a data requirement is invalid", remedy="use an R4 type"
            )
        if self.purpose is RequirementPurpose.ELEMENT and not self.elements:
            raise SettingsError(
                f"the data requirement of {self.type} has no elements", remedy="list the elements to keep"
            )


@dataclass(frozen=True, slots=True)
class DeidentificationRule:
    """One rule of a rule table: a path and the method for its elements. The first match wins.

    ``settings`` are the method's settings, for example ``(("width", "5"),)``.

    >>> DeidentificationRule("nodesByType('HumanName')", "redact").method
    'redact'
    """

    path: str
    method: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeidentificationSettings:
    """De-identification settings of a study.

    ``rules`` precede those of the preset. ``keep_country`` keeps the country of a patient's address. ``opt_ins``
    are named sets of rules that keep more.
    ``max_shift_days`` bounds the offset when dates are shifted. ``link_across_sites`` gives a subject the same
    pseudonym at every site that has the study key; ``link_identifier`` is the system of the identifier that is the
    same at all sites (a national number), since local ids of different subjects may be equal.
    """

    mechanism: Mechanism = Mechanism.ANONYMISE
    identity: PseudonymScheme = PseudonymScheme.PSEUDONYM
    dates: DateHandling = DateHandling.YEAR
    preset: RulePreset = RulePreset.DEFAULT
    rules: tuple[DeidentificationRule, ...] = ()
    keep_country: bool = False
    opt_ins: tuple[RuleOptIn, ...] = ()
    max_shift_days: int = 180
    link_across_sites: bool = False
    link_identifier: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.max_shift_days <= 3650:
            raise SettingsError(
                f"max_shift_days is {self.max_shift_days}", remedy="use 1 to 3650 days, for example 180"
            )
        if self.link_across_sites != bool(self.link_identifier):
            raise SettingsError(
                f"link_across_sites is {self.link_across_sites} and link_identifier is '{self.link_identifier}'",
                remedy="set link_across_sites = true and link_identifier = 'URL of the identifier system', or neither",
            )
        if self.link_across_sites and self.mechanism is not Mechanism.PSEUDONYMISE:
            raise SettingsError(
                "link_across_sites is true, but mechanism is 'anonymise'",
                remedy="set mechanism = 'pseudonymise', or link_across_sites = false",
            )


@dataclass(frozen=True, slots=True)
class DataRequest:
    """Data requirements and de-identification settings of a study.

    >>> DataRequest(study="heart-2026").deidentification.mechanism.value
    'anonymise'
    """

    study: str
    requirements: tuple[DataRequirement, ...] = ()
    deidentification: DeidentificationSettings = field(default_factory=DeidentificationSettings)
    min_cell_count: int = 5

    def __post_init__(self) -> None:
        if not self.study.strip():
            raise SettingsError("the study has no identifier", remedy="set a unique identifier")

    @property
    def types(self) -> frozenset[str]:
        """Resource types that the de-identification settings require; empty if the study has no list."""
        return frozenset(requirement.type for requirement in self.requirements)

    def requirements_of(self, resource_type: str) -> tuple[DataRequirement, ...]:
        """Return the data requirements of one resource type in the de-identification settings."""
        return tuple(requirement for requirement in self.requirements if requirement.type == resource_type)

    @classmethod
    def everything(cls, study: str, deidentification: DeidentificationSettings | None = None) -> Self:
        """Return the settings of a study without data requirements: all types, after de-identification."""
        return cls(study, (), deidentification or DeidentificationSettings())
