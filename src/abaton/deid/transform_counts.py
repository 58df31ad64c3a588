"""The tally: how much was read, kept and dropped, by path and reason; never a value."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from abaton.deid.context import Notes

Where = tuple[str, str]  # the element's path and the reason


@dataclass(slots=True)
class Tally:
    """Counts of one run; two of them can be added.

    >>> one, other = Tally(), Tally()
    >>> one.read["Patient"] += 1
    >>> other.read["Patient"] += 2
    >>> one.add(other)
    >>> one.read["Patient"]
    3
    """

    read: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    left_out: Counter[Where] = field(default_factory=Counter)
    dropped: Counter[Where] = field(default_factory=Counter)
    passed: Counter[Where] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def note(self, notes: Notes) -> None:
        """Count what was noted, and clear the notes."""
        self.read.update(notes.read)
        self.kept.update(notes.kept)
        self.left_out.update(notes.left_out)
        self.dropped.update(notes.drops)
        self.passed.update(notes.passes)
        self.answers.update(notes.answers)
        for each, count in Counter(notes.seen).items():
            for where in each.drops:
                self.dropped[where] += count
        notes.clear()

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.read.update(other.read)
        self.kept.update(other.kept)
        self.left_out.update(other.left_out)
        self.dropped.update(other.dropped)
        self.passed.update(other.passed)
        self.answers.update(other.answers)
        self.refused += other.refused

    def row(self) -> dict[str, Any]:
        """The tally in the form that is printed as JSON."""
        return {
            "read": dict(sorted(self.read.items())),
            "kept": dict(sorted(self.kept.items())),
            "left_out": _list(self.left_out, "type"),
            "dropped": _list(self.dropped, "path"),
            "answers": dict(sorted(self.answers.items())),
            "refused": self.refused,
        }


def _list(counts: Counter[Where], name: str) -> list[dict[str, Any]]:
    return [
        {name: path, "reason": reason, "count": count} for (path, reason), count in sorted(counts.items())
    ]
