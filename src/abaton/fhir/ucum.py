"""Units of measure: UCUM's whole grammar, and how large each unit is.

A unit is a product or quotient of prefixed units with exponents (``mg/dL``, ``10*3/uL``, ``kg.(m/s2)``); what stands in
braces is an annotation and means nothing. The units and their sizes are those of UCUM 2.2 (the Unified Code for Units
of Measure, by the UCUM Organization and Regenstrief Institute), one line each in ``units.txt``: the code, ``m`` if it
takes prefixes, its size and the unit of its size. A line without a size is a dimension of its own: the base units,
and what nobody can compare with anything else (``[IU]``, ``[HPF]``). So is the mole, which UCUM takes for a number.
A size like ``degF(5)`` is a scale that does not begin at nothing, or is a logarithm.

Converting measured numbers between units of UCUM.

Two units can be converted if their dimensions are the same; an amount of substance and a mass only if the molar mass
is stated, because UCUM does not know which substance. Units whose size nobody can state (``[IU]``, ``{score}``) convert
only into themselves and their multiples. Temperatures, pH and levels are converted by their formulas; a scale without
one only into its own multiples (``dB`` into ``B``).
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
_LONGEST, _DEEPEST, _MOST_PARTS = 200, 8, 30
# Of a unit that may be shown: a date, a telephone number or a name can be written as a product, too.
_LONGEST_SHOWN, _MOST_DIGITS, _MOST_TERMS = 40, 3, 5
_LONG_NUMBER = re.compile(r"(?<!\d)(?!10{2,6}(?!\d))\d{3,}")


class Unit(NamedTuple):
    """What a unit measures.

    Attributes:
        size: How many of the base units it is.
        dimension: The base units with their exponents.
        scale: The code of a scale that is not counted from nothing (Cel, [pH], B); empty for all others.
        formula: How such a scale is told in its base units; ``none`` if that is not said.
        notes: The annotations, in order.
        bare: Whether it is nothing but annotations.
    """

    size: Fraction
    dimension: Dimension
    scale: str = ""
    formula: str = ""
    notes: tuple[str, ...] = ()
    bare: bool = False


@lru_cache(maxsize=4096)
def is_unit(text: str) -> bool:
    """Whether a text is a unit of UCUM and nothing else, so that it may be shown.

    An annotation is free text, so only a few well-known ones pass; and only a few digits do.

    >>> [is_unit(u) for u in ("mg/dL", "10*3/uL", "mm[Hg]", "{score}", "kg/m2", "Smith", "{Smith}")]
    [True, True, True, True, True, False, False]
    """
    if len(text) > _LONGEST_SHOWN:
        return False
    plain = _NOTE.sub("", text).removeprefix("/")
    terms = 1 + sum(plain.count(sign) for sign in "./(")
    digits = sum(map(str.isdigit, plain.replace("10*", "").replace("0", "")))
    if terms > _MOST_TERMS or digits > _MOST_DIGITS or _LONG_NUMBER.search(plain):
        return False
    made = read_unit(text)
    return made is not None and _ANNOTATIONS.issuperset(made.notes)


@lru_cache(maxsize=4096)
def without_words(text: str) -> str | None:
    """A unit without the annotations that may not be shown, which mean nothing to UCUM; nothing if none is left.

    >>> without_words("%{saturation}"), without_words("{beats}/min{Smith}"), without_words("{Smith}")
    ('%', '{beats}/min', None)
    """
    if len(text) > _LONGEST or read_unit(text) is None:
        return None
    bare = _NOTE.sub(lambda note: note[0] if note[0] in _ANNOTATIONS else "", text)
    return bare if bare and is_unit(bare) else None


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit | None:
    """What a text says in UCUM's case-sensitive code; nothing if it is not understood, never a guess.

    >>> read_unit("mg/dL").dimension, float(read_unit("mg{dry}/(dL.h)").size), read_unit("mgs/dL")
    ((('g', 1), ('m', -3)), 0.002777777777777778, None)
    """
    if not text or len(text) > _LONGEST or not text.isascii():
        return None
    try:
        return _Reader(text).whole()
    except _NotUnderstoodError:
        return None


class _NotUnderstoodError(Exception):
    """The text is not a unit."""


class _Reader:
    """Reads one unit, from left to right as UCUM asks: a/b.c is (a/b).c."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.at = 0
        self.notes: list[str] = []
        self.scales: list[tuple[str, str]] = []
        self.parts = self.units = 0

    def whole(self) -> Unit:
        inverted = bool(self.tokens) and self.tokens[0]["sign"] == "/"
        size, powers = self.term(0)
        if self.at < len(self.tokens):
            raise _NotUnderstoodError
        scale = formula = ""
        if self.scales:
            # A scale that does not begin at nothing cannot be multiplied: such a product has no size.
            scale, formula = self.scales[0] if self.parts == 1 and not inverted else ("mixed", "none")
        return Unit(size, tidy(powers), scale, formula, tuple(self.notes), not self.units)

    def take(self, sign: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at]["sign"] == sign
        self.at += found
        return found

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
        if depth > _DEEPEST or self.at >= len(self.tokens):
            raise _NotUnderstoodError
        if self.take("("):
            found = self.term(depth + 1)
            if not self.take(")"):
                raise _NotUnderstoodError
            return found
        token = self.tokens[self.at]
        self.at += 1
        self.parts += 1
        if token["sign"] or self.parts > _MOST_PARTS:
            raise _NotUnderstoodError
        if note := token["note"] or token["alone"]:
            self.notes.append(note)
        if token["alone"]:
            return Fraction(1), {}
        self.units += 1
        if token["number"]:
            number = Fraction(token["number"])
            if not number:
                raise _NotUnderstoodError
            return number, {}
        return self.unit(token["atom"], int(token["power"] or 1))

    def unit(self, code: str, power: int) -> tuple[Fraction, dict[str, int]]:
        found = _atom(code)
        if found is None:
            raise _NotUnderstoodError
        if found.scale:
            self.scales.append((found.scale, found.formula))
            self.parts += power != 1
        return found.size**power, {name: number * power for name, number in found.dimension}


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _NotUnderstoodError
        yield match
        at = match.end()


