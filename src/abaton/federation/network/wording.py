"""What a study's sites and its centre say to each other, as plain values; what comes in is checked before it is used.

Nothing here can hold a row of a table: sums, counts, masked numbers and digests are all there is.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from abaton.engines.flower import Parcel
from abaton.errors import PayloadError
from abaton.federation.explaining import SiteExplained, inputs_of, points_of
from abaton.federation.gains import OWN, SiteGain, Standing
from abaton.federation.judging import Counted, Subset, Told
from abaton.federation.members import Sums
from abaton.federation.prepared import Scale
from abaton.federation.run import COMMUNITY
from abaton.learning.clinical import BINS, Estimate, ScoreCounts
from abaton.learning.times import PairSums
from abaton.learning.values import ValueSums
from abaton.records.features import Column, Moments, Statistics
from abaton.study import Explanation

_BODY = "body"
_CHOSEN = frozenset({"weight", "intercept", "slope"})  # what a site chooses for a model of its own
_LARGEST = 1 << 26
_MOST = 1 << 53  # whole numbers beyond are not exact in JSON
_LARGEST_NUMBER = sys.float_info.max
_FARTHEST = 1e150  # squares of it are numbers, too

PEOPLE = 1 << 34
"""More than there are: no count of people is above."""


def worded(kind: str, about: Mapping[str, Any], body: Mapping[str, Any]) -> Parcel:
    """A message whose plain values may be many."""
    return Parcel(kind, about, {_BODY: json.dumps(body, separators=(",", ":")).encode()})


def body_of(parcel: Parcel) -> dict[str, Any]:
    """The plain values of a message.

    >>> body_of(worded("read", {}, {"k": 5}))
    {'k': 5}
    """
    data = parcel.blobs.get(_BODY, b"")
    try:
        found = json.loads(data) if len(data) <= _LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise unreadable()
    return found


def scale_from(row: Mapping[str, Any]) -> Scale:
    """What all scale by, read with care."""
    mean, deviation = numbers(row["label"], length=2)
    return Scale(_statistics(row["columns"]), (mean, deviation))


def sums_row(told: Sums) -> dict[str, Any]:
    """What a site tells for scaling, as plain values."""
    return {"columns": _moments_row(told.columns), "label": list(astuple(told.label))}


def sums_from(row: Mapping[str, Any]) -> Sums:
    """What a site tells for scaling, read with care."""
    return Sums(_statistics(row["columns"]), _moments(row["label"]))


def told_row(told: Told) -> list[Any]:
    """What a site tells of a model, as plain values: counts in those bins that are not empty, or sums."""
    return [[subset.name, subset.of, _counted(what)] for subset, what in told.items()]


def told_from(rows: Sequence[Any], cases: int) -> Told:
    """What a site tells of a model, read with care; `cases` classes are told of, none for values and times."""
    made: dict[Subset, Counted] = {}
    for name, of, what in rows:
        made[Subset(text(name), text(of))] = _counted_from(what, cases)
    return made


def gain_row(found: SiteGain) -> dict[str, Any]:
    """What a site gains as plain values: measures and differences of every model, or why there is nothing."""
    told = None if found.told is None else {name: each.row() for name, each in found.told.items()}
    return {"why": found.why, "gain": told}


def gain_from(row: Mapping[str, Any], ways: Sequence[str]) -> SiteGain:
    """What a site gains, read with care: of its own model, the community model and the study's ways, and no others."""
    told, why = row["gain"], text(row["why"])
    if told is None:
        return SiteGain(None, why)
    if not isinstance(told, dict) or list(told) not in ([OWN, COMMUNITY], [OWN, COMMUNITY, *ways]):
        raise unreadable()
    return SiteGain({name: _standing(each) for name, each in told.items()}, why)


def _standing(row: Mapping[str, Any]) -> Standing:
    chosen = row["chosen"]
    if not isinstance(chosen, dict) or not chosen.keys() <= _CHOSEN:
        raise unreadable()
    value, over_own, over_community = (
        _estimate(row[name]) for name in ("value", "over_own", "over_community")
    )
    told = {name: numbers([each], length=1)[0] for name, each in chosen.items()}
    return Standing(value, over_own, over_community, told)


def _estimate(row: object) -> Estimate:
    if not isinstance(row, list) or len(row) != 3:
        raise unreadable()
    return Estimate(*(math.nan if each is None else numbers([each], length=1)[0] for each in row))


def explained_row(told: SiteExplained) -> dict[str, Any]:
    """What a site tells of what a model goes by, as plain values."""
    return {
        "subjects": told.subjects,
        "told": told_row(told.told),
        "shuffled": {name: [_counted(each) for each in times] for name, times in told.shuffled.items()},
        "means": {name: [list(each) for each in points] for name, points in told.means.items()},
    }


