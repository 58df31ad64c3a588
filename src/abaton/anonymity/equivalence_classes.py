"""Encoded table: every distinct combination of quasi-identifiers once, with its records and subjects.

A class counts subjects, not rows. Most subjects have one combination and are only counted. Subjects with several
combinations (such as an age that changed between two stays) are listed with all of them, because they count once in a
class that contains two of their combinations. A subject with several sensitive values counts once, with the value
most common in the class; the largest share is then the exact confidence of an attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.hierarchies import Hierarchy, Label
from abaton.anonymity.settings import SensitiveAttribute

Indices = NDArray[np.intp]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SubjectIndex:
    """Subjects of a table.

    Attributes:
        single_counts: per combination, the number of subjects with this combination only.
        combination_blocks: the other subjects, one array for all with equally many combinations: a row per subject.
    """

    single_counts: NDArray[np.int64]
    combination_blocks: tuple[Indices, ...] = ()

    @property
    def total(self) -> int:
        """Number of subjects in all equivalence classes."""
        return int(self.single_counts.sum()) + sum(len(block) for block in self.combination_blocks)

    def per_class(self, key: Indices, classes: int, counted: Mask | None = None) -> Floats:
        """Return the subjects per equivalence class; ``key`` is the class of every combination.

        With ``counted``, rows of other combinations do not count.

        >>> subjects = SubjectIndex(np.array([1, 0, 2]), (np.array([[0, 1], [1, 2]]),))
        >>> subjects.per_class(np.array([0, 0, 1]), 2).tolist()
        [3.0, 3.0]
        """
        ignored_class = classes
        if counted is not None:
            key = np.where(counted, key, ignored_class)
        totals = np.bincount(key, weights=self.single_counts, minlength=classes + 1)
        for block in self.combination_blocks:
            ranked = np.sort(key[block], axis=1)
            totals += np.bincount(ranked[_first_occurrences(ranked)], minlength=classes + 1)
        return totals[:classes].astype(np.float64, copy=False)

    def count_released(self, retained: Mask) -> int:
        """Return the number of subjects with a retained combination of quasi-identifiers."""
        return int(self.single_counts[retained].sum()) + sum(
            int(retained[block].any(axis=1).sum()) for block in self.combination_blocks
        )

    def count_once(self, retained: Mask) -> NDArray[np.int64]:
        """Return the subjects per combination, each counted once in its rarest retained combination.

        Sums of these counts over a class never exceed the number of subjects in the class.
        """
        common = self.per_class(np.arange(len(self.single_counts)), len(self.single_counts), retained)
        counts: NDArray[np.int64] = np.where(retained, self.single_counts, 0)
        for block in self.combination_blocks:
            rarity = np.where(retained[block], common[block], np.inf)
            assigned = block[np.arange(len(block)), rarity.argmin(axis=1)]
            np.add.at(counts, assigned[retained[block].any(axis=1)], 1)
        return counts

    def shared_combinations(self, class_of: Indices) -> tuple[Indices, Indices]:
        """Return the combinations a subject has in one equivalence class, and where each such group starts.

        ``class_of`` is the class of every combination, -1 for those to ignore. Subjects with one combination are not
        listed.
        """
        if not self.combination_blocks:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        combination = np.concatenate([block.ravel() for block in self.combination_blocks])
        block_sizes = np.repeat(
            [block.shape[1] for block in self.combination_blocks],
            [len(block) for block in self.combination_blocks],
        )
        subject = np.repeat(np.arange(len(block_sizes)), block_sizes)
        included = class_of[combination] >= 0
        combination, subject = combination[included], subject[included]
        pair = class_of[combination] * len(block_sizes) + subject
        order = np.argsort(pair, kind="stable")
        ranked = pair[order]
        starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else ranked
        return combination[order], starts


def _first_occurrences(ranked: Indices) -> Mask:
    """Mark the first occurrence of each equivalence class in sorted rows."""
    first = np.ones(ranked.shape, bool)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    return first


def index_subjects(subject: Indices, combination: Indices, combinations: int) -> SubjectIndex:
    """Index the subjects by combination, to count them per equivalence class, from pairs in any order.

    >>> index = index_subjects(np.array([7, 7, 8, 7]), np.array([0, 1, 1, 0]), 2)
    >>> index.single_counts.tolist(), [block.tolist() for block in index.combination_blocks]
    ([0, 1], [[[0, 1]]])
    """
    pairs = np.unique(subject * combinations + combination)
    subject_index, index = pairs // combinations, pairs % combinations
    combination_counts = np.bincount(subject_index)[subject_index]
    single_counts = np.bincount(index[combination_counts == 1], minlength=combinations).astype(np.int64)
    blocks = (index[combination_counts == n].reshape(-1, n) for n in np.unique(combination_counts) if n > 1)
    return SubjectIndex(single_counts, tuple(blocks))


Codes = NDArray[np.int32]
Counts = NDArray[np.int64]

_MAX_KEY = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class MultiValueSubjects:
    """Subjects with several values or combinations: one entry per subject, combination and value."""

    combinations: NDArray[np.intp]
    subjects: NDArray[np.intp]
    codes: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class SensitiveCounts:
    """Sensitive values of subjects by combination of quasi-identifiers.

    Attributes:
        attribute: the sensitive attribute and its required models.
        values: from lowest to highest; a missing value is last.
        combinations: the combination of each pair of combination and value that occurs.
        codes: the value of the pair.
        counts: the number of subjects with this combination and this value only.
        multi_value_subjects: subjects with several, listed.
        unknown_subjects: per combination, subjects of other sites that are only counted.
        value_totals: subjects of the whole table per value, where that is not the sum of the counts.
        unreported_fraction: the fraction of the whole table's subjects without a reported value.
    """

    attribute: SensitiveAttribute
    values: tuple[Label, ...]
    combinations: NDArray[np.intp]
    codes: NDArray[np.intp]
    counts: Counts
    multi_value_subjects: MultiValueSubjects | None = None
    unknown_subjects: Counts | None = None
    value_totals: Counts | None = None
    unreported_fraction: float = 0.0

    @property
    def overall(self) -> NDArray[np.float64]:
        """Share of every sensitive value in the whole table, over all equivalence classes."""
        counted = np.bincount(self.codes, weights=self.counts, minlength=len(self.values))
        totals = counted if self.value_totals is None else self.value_totals
        share: NDArray[np.float64] = totals / totals.sum()
        return share


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTable:
    """Distinct combinations of quasi-identifiers with their records, subjects and sensitive values.

    Attributes:
        hierarchies: one per quasi-identifier.
        codes: one array per quasi-identifier: the leaf of each combination.
        counts: records per combination.
        subjects: which subject has which combination.
        sensitive: one entry per sensitive column.
        sites: the site of each combination, where several sites are counted together.
        suppressed: records that sites did not release.
    """

    hierarchies: tuple[Hierarchy, ...]
    codes: tuple[Codes, ...]
    counts: Counts
    subjects: SubjectIndex
    sensitive: tuple[SensitiveCounts, ...] = ()
    sites: NDArray[np.intp] | None = None
    suppressed: int = 0

    @property
    def records(self) -> int:
        """Number of records in all equivalence classes, including suppressed ones."""
        return int(self.counts.sum()) + self.suppressed

    def classes(self, node: Sequence[int]) -> tuple[NDArray[np.intp], int]:
        """Return the equivalence class of every combination at the given levels, and the number of classes."""
        if not any(node) and self.sites is None:
            # Combinations differ by construction.
            return np.arange(len(self.counts)), len(self.counts)
        key = number_rows(
            [
                hierarchy.ancestors[level][code]
                for hierarchy, code, level in zip(self.hierarchies, self.codes, node, strict=True)
            ],
            [len(hierarchy.labels[level]) for hierarchy, level in zip(self.hierarchies, node, strict=True)],
        )
        return key, int(key.max()) + 1


def class_sizes(key: NDArray[np.intp], counts: Counts) -> NDArray[np.float64]:
    """Return the size of each equivalence class in records; integers stored as floats."""
    return np.bincount(key, weights=counts).astype(np.float64, copy=False)


def number_rows(columns: Sequence[NDArray[np.integer]], widths: Sequence[int]) -> NDArray[np.intp]:
    """Number equivalence classes: the distinct rows of code columns get 0, 1, 2 … in the order of codes.

    >>> number_rows([np.array([0, 1, 0]), np.array([2, 0, 2])], [2, 3]).tolist()
    [0, 1, 0]
    """
    key, total = columns[0].astype(np.intp), widths[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        if total * width >= _MAX_KEY:
            key, total = renumber(key, total)
        key, total = key * width + column, total * width
    return renumber(key, total)[0]


def renumber(key: NDArray[np.intp], width: int) -> tuple[NDArray[np.intp], int]:
    """Renumber the keys of equivalence classes without gaps; return them and their number."""
    if width <= 4 * len(key) + 1024:
        used = np.zeros(width, bool)
        used[key] = True
        index = np.cumsum(used) - 1
        return index[key], int(index[-1]) + 1
    values, key = np.unique(key, return_inverse=True)
    return key, len(values)
