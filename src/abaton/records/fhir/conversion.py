"""Converting measured numbers between units of UCUM.

A unit is a number times a product of dimensions. Two units can be converted if their dimensions are the same;
an amount of substance and a mass only if the molar mass is stated, because UCUM does not know which substance.
Units whose size nobody can state (``[IU]``, ``{score}``) convert only into themselves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite

from abaton.records.fhir.ucum import is_unit

Dimension = tuple[tuple[str, int], ...]

_PREFIXES = {
    "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1, "d": -1, "c": -2,
    "m": -3, "u": -6, "n": -9, "p": -12, "f": -15, "a": -18, "z": -21, "y": -24,
}  # fmt: skip
_ENERGY = {"g": 1, "m": 2, "s": -2}
_PRESSURE = {"g": 1, "m": -1, "s": -2}
_METRIC: dict[str, tuple[float, dict[str, int]]] = {
    "m": (1, {"m": 1}), "s": (1, {"s": 1}), "g": (1, {"g": 1}), "K": (1, {"K": 1}), "mol": (1, {"mol": 1}),
    "L": (1e-3, {"m": 3}), "l": (1e-3, {"m": 3}), "Hz": (1, {"s": -1}), "Pa": (1e3, _PRESSURE),
    "bar": (1e8, _PRESSURE), "m[Hg]": (133.322e6, _PRESSURE), "m[H2O]": (9.80665e6, _PRESSURE),
    "J": (1e3, _ENERGY), "cal": (4184, _ENERGY), "W": (1e3, {"g": 1, "m": 2, "s": -3}),
    "V": (1, {"V": 1}), "U": (1e-6 / 60, {"mol": 1, "s": -1}), "kat": (1, {"mol": 1, "s": -1}),
    "eq": (1, {"mol": 1}), "osm": (1, {"mol": 1}), "t": (1e6, {"g": 1}),
}  # fmt: skip
_OTHER: dict[str, tuple[float, dict[str, int]]] = {
    "%": (1e-2, {}), "%o": (1e-3, {}), "[ppm]": (1e-6, {}), "[ppb]": (1e-9, {}),
    "min": (60, {"s": 1}), "h": (3600, {"s": 1}), "d": (86400, {"s": 1}), "wk": (604800, {"s": 1}),
    "mo": (2629800, {"s": 1}), "mo_j": (2629800, {"s": 1}), "a": (31557600, {"s": 1}), "a_j": (31557600, {"s": 1}),
    "[in_i]": (0.0254, {"m": 1}), "[ft_i]": (0.3048, {"m": 1}), "[lb_av]": (453.59237, {"g": 1}),
    "[oz_av]": (28.349523125, {"g": 1}), "Cal": (4184e3, _ENERGY),
}  # fmt: skip
_OFFSETS = {"Cel": (1.0, 273.15), "[degF]": (5 / 9, 459.67 * 5 / 9)}
_TERM = re.compile(r"(10[*^])(-?\d{1,2})?|(\d{1,6})|((?:\[[^\[\]{}]{1,12}\]|[A-Za-z%'_])+)([+-]?\d{1,2})?")
_NOTE = re.compile(r"\{[^{}]*\}")


def convert(value: float, unit: str, into: str, *, molar_mass: float | None = None) -> float | None:
    """A number in another unit, or nothing if the units do not measure the same.

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
        return value if is_unit(unit) else None
    if unit in _OFFSETS and into in _OFFSETS:
        (a, b), (c, d) = _OFFSETS[unit], _OFFSETS[into]
        return (value * a + b - d) / c
    here, there = _measured(unit), _measured(into)
    if here is None or there is None:
        return None
    factor = here[0] / there[0]
    if here[1] != there[1]:
        mole = _mole(here[1], there[1])
        if not mole or molar_mass is None:
            return None
        factor *= molar_mass**mole
    made = value * factor
    return made if isfinite(made) else None


def convertible(unit: str, into: str, *, molar_mass: float | None = None) -> bool:
    """Whether numbers in one unit can be told in another.

    >>> convertible("mm[Hg]", "kPa"), convertible("mmol/L", "mg/dL")
    (True, False)
    """
    return convert(1.0, unit, into, molar_mass=molar_mass) is not None


def _mole(here: Dimension, there: Dimension) -> int:
    """How many moles turn into grams on the way; 0 if that alone does not make the dimensions equal."""
    left, right = dict(here), dict(there)
    moles = left.get("mol", 0) - right.get("mol", 0)
    left["g"] = left.get("g", 0) + moles
    left["mol"] = left.get("mol", 0) - moles
    return moles if _tidy(left) == _tidy(right) else 0


@lru_cache(maxsize=1024)
def _measured(unit: str) -> tuple[float, Dimension] | None:
    """How large a unit is, and of which dimension; nothing if nobody can say."""
    if not is_unit(unit) or _NOTE.fullmatch(unit):
        return None
    factor, powers, sign = 1.0, dict[str, int](), 1
    for part in re.split(r"([./])", unit):
        if part in (".", "/"):
            sign = 1 if part == "." else -1
            continue
        found = _term(part)
        if found is None:
            return None
        size, inner, power = found
        factor *= size ** (sign * power)
        for name, number in inner.items():
            powers[name] = powers.get(name, 0) + sign * power * number
    return factor, _tidy(powers)


def _tidy(powers: dict[str, int]) -> Dimension:
    return tuple(sorted((name, number) for name, number in powers.items() if number))


def _term(text: str) -> tuple[float, dict[str, int], int] | None:
    bare = _NOTE.sub("", text)
    if not bare:
        # What is counted stands in braces: beats, cells. It has no dimension.
        return 1.0, {}, 1
    match = _TERM.fullmatch(bare)
    if match is None:
        return None
    if match[1]:
        return 10.0 ** int(match[2] or 1), {}, 1
    if match[3]:
        return float(match[3]), {}, 1
    found = _atom(match[4])
    return None if found is None else (*found, int(match[5] or 1))


def _atom(name: str) -> tuple[float, dict[str, int]] | None:
    known = _METRIC.get(name) or _OTHER.get(name)
    if known is not None:
        return known
    for prefix, power in _PREFIXES.items():
        metric = _METRIC.get(name[len(prefix) :]) if name.startswith(prefix) else None
        if metric is not None:
            return metric[0] * 10.0**power, metric[1]
    return None
