"""What a study needs to know, and how its records must be de-identified.

These are the only words the de-identifier takes from a study document. The study document is read and checked
elsewhere; it ends in one :class:`Need`.

Invariants:
(1) everything here is frozen, hashable and made of plain values, so that it can be sent to another process;
(2) a wrong value is refused when the object is made, never later;
(3) an empty ``wants`` means that the study names no list, and every resource type may pass through the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from abaton.errors import SettingsError


class Mechanism(StrEnum):
    """The two privacy mechanisms of the paper."""

    ANONYMISE = "anonymise"
    PSEUDONYMISE = "pseudonymise"


class Identity(StrEnum):
    """What replaces a person's identity when a study pseudonymises.

    A pseudo-identity is random and lives only in the mapping table; a pseudonym comes from the study key.
    """

    PSEUDO_IDENTITY = "pseudo-identity"
    PSEUDONYM = "pseudonym"


class Dates(StrEnum):
    """What happens to a date: cut to its year, moved by the subject's own offset, or removed."""

    YEAR = "year"
    SHIFT = "shift"
    REMOVE = "remove"


class Preset(StrEnum):
    """Which rule table the study starts from: Abaton's own, or the paper's."""

    DEFAULT = "default"
    PAPER = "paper"


class Allowed(StrEnum):
    """A named set of rules that keeps more than the preset does.

    ``us-core``: race, ethnicity, sex at birth and gender identity of US Core. ``zip3``: the state and the first three
    digits of a ZIP code of the United States, by HIPAA's rule.
    """

    US_CORE = "us-core"
    ZIP3 = "zip3"


class Function(StrEnum):
    """What a study wants of the matching resources (the function codes of InteropEHRate)."""

    ELEMENT = "element"
    AGE_FROM_DATE = "ageFromDate"
    COUNT = "count"
    SUMMARY = "summary"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Code:
    """A code of a terminology; an empty system matches the code in any system.

    With ``begins`` every code is meant that begins so: a chapter of ICD-10, a class of ATC.

    >>> Code("http://www.whocc.no/atc", "C09", begins=True).means("http://www.whocc.no/atc", "C09AA02")
    True
    """

    system: str
    code: str
    begins: bool = False

    def means(self, system: str, code: str) -> bool:
        """Whether a record's code is meant."""
        if self.system not in ("", system):
            return False
        return code.startswith(self.code) if self.begins else code == self.code


@dataclass(frozen=True, slots=True)
class CodeFilter:
    """The element at ``path`` must carry one of the codes.

    >>> CodeFilter("code", (Code("http://loinc.org", "8310-5"),)).path
    'code'
    """

    path: str
    codes: tuple[Code, ...]

    def __post_init__(self) -> None:
        if not self.path or not self.codes:
            raise SettingsError("a code filter needs a path and at least one code", remedy="complete it")


@dataclass(frozen=True, slots=True)
class DateFilter:
    """The element at ``path`` must touch the days from ``start`` to ``end`` (ISO dates; empty means open).

    An empty path means whichever date says when the resource happened.
    """

    path: str
    start: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        if not (self.start or self.end):
            raise SettingsError("a date filter needs a start or an end", remedy="give one as YYYY-MM-DD")
        if self.start and self.end and self.start[:10] > self.end[:10]:
            raise SettingsError("a date filter starts after its end", remedy="swap start and end")


@dataclass(frozen=True, slots=True)
class Want:
    """One line of a study's list: a resource type, which of them, and what of them.

    ``elements`` are the attributes of the function ``element`` ("value" stands for every ``value[x]``), or
    the element holding the date for ``ageFromDate``. Filters are joined by *and*, the codes inside a filter
    by *or*.

    >>> Want("Observation", Function.ELEMENT, elements=("code", "value")).elements
    ('code', 'value')
    """

    type: str
    function: Function = Function.DATA
    elements: tuple[str, ...] = ()
    codes: tuple[CodeFilter, ...] = ()
    dates: tuple[DateFilter, ...] = ()

    def __post_init__(self) -> None:
        if not self.type.isalpha():
            raise SettingsError("a study wants a resource type that is not a name", remedy="use an R4 type")
        if self.function is Function.ELEMENT and not self.elements:
            raise SettingsError(
                f"the function 'element' of {self.type} names no element", remedy="list the elements to keep"
            )


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a rule table: what happens to the elements that a path finds. The first match wins.

    ``settings`` are the method's own words and values, for example ``(("width", "5"),)``.

    >>> Rule("nodesByType('HumanName')", "redact").method
    'redact'
    """

    path: str
    method: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Deidentification:
    """How a study wants its records de-identified.

    ``rules`` come before those of the preset. ``keep_country`` keeps the country of a patient's address. ``allow``
    names sets of rules that keep more.
    ``shift_days`` bounds the offset when dates are shifted. ``link_sites`` gives one subject the same
    pseudonym at every site that holds the study key; ``link_by`` is the system of the identifier by which people are
    the same everywhere (a national number), without which a site's own ids would make strangers one person.
    ``count_floor`` is the smallest number that a ``count`` may answer.
    """

    mechanism: Mechanism = Mechanism.ANONYMISE
    identity: Identity = Identity.PSEUDONYM
    dates: Dates = Dates.YEAR
    preset: Preset = Preset.DEFAULT
    rules: tuple[Rule, ...] = ()
    keep_country: bool = False
    allow: tuple[Allowed, ...] = ()
    shift_days: int = 180
    link_sites: bool = False
    link_by: str = ""
    count_floor: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.shift_days <= 3650:
            raise SettingsError("shift_days must lie between 1 and 3650", remedy="choose for example 180")
        if self.link_sites != bool(self.link_by):
            raise SettingsError(
                "linking sites needs an identifier by which a person is the same at all of them",
                remedy="set link_sites = true and link_by = 'the system of that identifier', or neither",
            )
        if self.link_sites and self.mechanism is not Mechanism.PSEUDONYMISE:
            raise SettingsError(
                "an anonymising study cannot link its sites",
                remedy="set mechanism = 'pseudonymise', or link nothing",
            )
        if self.count_floor < 1:
            raise SettingsError("count_floor must be at least 1", remedy="choose for example 5")


@dataclass(frozen=True, slots=True)
class Need:
    """All that the de-identifier has to know of a study.

    >>> Need(study="heart-2026").deidentification.mechanism.value
    'anonymise'
    """

    study: str
    wants: tuple[Want, ...] = ()
    deidentification: Deidentification = field(default_factory=Deidentification)

    def __post_init__(self) -> None:
        if not self.study.strip():
            raise SettingsError("a study needs an identifier", remedy="give it one that no other study has")

    @property
    def types(self) -> frozenset[str]:
        """The resource types that the study asks for; empty when it names no list."""
        return frozenset(want.type for want in self.wants)

    def wants_of(self, resource_type: str) -> tuple[Want, ...]:
        """The lines of the study's list about one resource type."""
        return tuple(want for want in self.wants if want.type == resource_type)

    @classmethod
    def everything(cls, study: str, deidentification: Deidentification | None = None) -> Self:
        """The need of a study that names no list: every type, after de-identification."""
        return cls(study, (), deidentification or Deidentification())
