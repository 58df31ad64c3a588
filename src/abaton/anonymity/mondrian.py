"""Mondrian: cut the table into ever smaller boxes, each with at least k people (LeFevre et al. 2006).

All boxes of one round are cut at once. A cut goes through the median of the relatively widest column that
allows one, its width counted with the column's weight; both sides must satisfy k, diversity and closeness. Columns
are cut along their hierarchy's order of values, so that neighbours mean something. Nobody is left out. Who has rows
on both sides of a cut is one person on each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import Floats, Mask, People, Places, Table, dense
from abaton.anonymity.hierarchies import Label, Ladder
from abaton.anonymity.privacy_models import only, safe, safe_classes
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import Refused

_LONGEST_LIST = 20


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The boxes a table was cut into.

    Attributes:
        key: The box of every combination.
        ranges: Per quasi-identifier, the first and last value in every box, as places in the ladder.
        names: Per quasi-identifier, the different names of such ranges.
        places: Per quasi-identifier, the name of every box.
    """

    key: Places
    ranges: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    names: tuple[tuple[Label, ...], ...]
    places: tuple[Places, ...]


def boxes(table: Table, settings: AnonymitySettings) -> Boxes:
    """Cut a table into the smallest boxes that still satisfy the study's models.

    Raises:
        Refused: Not even the whole table in one box satisfies them.
    """
    overall = [column.overall for column in table.sensitive]
    key = np.zeros(len(table.counts), np.intp)
    if not safe(key, table.people.per_class(key, 1), settings.k, table.sensitive, overall).all():
        raise Refused(
            "the whole table taken together does not satisfy the study's anonymity",
            where="privacy.anonymity",
            remedy="lower k or l, or collect records of more people",
        )
    active = np.arange(len(key))
    boxes_made = 1
    while len(active):
        upper, cut = _cut(table, settings, overall, key, active)
        key[active[upper]] += boxes_made
        # Boxes that could not be cut are finished; the others go on as two.
        active = active[cut]
        key, boxes_made = dense(key, 2 * boxes_made)
    return _describe(table, key)


def _cut(
    table: Table, settings: AnonymitySettings, overall: list[Floats], key: Places, active: Places
) -> tuple[Mask, Mask]:
    """Of the combinations still in play: which go to the upper half of their box, and whose box was cut."""
    box, count = dense(key[active], int(key.max()) + 1)
    members = _Members(table.people, active, box, len(key))
    widest = np.full(count, -1.0)
    upper = np.zeros(len(active), bool)
    for made, codes, weight in zip(table.ladders, table.codes, settings.weights, strict=True):
        threshold, span = _medians(members.runs(codes, len(made.labels[0])), count, settings.k)
        width = span / max(len(made.labels[0]) - 1, 1) * weight
        wider = (width > widest) & (threshold >= 0)
        if not wider.any():
            continue
        side = codes[active] > threshold[box]
        if table.sensitive:
            wider &= _both_safe(table, overall, active, 2 * box + side, wider[box])
        widest[wider] = width[wider]
        taken = wider[box]
        upper[taken] = side[taken]
    cut = widest[box] >= 0
    return upper & cut, cut


class _Runs(NamedTuple):
    """The different pairs of box and value in order, and for how many people each is the lowest or the highest.

    A cut above a value leaves those on the lower side whose lowest value is not above it, and those on the upper side
    whose highest value is: both can be summed up along the values.
    """

    owner: Places
    value: Places
    lowest: Floats
    highest: Floats


