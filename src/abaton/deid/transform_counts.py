"""Counts of read, kept and dropped resources and elements, by path and reason, without values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from abaton.deid.context import TransformLog

PathReason = tuple[str, str]  # path of the element, or resource type; and the reason


@dataclass(slots=True)
class TransformCounts:
    """Counts of a de-identification, which can be added.

    ``requirement_subjects`` has a keyed digest of each subject that a required count includes, so that a subject with
    records in several files counts once.

    >>> one, other = TransformCounts(), TransformCounts()
    >>> one.read["Patient"] += 1
    >>> other.read["Patient"] += 2
    >>> one.add(other)
    >>> one.read["Patient"]
    3
    """

    read: Counter[str] = field(default_factory=Counter)
    kept_resources: Counter[str] = field(default_factory=Counter)
    dropped_resources: Counter[PathReason] = field(default_factory=Counter)
    dropped: Counter[PathReason] = field(default_factory=Counter)
    passed: Counter[PathReason] = field(default_factory=Counter)
    requirement_subjects: dict[str, set[int]] = field(default_factory=dict)
    refused: int = 0

    def add_log(self, log: TransformLog) -> None:
        """Add the entries of a transform log to the counts, and clear the log."""
        self.read.update(log.read)
        self.kept_resources.update(log.kept_resources)
        self.dropped_resources.update(log.dropped_resources)
        self.dropped.update(log.drops)
        self.passed.update(log.passes)
        for name, subject in log.requirement_subjects:
            self.requirement_subjects.setdefault(name, set()).add(subject)
        for dropped, count in Counter(log.shape_drops).items():
            for path_reason in dropped.drops:
                self.dropped[path_reason] += count
        log.clear()

    def add(self, other: TransformCounts) -> None:
        """Add other transform counts to these."""
        self.read.update(other.read)
        self.kept_resources.update(other.kept_resources)
        self.dropped_resources.update(other.dropped_resources)
        self.dropped.update(other.dropped)
        self.passed.update(other.passed)
        for name, subjects in other.requirement_subjects.items():
            self.requirement_subjects.setdefault(name, set()).update(subjects)
        self.refused += other.refused

    @property
    def requirement_counts(self) -> dict[str, int]:
        """Return the transform counts' numbers of subjects for each data requirement of purpose `count`."""
        return {name: len(subjects) for name, subjects in sorted(self.requirement_subjects.items())}

    def row(self) -> dict[str, Any]:
        """Return the transform counts as JSON values."""
        return {
            "read": dict(sorted(self.read.items())),
            "kept": dict(sorted(self.kept_resources.items())),
            "dropped_resources": _count_rows(self.dropped_resources, "type"),
            "dropped": _count_rows(self.dropped, "path"),
            "requirement_counts": self.requirement_counts,
            "refused": self.refused,
        }


def _count_rows(counts: Counter[PathReason], name: str) -> list[dict[str, Any]]:
    return [
        {name: path, "reason": reason, "count": count} for (path, reason), count in sorted(counts.items())
    ]
