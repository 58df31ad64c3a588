"""A table as the search sees it: every different combination of quasi-identifiers once, with records and people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.records.anonymity.hierarchies import Label, Ladder
from abaton.records.anonymity.people import People
from abaton.anonymity.settings import Sensitive

Codes = NDArray[np.int32]
Counts = NDArray[np.int64]

_LARGEST_KEY = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Several:
    """The people who have several values or combinations: who has which value with which combination."""

    tuples: NDArray[np.intp]
    people: NDArray[np.intp]
    codes: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class SensitiveCounts:
    """Which sensitive values people have with each combination of quasi-identifiers.

    Attributes:
        asked: What is asked of the column.
        values: From lowest to highest; a missing value comes last.
        tuples: A combination, for each pair of combination and value that occurs.
        codes: The value of the pair.
        counts: How many people have this combination and this value and no other.
        several: The people who have more, listed.
        unsure: Per combination, the people of whom nothing but their number is told (by other sites).
        whole: How many people of the whole table stand for each value, where that is not the sum of the counts.
        untold: The share of the whole table's people of whom no value is told.
    """

    asked: Sensitive
    values: tuple[Label, ...]
    tuples: NDArray[np.intp]
    codes: NDArray[np.intp]
    counts: Counts
    several: Several | None = None
    unsure: Counts | None = None
    whole: Counts | None = None
    untold: float = 0.0

    @property
    def overall(self) -> NDArray[np.float64]:
        """The share of every value in the whole table."""
        counted = np.bincount(self.codes, weights=self.counts, minlength=len(self.values))
        totals = counted if self.whole is None else self.whole
        share: NDArray[np.float64] = totals / totals.sum()
        return share


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The different combinations of quasi-identifiers, the records and people that have each, and the sensitive values.

    Attributes:
        ladders: One per quasi-identifier.
        codes: One array per quasi-identifier: the leaf each combination has.
        counts: Records per combination.
        people: Who has which combination.
        sensitive: One entry per sensitive column.
        sites: Which site each combination is from, where several are counted together.
        hidden: Records that sites kept to themselves: they count as left out.
    """

    ladders: tuple[Ladder, ...]
    codes: tuple[Codes, ...]
    counts: Counts
    people: People
    sensitive: tuple[SensitiveCounts, ...] = ()
    sites: NDArray[np.intp] | None = None
    hidden: int = 0

    @property
    def records(self) -> int:
        """How many records the table has, hidden ones included."""
        return int(self.counts.sum()) + self.hidden

    def classes(self, node: Sequence[int]) -> tuple[NDArray[np.intp], int]:
        """The class of every combination when each column is shown on a level, and how many classes there are."""
        if not any(node) and self.sites is None:
            # Combinations differ by construction.
            return np.arange(len(self.counts)), len(self.counts)
        key = compact(
            [
                made.steps[level][code]
                for made, code, level in zip(self.ladders, self.codes, node, strict=True)
            ],
            [len(made.labels[level]) for made, level in zip(self.ladders, node, strict=True)],
        )
        return key, int(key.max()) + 1


def sizes(key: NDArray[np.intp], counts: Counts) -> NDArray[np.float64]:
    """Records of every class; whole numbers, kept as floats because they are only compared and divided."""
    return np.bincount(key, weights=counts).astype(np.float64, copy=False)


def compact(columns: Sequence[NDArray[np.integer]], widths: Sequence[int]) -> NDArray[np.intp]:
    """Number the different rows of some code columns 0, 1, 2 … in the order of their codes.

    >>> compact([np.array([0, 1, 0]), np.array([2, 0, 2])], [2, 3]).tolist()
    [0, 1, 0]
    """
    key, total = columns[0].astype(np.intp), widths[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        if total * width >= _LARGEST_KEY:
            key, total = dense(key, total)
        key, total = key * width + column, total * width
    return dense(key, total)[0]


def dense(key: NDArray[np.intp], width: int) -> tuple[NDArray[np.intp], int]:
    """Renumber keys below a width so that none is unused; returns them and how many there are."""
    if width <= 4 * len(key) + 1024:
        used = np.zeros(width, bool)
        used[key] = True
        place = np.cumsum(used) - 1
        return place[key], int(place[-1]) + 1
    values, key = np.unique(key, return_inverse=True)
    return key, len(values)
