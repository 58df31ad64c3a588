"""Mondrian: cut the table into ever smaller boxes, each with at least k records (LeFevre et al. 2006).

All boxes of one round are cut at once. A cut goes through the median of the relatively widest column that
allows one; both sides must satisfy k, diversity and closeness. Columns are cut along their hierarchy's order
of values, so that neighbours mean something. Nobody is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.errors import Refused
from abaton.records.anonymity.hierarchies import Label, Ladder
from abaton.records.anonymity.models import Floats, Mask, only, safe, safe_classes
from abaton.records.anonymity.settings import AnonymitySettings
from abaton.records.anonymity.tables import Table, dense, sizes

Places = NDArray[np.intp]

_CELLS = 4_000_000


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
    if not safe(key, sizes(key, table.counts), settings.k, table.sensitive, overall).all():
        raise Refused(
            "the whole table taken together does not satisfy the study's anonymity",
            where="privacy.anonymity",
            remedy="lower k or l, or collect more records",
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
    counts = table.counts[active]
    totals = sizes(box, counts)
    widest = np.full(count, -1.0)
    upper = np.zeros(len(active), bool)
    for made, codes in zip(table.ladders, table.codes, strict=True):
        code = codes[active]
        threshold, span = _medians(box, code, counts, totals, len(made.labels[0]), settings.k)
        wider = (span / max(len(made.labels[0]) - 1, 1) > widest) & (threshold >= 0)
        if not wider.any():
            continue
        side = code > threshold[box]
        if table.sensitive:
            wider &= _both_safe(table, overall, active, 2 * box + side, wider[box])
        widest[wider] = (span / max(len(made.labels[0]) - 1, 1))[wider]
        chosen = wider[box]
        upper[chosen] = side[chosen]
    cut = widest[box] >= 0
    return upper & cut, cut


def _medians(
    box: Places, code: NDArray[np.int32], counts: NDArray[np.int64], totals: Floats, width: int, k: int
) -> tuple[Places, Places]:
    """Per box, the last value of its lower half (-1: none leaves k on both sides) and how far it reaches."""
    threshold, span = np.full(len(totals), -1, np.intp), np.zeros(len(totals), np.intp)
    order = np.argsort(box, kind="stable")
    for low, high, chunk in _chunks(box, order, len(totals), max(_CELLS // width, 1)):
        cell = (box[chunk] - low) * width + code[chunk]
        tally = np.bincount(cell, weights=counts[chunk], minlength=(high - low) * width).reshape(-1, width)
        reached = np.cumsum(tally, axis=1)
        total = totals[low:high]
        middle = np.argmax(2 * reached >= total[:, None], axis=1)
        rows = np.arange(high - low)
        with_it = reached[rows, middle]
        without = with_it - tally[rows, middle]
        fits = (with_it >= k) & (total - with_it >= k)
        before = (without >= k) & (total - without >= k)
        nearer = before & (~fits | (total / 2 - without < with_it - total / 2))
        threshold[low:high] = np.where(nearer, middle - 1, np.where(fits, middle, -1))
        present = tally > 0
        span[low:high] = width - 1 - np.argmax(present[:, ::-1], axis=1) - np.argmax(present, axis=1)
    return threshold, span


def _chunks(box: Places, order: Places, count: int, step: int) -> Iterator[tuple[int, int, Places]]:
    """Slices of boxes small enough to tally densely, with the combinations in them."""
    edges = np.searchsorted(box[order], np.arange(0, count + step, step))
    for i, low in enumerate(range(0, count, step)):
        yield low, min(low + step, count), order[edges[i] : edges[i + 1]]


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
        known = _known_ranges(made)
        names.append(tuple(_name(made, *divmod(int(pair), len(made.labels[0])), known) for pair in pairs))
        ranges.append((low, high))
        places.append(place)
    return Boxes(key, tuple(ranges), tuple(names), tuple(places))


def _known_ranges(made: Ladder) -> dict[tuple[int, int], Label]:
    """The ranges of values that have a name in the hierarchy; finer names win."""
    known: dict[tuple[int, int], Label] = {}
    for labels, step in zip(made.labels, made.steps, strict=True):
        for code, label in enumerate(labels):
            inside = np.flatnonzero(step == code)
            known.setdefault((int(inside[0]), int(inside[-1])), label)
    return known


def _name(made: Ladder, low: int, high: int, known: dict[tuple[int, int], Label]) -> Label:
    """The hierarchy's name where it has one for exactly this range, else from-to, else all values."""
    if (low, high) in known:
        return known[low, high]
    values = [value for value in made.labels[0][low : high + 1] if value is not None]
    unknown = ["missing"] * (high - low + 1 - len(values))
    if all(_is_number(value) for value in values):
        return "|".join([f"{values[0]}-{values[-1]}" if len(values) > 1 else values[0], *unknown])
    return "|".join([*values, *unknown])


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdecimal()
