"""Who may take part: the criteria of a study, as written in its document."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Part, Period, Term, Text, fault

What = Literal[
    "age",
    "sex",
    "condition",
    "finding",
    "observation",
    "medication",
    "procedure",
    "encounter",
    "test",
    "consent",
    "location",
    "lifespan",
]
Sex = Literal["male", "female", "other"]

LOINC = "http://loinc.org"
IEHR = "http://interopehrate.eu/fhir/CodeSystem/GroupCharacteristic-Code"

KINDS: dict[tuple[str, str], What] = {
    (LOINC, "30525-0"): "age",
    (LOINC, "72143-1"): "sex",
    (LOINC, "56816-2"): "location",
    (LOINC, "52471-0"): "medication",
    (LOINC, "75323-6"): "condition",
    (IEHR, "observation"): "finding",
    (IEHR, "procedure"): "procedure",
    (IEHR, "encounter"): "encounter",
    (IEHR, "test"): "test",
    (IEHR, "consent"): "consent",
    (IEHR, "expected lifespan"): "lifespan",
}
"""The characteristic codes of InteropEHRate and what they ask for; any other code names an observation."""

_NUMBERED = frozenset({"age", "lifespan"})
_CLINICAL: list[set[str]] = [{"codes"}, {"flag"}, {"bounds"}]
_KEYS: dict[str, list[set[str]]] = {
    "age": [{"bounds"}],
    "lifespan": [{"bounds"}],
    "sex": [{"sex"}],
    "location": [{"codes"}],
    "observation": [{"codes", "bounds"}, {"codes", "values"}, {"codes", "flag"}],
}
"""Which keys belong together; what is not listed is clinical: some codes, any at all (flag), or a number."""


class Criterion(Part):
    """One thing that must hold for a subject (or, with ``exclude``, must not hold).

    Codes are joined by *or*, criteria by *and*. ``low`` and ``high`` are included, ``above`` and ``below``
    are not.

    >>> Criterion(what="age", low=18).what
    'age'
    """

    what: What
    codes: tuple[Term, ...] = ()
    sex: tuple[Sex, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    equals: float | None = None
    unit: Text | None = None
    values: tuple[Term, ...] = ()
    flag: bool | None = None
    exclude: bool = False
    period: Period | None = None
    note: Text | None = Field(None, description="Words for people; never evaluated.")

    @property
    def bounds(self) -> tuple[float | None, ...]:
        """The five ways to bound a number, in the order low, high, above, below, equals."""
        return self.low, self.high, self.above, self.below, self.equals

    @property
    def bounded(self) -> bool:
        """Whether a number is asked for."""
        return any(bound is not None for bound in self.bounds)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        given = {"sex": bool(self.sex), "codes": bool(self.codes), "values": bool(self.values)}
        given |= {"flag": self.flag is not None, "bounds": self.bounded}
        keys = {name for name, present in given.items() if present}
        allowed = _KEYS.get(self.what, _CLINICAL)
        if keys not in allowed:
            ways = " or ".join(" with ".join(sorted(way)) for way in allowed)
            raise fault(
                f"the keys of this criterion do not fit what = '{self.what}'",
                f"give {ways} (bounds are low, high, above, below, equals)",
            )
        if self.what == "observation" and any((term.system, term.code) in KINDS for term in self.codes):
            raise fault("this code does not name an observation", "use the 'what' that stands for it")
        return self._checked_bounds()

    def _checked_bounds(self) -> Self:
        ranged = self.low is not None or self.high is not None
        if ranged + sum(bound is not None for bound in self.bounds[2:]) > 1:
            raise fault("the bounds exclude each other", "use low and high, or one of above, below, equals")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise fault("'low' is above 'high'", "swap them")
        if self.what in _NUMBERED and (self.unit or "a") not in ("a", "mo", "wk", "d"):
            raise fault("an age is counted in a (years), mo, wk or d", "leave 'unit' out for years")
        if self.unit is not None and not self.bounded:
            raise fault("a unit without a number means nothing", "remove 'unit'")
        return self


class Eligibility(Part):
    """Who may take part: every criterion must hold."""

    name: Text | None = None
    target: int | None = Field(None, ge=1, description="How many subjects the study hopes for.")
    criteria: tuple[Criterion, ...] = Field(min_length=1)