class _Members:
    """Who is in which box: people with one combination, and the others with all that they have there."""

    def __init__(self, people: People, active: Places, box: Places, combinations: int) -> None:
        self.active, self.boxes = active, int(box.max()) + 1
        owner = np.full(combinations, -1)
        owner[active] = box
        self.listed, self.starts = people.together(owner)
        self.box = np.append(box, owner[self.listed[self.starts]])
        self.number = np.append(people.alone[active], np.ones(len(self.starts), np.int64))

    def runs(self, codes: NDArray[np.int32], width: int) -> _Runs:
        """Where the people of every box begin and end in a column."""
        ends = [self.box * width + self._reach(codes, np.minimum)]
        if len(self.starts):
            ends.append(self.box * width + self._reach(codes, np.maximum))
        if self.boxes * width <= 8 * len(self.box) + 1024:
            tallies = [np.bincount(end, self.number, self.boxes * width) for end in ends]
            cells = np.flatnonzero(sum(tallies))
            tallies = [tally[cells] for tally in tallies]
        else:
            cells, place = np.unique(np.concatenate(ends), return_inverse=True)
            tallies = [np.bincount(part, self.number, len(cells)) for part in np.split(place, len(ends))]
        found = [tally.astype(np.float64, copy=False) for tally in tallies]
        return _Runs(cells // width, cells % width, found[0], found[-1])

    def _reach(self, codes: NDArray[np.int32], end: np.ufunc) -> NDArray[np.int32]:
        alone = codes[self.active]
        if not len(self.starts):
            return alone
        return np.append(alone, end.reduceat(codes[self.listed], self.starts))


def _medians(runs: _Runs, boxes: int, k: int) -> tuple[Places, Places]:
    """Per box, the last value of its lower half (-1: none leaves k on both sides) and how far it reaches."""
    first = np.searchsorted(runs.owner, np.arange(boxes))
    last = np.append(first[1:], len(runs.owner)) - 1
    reached, ended = np.cumsum(runs.lowest), np.cumsum(runs.highest)
    before = reached[first] - runs.lowest[first]
    totals = reached[last] - before
    middle = np.minimum(np.searchsorted(reached, before + totals / 2), last)
    below = reached[middle] - before
    above = totals - (ended[middle] - before)
    below_without, above_without = below - runs.lowest[middle], above + runs.highest[middle]
    fits = (below >= k) & (above >= k)
    fits_without = (below_without >= k) & (above_without >= k)
    nearer = fits_without & (~fits | (totals / 2 - below_without < below - totals / 2))
    threshold = np.where(nearer, runs.value[middle] - 1, np.where(fits, runs.value[middle], -1))
    return threshold, runs.value[last] - runs.value[first]


def _both_safe(table: Table, overall: list[Floats], active: Places, halves: Places, tried: Mask) -> Mask:
    """Of every box, whether both its halves are diverse and close enough."""
    safe_halves = np.ones(int(halves.max() // 2 + 1) * 2, bool)
    wanted = np.zeros(len(table.counts), bool)
    wanted[active[tried]] = True
    place = np.zeros(len(table.counts), np.intp)
    place[active[tried]], count = dense(halves[tried], len(safe_halves))
    for column, whole in zip(table.sensitive, overall, strict=True):
        held = safe_classes(only(column, wanted), place, count, whole)
        safe_halves[halves[tried]] &= held[place[active[tried]]]
    both: Mask = safe_halves[0::2] & safe_halves[1::2]
    return both


def _describe(table: Table, key: Places) -> Boxes:
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(int(key.max()) + 1))
    ranges, names, places = [], [], []
    for made, codes in zip(table.ladders, table.codes, strict=True):
        low = np.minimum.reduceat(codes[order], starts).astype(np.int64)
        high = np.maximum.reduceat(codes[order], starts).astype(np.int64)
        pairs, place = np.unique(low * len(made.labels[0]) + high, return_inverse=True)
        namer = _Namer(made)
        named = [namer.name(*divmod(int(pair), len(made.labels[0]))) for pair in pairs]
        ends = np.array([(first, last) for _, first, last in named], np.int64)[place]
        names.append(tuple(label for label, _, _ in named))
        ranges.append((ends[:, 0], ends[:, 1]))
        places.append(place)
    return Boxes(key, tuple(ranges), tuple(names), tuple(places))


class _Namer:
    """Names for ranges of a ladder's values."""

    def __init__(self, made: Ladder) -> None:
        self.values = made.labels[0]
        self.interval = _interval([value for value in self.values if value is not None])
        self.missing = self.values.index(None) if None in self.values else -1
        self.levels = []
        for labels, step in zip(made.labels, made.steps, strict=True):
            first = np.unique(step, return_index=True)[1]
            last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
            self.levels.append((labels, step, first, last))

    def name(self, low: int, high: int) -> tuple[Label, int, int]:
        """The name of a range and the range it really covers.

        The hierarchy's name where it has one for exactly this range, else from-to, else all values; a long list
        of values is replaced by the finest name of the hierarchy that covers them all.
        """
        covering = [
            (labels[step[low]], int(first[step[low]]), int(last[step[low]]))
            for labels, step, first, last in self.levels
            if step[low] == step[high]
        ]
        if covering and covering[0][1:] == (low, high):
            return covering[0]
        if self.interval:
            ends = [place for place in (low, low + 1, high - 1, high) if place != self.missing]
            first, last = self.values[ends[0]], self.values[ends[-1]]
            known = f"{first}{self.interval}{last}" if first != last else f"{first}"
            return known + "|missing" * (low <= self.missing <= high), low, high
        if covering and high - low >= _LONGEST_LIST:
            return covering[0]
        return "|".join("missing" if v is None else v for v in self.values[low : high + 1]), low, high


def _interval(values: list[str]) -> str:
    """What stands between the ends of a range: 7-9 for numbers, ISO 8601's 1987-05/1988 for dates."""
    if all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in values):
        return "-" if sorted(values, key=float) == values else ""
    dates = all(re.fullmatch(r"\d{4}(-\d{2}.*)?", value) for value in values)
    return "/" if dates and sorted(values) == values else ""
