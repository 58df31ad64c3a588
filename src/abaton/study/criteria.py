"""Eligibility criteria of a study document."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Coding, DatePeriod, Section, Text, field_error

CriterionType = Literal[
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

CHARACTERISTIC_CODES: dict[tuple[str, str], CriterionType] = {
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
"""Criterion type of each InteropEHRate characteristic code; any other code is an observation."""

_AGE_TYPES = frozenset({"age", "lifespan"})
_CLINICAL_KEYS: list[set[str]] = [{"codes"}, {"flag"}, {"bounds"}]
_ALLOWED_KEYS: dict[str, list[set[str]]] = {
    "age": [{"bounds"}],
    "lifespan": [{"bounds"}],
    "sex": [{"sex"}],
    "location": [{"codes"}],
    "observation": [{"codes", "bounds"}, {"codes", "values"}, {"codes", "flag"}],
}
"""Allowed combinations of keys by type; other types allow codes, a flag (any record), or bounds."""


class Criterion(Section):
    """Condition that a subject must meet (or, with ``exclude``, must not meet).

    Codes are joined by *or*, criteria by *and*. ``low`` and ``high`` are inclusive, ``above`` and ``below`` exclusive.

    >>> Criterion(type="age", low=18).type
    'age'
    """

    type: CriterionType
    codes: tuple[Coding, ...] = ()
    sex: tuple[Sex, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    equals: float | None = None
    unit: Text | None = None
    values: tuple[Coding, ...] = ()
    flag: bool | None = None
    exclude: bool = False
    period: DatePeriod | None = None
    note: Text | None = Field(None, description="Comment; not evaluated.")

    @property
    def bounds(self) -> tuple[float | None, ...]:
        """Return the numeric bounds of an eligibility criterion: low, high, above, below, equals."""
        return self.low, self.high, self.above, self.below, self.equals

    @property
    def has_bounds(self) -> bool:
        """Return whether the eligibility criterion bounds a number."""
        return any(bound is not None for bound in self.bounds)

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        given = {"sex": bool(self.sex), "codes": bool(self.codes), "values": bool(self.values)}
        given |= {"flag": self.flag is not None, "bounds": self.has_bounds}
        keys = {name for name, present in given.items() if present}
        allowed = _ALLOWED_KEYS.get(self.type, _CLINICAL_KEYS)
        if keys not in allowed:
            combinations = " or ".join(" with ".join(sorted(combination)) for combination in allowed)
            raise field_error(
                f"the keys of this criterion do not fit type = '{self.type}'",
                f"give {combinations} (bounds are low, high, above, below, equals)",
            )
        if self.type == "observation" and any(
            (code.system, code.code) in CHARACTERISTIC_CODES for code in self.codes
        ):
            raise field_error("this code is not an observation", "use the type of the code")
        return self._check_bounds()

    def _check_bounds(self) -> Self:
        ranged = self.low is not None or self.high is not None
        if ranged + sum(bound is not None for bound in self.bounds[2:]) > 1:
            raise field_error(
                "the bounds exclude each other", "use low and high, or one of above, below, equals"
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise field_error("'low' is above 'high'", "swap them")
        if self.type in _AGE_TYPES and (self.unit or "a") not in ("a", "mo", "wk", "d"):
            raise field_error(
                "the unit of an age is not one of time",
                "use a (years), mo, wk or d, or remove 'unit' for years",
            )
        if self.unit is not None and not self.has_bounds:
            raise field_error("'unit' has no bounds", "remove 'unit'")
        return self


class Eligibility(Section):
    """Eligibility criteria, all of which must be met."""

    name: Text | None = None
    target: int | None = Field(None, ge=1, description="Planned number of subjects.")
    criteria: tuple[Criterion, ...] = Field(min_length=1)
