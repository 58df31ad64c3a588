"""Converting measured numbers between units of UCUM.

Two units can be converted if their dimensions are the same; an amount of substance and a mass only if the molar mass
is stated, because UCUM does not know which substance. Units whose size nobody can state (``[IU]``, ``{score}``) convert
only into themselves and their multiples. Temperatures, pH and levels are converted by their formulas; a scale without
one only into its own multiples (``dB`` into ``B``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isfinite, log10

from abaton.records.fhir.ucum import Dimension, Unit, read_unit, scale_unit, tidy

Step = Callable[[float], float]

_FORMULAS: dict[str, tuple[Step, Step]] = {
    "Cel": (lambda x: x + 273.15, lambda y: y - 273.15),
    "degF": (lambda x: x + 459.67, lambda y: y - 459.67),
    "degRe": (lambda x: x + 218.52, lambda y: y - 218.52),
    "pH": (lambda x: 10**-x, lambda y: -log10(y)),
    "lg": (lambda x: 10**x, log10),
    "2lg": (lambda x: 10 ** (x / 2), lambda y: 2 * log10(y)),
}
"""From a scale to multiples of its reference, and back."""


def convert(value: float, unit: str, into: str, *, molar_mass: float | None = None) -> float | None:
    """A number in another unit, or nothing if the units do not measure the same or are not understood.

    Args:
        value: The number.
        unit: Its unit, in UCUM.
        into: The unit that is wanted.
        molar_mass: Grams per mole, where a mass is wanted and an amount of substance is given, or the reverse.

    >>> round(convert(5.2, "mmol/L", "mg/dL", molar_mass=386.65) or 0)
    201
    >>> round(convert(98.6, "[degF]", "Cel") or 0, 6), convert(1, "kg", "L"), convert(7, "{score}", "{score}")
    (37.0, None, 7)
    """
    if unit == into:
        return value if read_unit(unit) is not None else None
    step = _step(unit, into, molar_mass)
    if step is None:
        return None
    try:
        made = step(value)
    except (OverflowError, ValueError):  # the logarithm of nothing, or a number too large to be told
        return None
    return made if isfinite(made) else None


def convertible(unit: str, into: str, *, molar_mass: float | None = None) -> bool:
    """Whether numbers in one unit can be told in another.

    >>> convertible("mm[Hg]", "kPa"), convertible("mmol/L", "mg/dL")
    (True, False)
    """
    return convert(1.0, unit, into, molar_mass=molar_mass) is not None


@lru_cache(maxsize=1024)
def _step(unit: str, into: str, molar_mass: float | None) -> Step | None:
    """How a number gets from one unit to another."""
    here, there = read_unit(unit), read_unit(into)
    if here is None or there is None or here.bare or there.bare:
        return None
    if here.scale == there.scale != "mixed":
        factor = _factor(here, there, molar_mass)
        return None if factor is None else lambda x: x * factor
    outward, inward = _outward(here), _inward(there)
    if outward is None or inward is None or here.dimension != there.dimension:
        return None
    return lambda x: inward(outward(x))


def _factor(here: Unit, there: Unit, molar_mass: float | None) -> float | None:
    factor = float(here.size / there.size)
    if here.dimension != there.dimension:
        mole = _mole(here.dimension, there.dimension)
        if not mole or molar_mass is None:
            return None
        factor *= molar_mass**mole
    return factor


def _outward(here: Unit) -> Step | None:
    """From a unit to its base units."""
    size = float(here.size)
    if not here.scale:
        return lambda x: x * size
    if here.formula not in _FORMULAS:
        return None
    formula, reference = _FORMULAS[here.formula][0], float(scale_unit(here.scale))
    return lambda x: formula(x * size) * reference


def _inward(there: Unit) -> Step | None:
    """From the base units to a unit."""
    size = float(there.size)
    if not there.scale:
        return lambda y: y / size
    if there.formula not in _FORMULAS:
        return None
    formula, reference = _FORMULAS[there.formula][1], float(scale_unit(there.scale))
    return lambda y: formula(y / reference) / size


def _mole(here: Dimension, there: Dimension) -> int:
    """How many moles turn into grams on the way; 0 if that alone does not make the dimensions equal."""
    left, right = dict(here), dict(there)
    moles = left.get("mol", 0) - right.get("mol", 0)
    left["g"] = left.get("g", 0) + moles
    left["mol"] = left.get("mol", 0) - moles
    return moles if tidy(left) == tidy(right) else 0
