"""Common inputs and outcomes by name, with their codes and units, for whoever does not know the codes by heart."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Any

from abaton.study.short.codes import SYSTEMS

_TYPED = re.compile(r"([a-z0-9]+)[ :=]+(\S+)(?: +(\S+))?")
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class Common:
    """An entry of the list: its name, our label, what it is (a section of the list), and its line in a short study."""

    name: str
    label: str
    section: str
    line: Mapping[str, Any]

    @property
    def codes(self) -> str:
        """Its codes in words."""
        found = [(name, self.line[name]) for name in SYSTEMS if name in self.line]
        return ", ".join(f"{name} {' '.join([v] if isinstance(v, str) else v)}" for name, v in found)


@cache
def common() -> tuple[Common, ...]:
    """The whole list."""
    text = files("abaton.study.shorthand").joinpath("common.toml").read_text(encoding="utf-8")
    return tuple(
        Common(name, str(entry["label"]), section, {k: v for k, v in entry.items() if k != "label"})
        for section, entries in tomllib.loads(text).items()
        for name, entry in entries.items()
    )


def found_by(words: str, sections: tuple[str, ...] = ()) -> list[Common]:
    """The entries that words may mean, best first: by name, label or code, also with a letter wrong.

    >>> [each.name for each in found_by("systolic")], [each.name for each in found_by("2160-0")]
    (['systolic'], ['creatinine'])
    """
    asked = words.strip().lower().replace("_", " ")
    ranked = [
        (_rank(asked, each), i, each)
        for i, each in enumerate(common())
        if not sections or each.section in sections
    ]
    return [each for rank, _, each in sorted(ranked, key=lambda one: one[:2]) if rank < 1]


def _rank(asked: str, each: Common) -> float:
    name, label = each.name.replace("_", " "), each.label.lower()
    if asked in (name, label):
        return 0.0
    if asked in name or asked in label or asked in each.codes.lower().replace("*", ""):
        return 0.5
    words = [name, *re.findall(r"[a-z0-9-]+", label)]
    likeness = max(SequenceMatcher(None, asked, word).ratio() for word in words)
    return 0.9 if likeness >= _CLOSE else 1.0


def typed_code(words: str) -> dict[str, Any] | None:
    """A line of a short study from a code as somebody types it: system, code, and a unit if it is measured.

    >>> typed_code("loinc 8480-6 mm[Hg]"), typed_code("high blood pressure")
    ({'loinc': '8480-6', 'unit': 'mm[Hg]'}, None)
    """
    match = _TYPED.fullmatch(words.strip())
    if match is None or match[1] not in SYSTEMS:
        return None
    return {match[1]: match[2]} | ({"unit": match[3]} if match[3] else {})