def tidy(powers: dict[str, int]) -> Dimension:
    """Exponents in order, without those that cancel out."""
    return tuple(sorted((name, power) for name, power in powers.items() if power))


@cache
def _table() -> dict[str, tuple[bool, str, str]]:
    """Every unit: whether it takes prefixes, its size, and the unit of its size."""
    made = {}
    for line in files("abaton.fhir").joinpath("units.txt").read_text(encoding="utf-8").splitlines():
        code, metric, size, unit = (*line.split(" "), "", "")[:4]
        made[code] = metric == "m", size, unit
    return made


@cache
def _defined(code: str) -> Unit:
    _, size, unit = _table()[code]
    if not size:
        return Unit(Fraction(1), ((code, 1),))
    match = _FUNCTION.fullmatch(size)
    told = read_unit(unit)
    assert told is not None, code
    if match is None:
        return Unit(told.size * Fraction(size), told.dimension)
    return Unit(Fraction(1), told.dimension, code, match[1])


@lru_cache(maxsize=4096)
def _atom(code: str) -> Unit | None:
    """A unit of the table, or one with a prefix; its size is then that of the prefix times its own."""
    known = _table()
    if code in known:
        return _defined(code)
    for prefix, size in (*_PREFIXES.items(), *_BINARY.items()):
        rest = code[len(prefix) :]
        if prefix in _BINARY and rest not in _INFORMATION:
            continue
        if code.startswith(prefix) and known.get(rest, (False,))[0]:
            found = _defined(rest)
            return found._replace(size=found.size * size)
    return None


def scale_unit(code: str) -> Fraction:
    """How many base units one step, or the reference, of a scale is: of [degF] 5/9 K, of B[SPL] 20 uPa."""
    _, size, unit = _table()[code]
    match, told = _FUNCTION.fullmatch(size), read_unit(unit)
    assert match is not None, code
    assert told is not None, code
    return told.size * Fraction(match[2])


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
