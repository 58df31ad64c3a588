"""A codec's settings: how they are checked, and how they are written in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import ClassVar

from abaton.errors import SettingsError


def line(part: object, name: str) -> str:
    """The one line that names a codec or step: its name and the settings that are not the default.

    >>> from abaton.codecs.raw import Raw
    >>> line(Raw(), "raw")
    'raw'
    """
    assert is_dataclass(part)
    given = [
        f"{f.name}={getattr(part, f.name)}"
        for f in fields(part)
        if f.default is MISSING or getattr(part, f.name) != f.default
    ]
    return f"{name}({', '.join(given)})" if given else name


@dataclass(frozen=True, slots=True)
class Written:
    """A codec or step that a study names in one line."""

    name: ClassVar[str]

    @property
    def spec(self) -> str:
        """The line that names it with its settings."""
        return line(self, self.name)


def check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Refuse a number outside [low, high], or outside (low, high] where it must be above."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingsError(f"{name}={value} is not a number", remedy=f"give {name} a finite number")
    if value > high or value < low or (above and value == low):
        span = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise SettingsError(f"{name}={value} is out of range", remedy=f"choose {name} {span}")


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Refuse what is not a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(
            f"{name}={value} is not usable", remedy=f"choose a whole number from {low} to {high} for {name}"
        )


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name}={value} is not known", remedy=f"choose {name} from {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class Quantiser(Written):
    """A codec whose first setting is how many bits a number takes, 1 to 4."""

    bits: int

    def __post_init__(self) -> None:
        check_whole("bits", self.bits, 1, 4)
