"""A table as the search sees it: every different combination of quasi-identifiers once, with records and people.

Who has which combination of quasi-identifiers, so that a class counts people and never their rows.

Most people have one combination: they are only counted. Those who have several (an age that changed between two
stays) are listed with all of them, because in a class that holds two of their combinations they are still one person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.hierarchies import Label, Ladder
from abaton.anonymity.settings import Sensitive

Places = NDArray[np.intp]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """The people of a table.

    Attributes:
        alone: Per combination, how many people have it and no other.
        spread: The others, one array for all who have equally many: a row per person, their combinations in it.
    """

    alone: NDArray[np.int64]
    spread: tuple[Places, ...] = ()

    @property
    def total(self) -> int:
        """How many people there are."""
        return int(self.alone.sum()) + sum(len(block) for block in self.spread)

    def per_class(self, key: Places, classes: int, counted: Mask | None = None) -> Floats:
        """How many different people each class has; ``key`` gives the class of every combination.

        Where ``counted`` is given, rows of the other combinations count for nobody.

        >>> people = People(np.array([1, 0, 2]), (np.array([[0, 1], [1, 2]]),))
        >>> people.per_class(np.array([0, 0, 1]), 2).tolist()
        [3.0, 3.0]
        """
        nowhere = classes
        if counted is not None:
            key = np.where(counted, key, nowhere)
        found = np.bincount(key, weights=self.alone, minlength=classes + 1)
        for block in self.spread:
            own = np.sort(key[block], axis=1)
            found += np.bincount(own[_firsts(own)], minlength=classes + 1)
        return found[:classes].astype(np.float64, copy=False)

    def shown(self, kept: Mask) -> int:
        """How many people have at least one of the combinations that are kept."""
        return int(self.alone[kept].sum()) + sum(int(kept[block].any(axis=1).sum()) for block in self.spread)

    def at_home(self, kept: Mask) -> NDArray[np.int64]:
        """Everybody counted once, in one of their kept combinations: the one that fewest people have.

        Sums of these are never more than the people a class really has, whatever the class.
        """
        common = self.per_class(np.arange(len(self.alone)), len(self.alone), kept)
        found: NDArray[np.int64] = np.where(kept, self.alone, 0)
        for block in self.spread:
            rarity = np.where(kept[block], common[block], np.inf)
            home = block[np.arange(len(block)), rarity.argmin(axis=1)]
            np.add.at(found, home[kept[block].any(axis=1)], 1)
        return found

    def together(self, owner: Places) -> tuple[Places, Places]:
        """The combinations that one person has in one class, side by side, and where each such group begins.

        ``owner`` gives the class of every combination, -1 for those that do not matter. People with one
        combination are not listed.
        """
        if not self.spread:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        combination = np.concatenate([block.ravel() for block in self.spread])
        sizes = np.repeat([block.shape[1] for block in self.spread], [len(block) for block in self.spread])
        person = np.repeat(np.arange(len(sizes)), sizes)
        here = owner[combination] >= 0
        combination, person = combination[here], person[here]
        whose = owner[combination] * len(sizes) + person
        order = np.argsort(whose, kind="stable")
        ranked = whose[order]
        starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else ranked
        return combination[order], starts


def _firsts(ranked: Places) -> Mask:
    """Of rows in order, where something begins that the row did not have before."""
    first = np.ones(ranked.shape, bool)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    return first


def people_of(person: Places, combination: Places, combinations: int) -> People:
    """The people of a table from who has which combination, in any order and any number of times.

    >>> made = people_of(np.array([7, 7, 8, 7]), np.array([0, 1, 1, 0]), 2)
    >>> made.alone.tolist(), [block.tolist() for block in made.spread]
    ([0, 1], [[[0, 1]]])
    """
    pairs = np.unique(person * combinations + combination)
    owner, place = pairs // combinations, pairs % combinations
    several = np.bincount(owner)[owner]
    alone = np.bincount(place[several == 1], minlength=combinations).astype(np.int64)
    blocks = (place[several == n].reshape(-1, n) for n in np.unique(several) if n > 1)
    return People(alone, tuple(blocks))


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
