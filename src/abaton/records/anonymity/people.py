"""Who has which combination of quasi-identifiers, so that a class counts people and never their rows.

Most people have one combination: they are only counted. Those who have several (an age that changed between two
stays) are listed with all of them, because in a class that holds two of their combinations they are still one person.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
