"""UCUM units: parsing and conversion.

A unit is a product or quotient of prefixed units with exponents (``mg/dL``, ``10*3/uL``, ``kg.(m/s2)``); braces contain
annotations without meaning. Units and sizes are those of UCUM 2.2 (by the UCUM Organization and Regenstrief Institute),
one line each in ``units.txt``: code, ``m`` if it takes prefixes, size, and unit of the size. A line without a size is a
dimension of its own: base units, arbitrary units (``[IU]``, ``[HPF]``), and the mole, which UCUM treats as a number.
A size like ``degF(5)`` is a scale with an offset or a logarithm. Parsing uses exact fractions; unknown units such as
``mmHg`` are not guessed.

Units of equal dimension are convertible; amount of substance and mass only with a molar mass. Arbitrary units and
annotations convert only to themselves and their multiples. Temperatures, pH and levels are converted by formula;
a scale without one only to its multiples (``dB`` to ``B``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, lru_cache
from importlib.resources import files
from math import isfinite, log10
from typing import NamedTuple

Dimension = tuple[tuple[str, int], ...]

_PREFIXES: dict[str, Fraction] = {
    name: Fraction(10) ** power
    for name, power in {
        "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1, "d": -1, "c": -2,
        "m": -3, "u": -6, "n": -9, "p": -12, "f": -15, "a": -18, "z": -21, "y": -24,
    }.items()
}  # fmt: skip
_BINARY = {name: Fraction(2) ** power for name, power in {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}.items()}
_INFORMATION = ("bit", "By", "Bd")
_ANNOTATIONS = frozenset(
    [
        "{score}", "{INR}", "{cells}", "{cell}", "{count}", "{ratio}", "{titer}", "{copies}", "{beats}", "{breaths}",
        "{#}", "{nominal}", "{index}", "{Rh'titr}", "{genomes}", "{events}", "{tbl}", "{tablet}", "{capsule}", "{puff}",
        "{dose}", "{drop}", "{unit}", "{mm3}", "{creat}", "{total}", "{RBC}", "{WBC}", "{HPF}", "{LPF}", "{bpm}",
        "{steps}", "{step}", "{1.73_m2}",
    ]
)  # fmt: skip
_TOKEN = re.compile(
    r"(?P<atom>10[*^]|(?:\[[^\[\]{}]{1,20}\]|[A-Za-z%'_])+)(?P<power>[+-]?\d{1,2})?(?P<note>\{[^{}]*\})?"
    r"|(?P<alone>\{[^{}]*\})|(?P<number>\d{1,12})|(?P<sign>[./()])"
)
_NOTE = re.compile(r"\{[^{}]*\}")
_FUNCTION = re.compile(r"(\w+)\((\d+)\)")
_MAX_LENGTH, _MAX_DEPTH, _MAX_COMPONENTS = 200, 8, 30
# Limits of units that may be shown: a date, a telephone number or a name can be written as a product.
_MAX_SHOWN_LENGTH, _MAX_SHOWN_DIGITS, _MAX_SHOWN_TERMS = 40, 3, 5
_LONG_NUMBER = re.compile(r"(?<!\d)(?!10{2,6}(?!\d))\d{3,}")


class Unit(NamedTuple):
    """Parsed unit.

    Attributes:
        size: Number of base units.
        dimension: The base units with their exponents.
        scale: Code of a scale with an offset or logarithm (Cel, [pH], B); empty for all others.
        formula: Formula from such a scale to its base units; ``none`` if undefined.
        annotations: The annotations, in order.
        is_annotation_only: Whether it consists of annotations only.
    """

    size: Fraction
    dimension: Dimension
    scale: str = ""
    formula: str = ""
    annotations: tuple[str, ...] = ()
    is_annotation_only: bool = False


@lru_cache(maxsize=4096)
def is_unit(text: str) -> bool:
    """Return whether a text is a UCUM unit that may be shown.

    Annotations are free text, so only well-known ones are accepted, and only few digits.

    >>> [is_unit(u) for u in ("mg/dL", "10*3/uL", "mm[Hg]", "{score}", "kg/m2", "Smith", "{Smith}")]
    [True, True, True, True, True, False, False]
    """
    if len(text) > _MAX_SHOWN_LENGTH:
        return False
    stripped = _NOTE.sub("", text).removeprefix("/")
    terms = 1 + sum(stripped.count(sign) for sign in "./(")
    digits = sum(map(str.isdigit, stripped.replace("10*", "").replace("0", "")))
    if terms > _MAX_SHOWN_TERMS or digits > _MAX_SHOWN_DIGITS or _LONG_NUMBER.search(stripped):
        return False
    unit = parse_unit(text)
    return unit is not None and _ANNOTATIONS.issuperset(unit.annotations)


@lru_cache(maxsize=4096)
def strip_annotations(text: str) -> str | None:
    """Remove UCUM annotations (in braces) that may not be shown; return None if no unit is left.

    >>> strip_annotations("%{saturation}"), strip_annotations("{beats}/min{Smith}"), strip_annotations("{Smith}")
    ('%', '{beats}/min', None)
    """
    if len(text) > _MAX_LENGTH or parse_unit(text) is None:
        return None
    stripped = _NOTE.sub(lambda note: note[0] if note[0] in _ANNOTATIONS else "", text)
    return stripped if stripped and is_unit(stripped) else None


@lru_cache(maxsize=4096)
def parse_unit(text: str) -> Unit | None:
    """Parse a case-sensitive UCUM code; return None if it is not one.

    >>> parse_unit("mg/dL").dimension, float(parse_unit("mg{dry}/(dL.h)").size), parse_unit("mgs/dL")
    ((('g', 1), ('m', -3)), 0.002777777777777778, None)
    """
    if not text or len(text) > _MAX_LENGTH or not text.isascii():
        return None
    try:
        return _UnitParser(text).parse()
    except _InvalidUnitError:
        return None


class _InvalidUnitError(Exception):
    """Text that is not a unit."""


class _UnitParser:
    """Parser of one unit, from left to right as UCUM requires: a/b.c is (a/b).c."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0
        self.notes: list[str] = []
        self.scales: list[tuple[str, str]] = []
        self.parts = self.units = 0

    def parse(self) -> Unit:
        inverted = bool(self.tokens) and self.tokens[0]["sign"] == "/"
        size, powers = self.term(0)
        if self.at < len(self.tokens):
            raise _InvalidUnitError
        scale = formula = ""
        if self.scales:
            # A scale with an offset or logarithm cannot be multiplied: such a product has no size.
            scale, formula = self.scales[0] if self.parts == 1 and not inverted else ("mixed", "none")
        return Unit(size, normalise_dimension(powers), scale, formula, tuple(self.notes), not self.units)

    def take(self, sign: str) -> bool:
        is_match = self.at < len(self.tokens) and self.tokens[self.at]["sign"] == sign
        self.at += is_match
        return is_match

    def term(self, depth: int) -> tuple[Fraction, dict[str, int]]:
        size, powers = Fraction(1), dict[str, int]()
        divided = depth == 0 and self.take("/")
        while True:
            other, more = self.component(depth)
            size = size / other if divided else size * other
            for name, power in more.items():
                powers[name] = powers.get(name, 0) + (-power if divided else power)
            divided = self.take("/")
            if not divided and not self.take("."):
                return size, powers

    def component(self, depth: int) -> tuple[Fraction, dict[str, int]]:
        if depth > _MAX_DEPTH or self.at >= len(self.tokens):
            raise _InvalidUnitError
        if self.take("("):
            term = self.term(depth + 1)
            if not self.take(")"):
                raise _InvalidUnitError
            return term
        token = self.tokens[self.at]
        self.at += 1
        self.parts += 1
        if token["sign"] or self.parts > _MAX_COMPONENTS:
            raise _InvalidUnitError
        if note := token["note"] or token["alone"]:
            self.notes.append(note)
        if token["alone"]:
            return Fraction(1), {}
        self.units += 1
        if token["number"]:
            number = Fraction(token["number"])
            if not number:
                raise _InvalidUnitError
            return number, {}
        return self.unit(token["atom"], int(token["power"] or 1))

    def unit(self, code: str, power: int) -> tuple[Fraction, dict[str, int]]:
        atom = _atom(code)
        if atom is None:
            raise _InvalidUnitError
        if atom.scale:
            self.scales.append((atom.scale, atom.formula))
            self.parts += power != 1
        return atom.size**power, {name: number * power for name, number in atom.dimension}