def explained_from(
    row: Mapping[str, Any], asked: Explanation, columns: Sequence[Column], cases: int
) -> SiteExplained:
    """What a site tells of what a model goes by, read with care: every input and every point, and no others."""
    inputs = list(inputs_of(columns)) if asked.importance else []
    points = {name: len(points_of(asked, name, columns)) for name in asked.dependence}
    told, subjects = told_from(row["told"], cases), whole(row["subjects"], PEOPLE)
    if list(row["shuffled"]) != inputs or list(row["means"]) != list(points) or not told or not subjects:
        raise unreadable()
    if any(len(times) != asked.importance for times in row["shuffled"].values()):
        raise unreadable()
    if any(len(row["means"][name]) != number for name, number in points.items()):
        raise unreadable()
    return SiteExplained(
        subjects,
        told,
        {name: [_counted_from(each, cases) for each in times] for name, times in row["shuffled"].items()},
        {name: [numbers(each, length=max(cases, 1)) for each in row["means"][name]] for name in points},
    )


def _counted_from(what: Any, cases: int) -> Counted:
    if not cases and isinstance(what, list) and len(what) == len(fields(PairSums)):
        return _pair_sums(numbers(what, length=len(fields(PairSums))))
    if not cases:
        return _value_sums(numbers(what, length=len(fields(ValueSums))))
    if not isinstance(what, list) or len(what) != cases:
        raise unreadable()
    return [_score_counts(each) for each in what]


def _pair_sums(told: Sequence[float]) -> PairSums:
    """Sums over pairs: what is right is among all of them, and nobody is in more pairs than there are others."""
    subjects, events, right, pairs, right_squared, both, pairs_squared = told
    most = subjects * subjects
    fits = 0 <= right <= pairs <= most and 0 <= right_squared <= both <= pairs_squared <= subjects * most
    if not fits or events > subjects:
        raise unreadable()
    return PairSums(whole(subjects, PEOPLE), whole(events), right, pairs, right_squared, both, pairs_squared)


def _value_sums(told: Sequence[float]) -> ValueSums:
    """Sums of errors and of values: each is at most what the next higher power allows (Cauchy and Schwarz)."""
    number, absolute, squared, fourth, total, squares = told
    fits = absolute >= 0 and 0 <= squared <= _FARTHEST and fourth >= 0 and squares >= 0
    pairs = (absolute, squared), (squared, fourth), (abs(total), squares)
    if not fits or not all(_root_of(number, each) * (1 + 1e-6) >= low for low, each in pairs):
        raise unreadable()
    return ValueSums(whole(number, PEOPLE), absolute, squared, fourth, total, squares)


def _root_of(number: float, squares: float) -> float:
    """The largest sum that so many numbers can have whose squares add up to something."""
    return math.sqrt(max(0.0, number)) * math.sqrt(squares)


def numbers(said: object, *, length: int) -> list[float]:
    """So many finite numbers."""
    if not isinstance(said, list) or len(said) != length:
        raise unreadable()
    for each in said:
        if isinstance(each, bool) or not isinstance(each, int | float) or not abs(each) <= _LARGEST_NUMBER:
            raise unreadable()
    return [float(each) for each in said]


def whole(said: object, most: int = _MOST) -> int:
    """A whole number that is not negative, and not larger than it can be."""
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= most or said % 1:
        raise unreadable()
    return int(said)


def text(said: object, longest: int = 400) -> str:
    """A line of text, not too long, without control characters."""
    if not isinstance(said, str) or len(said) > longest or not said.isprintable():
        raise unreadable()
    return said


def unreadable() -> PayloadError:
    """A message that cannot be what it says."""
    return PayloadError(
        "an answer is not readable", where="network", remedy="check that the site runs the same Abaton"
    )


def _moments_row(statistics: Statistics) -> dict[str, list[float]]:
    return {name: list(astuple(each)) for name, each in statistics.of.items()}


def _statistics(row: object) -> Statistics:
    if not isinstance(row, dict):
        raise unreadable()
    return Statistics({text(name): _moments(each) for name, each in row.items()})


def _moments(row: object) -> Moments:
    count, total, squares = numbers(row, length=3)
    if not 0 <= squares <= _FARTHEST or _root_of(count, squares) * (1 + 1e-6) < abs(total):
        raise unreadable()
    return Moments(whole(count, PEOPLE), total, squares)


def _counted(what: Counted) -> list[Any]:
    if isinstance(what, ValueSums | PairSums):
        return list(astuple(what))
    made = []
    for counts in what:
        some = np.flatnonzero(counts.cases + counts.controls)
        made.append([[int(i), int(counts.cases[i]), int(counts.controls[i])] for i in some])
    return made


def _score_counts(rows: object) -> ScoreCounts:
    if not isinstance(rows, list) or len(rows) > BINS:
        raise unreadable()
    cases, controls = np.zeros(BINS), np.zeros(BINS)
    for row in rows:
        place, ill, well = (whole(each, PEOPLE) for each in numbers(row, length=3))
        if place >= BINS:
            raise unreadable()
        cases[place], controls[place] = ill, well
    return ScoreCounts((np.arange(BINS) + 0.5) / BINS, cases, controls)