def _tokens(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _InvalidUnitError
        yield match
        position = match.end()


def normalise_dimension(powers: dict[str, int]) -> Dimension:
    """Return the exponents of a UCUM unit's base units in order, without those that are zero."""
    return tuple(sorted((name, power) for name, power in powers.items() if power))


@cache
def _table() -> dict[str, tuple[bool, str, str]]:
    """Return the UCUM table: for every unit whether it takes prefixes, its size, and the unit of its size."""
    units = {}
    for line in files("abaton.fhir").joinpath("units.txt").read_text(encoding="utf-8").splitlines():
        code, metric, size, unit = (*line.split(" "), "", "")[:4]
        units[code] = metric == "m", size, unit
    return units


@cache
def _defined(code: str) -> Unit:
    _, size, unit = _table()[code]
    if not size:
        return Unit(Fraction(1), ((code, 1),))
    match = _FUNCTION.fullmatch(size)
    base = parse_unit(unit)
    assert base is not None, code
    if match is None:
        return Unit(base.size * Fraction(size), base.dimension)
    return Unit(Fraction(1), base.dimension, code, match[1])


@lru_cache(maxsize=4096)
def _atom(code: str) -> Unit | None:
    """Return a unit atom of the UCUM table, with or without a metric prefix."""
    known = _table()
    if code in known:
        return _defined(code)
    for prefix, size in (*_PREFIXES.items(), *_BINARY.items()):
        remainder = code[len(prefix) :]
        if prefix in _BINARY and remainder not in _INFORMATION:
            continue
        if code.startswith(prefix) and known.get(remainder, (False,))[0]:
            base = _defined(remainder)
            return base._replace(size=base.size * size)
    return None


def scale_unit(code: str) -> Fraction:
    """Return the base units of one step, or the reference, of a UCUM scale: 5/9 K for [degF]."""
    _, size, unit = _table()[code]
    match, base = _FUNCTION.fullmatch(size), parse_unit(unit)
    assert match is not None, code
    assert base is not None, code
    return base.size * Fraction(match[2])


Conversion = Callable[[float], float]

_FORMULAS: dict[str, tuple[Conversion, Conversion]] = {
    "Cel": (lambda x: x + 273.15, lambda y: y - 273.15),
    "degF": (lambda x: x + 459.67, lambda y: y - 459.67),
    "degRe": (lambda x: x + 218.52, lambda y: y - 218.52),
    "pH": (lambda x: 10**-x, lambda y: -log10(y)),
    "lg": (lambda x: 10**x, log10),
    "2lg": (lambda x: 10 ** (x / 2), lambda y: 2 * log10(y)),
}
"""From a scale to multiples of its reference, and back."""


def convert(value: float, unit: str, target: str, *, molar_mass: float | None = None) -> float | None:
    """Convert a number to another UCUM unit; return None if the dimensions differ or a unit is unknown.

    Args:
        value: The number.
        unit: Its UCUM unit.
        target: The target unit.
        molar_mass: Grams per mole, for conversion between mass and amount of substance.

    >>> round(convert(5.2, "mmol/L", "mg/dL", molar_mass=386.65) or 0)
    201
    >>> round(convert(98.6, "[degF]", "Cel") or 0, 6), convert(1, "kg", "L"), convert(7, "{score}", "{score}")
    (37.0, None, 7)
    """
    if unit == target:
        return value if parse_unit(unit) is not None else None
    conversion = _conversion(unit, target, molar_mass)
    if conversion is None:
        return None
    try:
        converted = conversion(value)
    except (OverflowError, ValueError):  # logarithm of zero, or overflow
        return None
    return converted if isfinite(converted) else None


def convertible(unit: str, target: str, *, molar_mass: float | None = None) -> bool:
    """Return whether numbers can be converted from one UCUM unit to another.

    >>> convertible("mm[Hg]", "kPa"), convertible("mmol/L", "mg/dL")
    (True, False)
    """
    return convert(1.0, unit, target, molar_mass=molar_mass) is not None


@lru_cache(maxsize=1024)
def _conversion(unit: str, target: str, molar_mass: float | None) -> Conversion | None:
    """Return the function that converts between two UCUM units, or None."""
    here, there = parse_unit(unit), parse_unit(target)
    if here is None or there is None or here.is_annotation_only or there.is_annotation_only:
        return None
    if here.scale == there.scale != "mixed":
        factor = _factor(here, there, molar_mass)
        return None if factor is None else lambda x: x * factor
    to_base, from_base = _to_base_units(here), _from_base_units(there)
    if to_base is None or from_base is None or here.dimension != there.dimension:
        return None
    return lambda x: from_base(to_base(x))


def _factor(here: Unit, there: Unit, molar_mass: float | None) -> float | None:
    factor = float(here.size / there.size)
    if here.dimension != there.dimension:
        mole = _mole_exponent(here.dimension, there.dimension)
        if not mole or molar_mass is None:
            return None
        factor *= molar_mass**mole
    return factor


def _to_base_units(here: Unit) -> Conversion | None:
    """Return the function that converts from a UCUM unit to its base units."""
    size = float(here.size)
    if not here.scale:
        return lambda x: x * size
    if here.formula not in _FORMULAS:
        return None
    formula, reference = _FORMULAS[here.formula][0], float(scale_unit(here.scale))
    return lambda x: formula(x * size) * reference


def _from_base_units(there: Unit) -> Conversion | None:
    """Return the function that converts from UCUM base units to a unit."""
    size = float(there.size)
    if not there.scale:
        return lambda y: y / size
    if there.formula not in _FORMULAS:
        return None
    formula, reference = _FORMULAS[there.formula][1], float(scale_unit(there.scale))
    return lambda y: formula(y / reference) / size


def _mole_exponent(here: Dimension, there: Dimension) -> int:
    """Return how many moles become grams in a unit conversion; 0 if the dimensions then differ."""
    left, right = dict(here), dict(there)
    moles = left.get("mol", 0) - right.get("mol", 0)
    left["g"] = left.get("g", 0) + moles
    left["mol"] = left.get("mol", 0) - moles
    return moles if normalise_dimension(left) == normalise_dimension(right) else 0
