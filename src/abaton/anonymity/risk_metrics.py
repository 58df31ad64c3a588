"""How anonymous a shown table is, what an attacker could do, and what the coarsening costs.

Risk follows El Emam: a *prosecutor* knows the person is in the table, a *journalist* only that they are in
the population it was drawn from, a *marketer* wants as many people as possible and takes some errors. Classes are
as large as they have people; who has rows in several classes is in each of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from abaton.anonymity.equivalence_classes import Floats, SensitiveCounts, Table, dense
from abaton.anonymity.equivalence_classes import sizes as row_sizes
from abaton.anonymity.hierarchies import Label
from abaton.anonymity.privacy_models import (
    ClassCounts,
    class_counts,
    distinct,
    entropy,
    equal_distance,
    only,
    ordered_distance,
    recursive,
)
from abaton.anonymity.release import Release, satisfied
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import SettingsError

BUCKETS = (1, 2, 3, 5, 11, 21, 51, 101)
"""Where the histogram of class sizes starts a new bar."""


@dataclass(frozen=True, slots=True)
class Risk:
    """How likely a person is found, by three attackers; ``None`` where the population is not known."""

    prosecutor_highest: float
    prosecutor_average: float
    journalist_highest: float | None
    journalist_average: float | None
    marketer: float
    unique: float
    below_2: float
    below_5: float
    below_11: float


@dataclass(frozen=True, slots=True)
class SensitiveMeasure:
    """What the worst class gives away about one sensitive column.

    Attributes:
        column: The column.
        values: How many different values it has.
        distinct: The fewest different values in a class.
        entropy: The fewest effective values in a class (exp of the entropy).
        recursive_c: The c that recursive (c, l)-diversity would need; ``None`` if no c is large enough.
        l: The l that c is for.
        equal: The largest distance of a class from the whole table, all values equally far apart.
        ordered: The same with values as ranks.
        certain: The largest share one value has in a class: 1 means its members' value is known.
    """

    column: str
    values: int
    distinct: int
    entropy: float
    recursive_c: float | None
    l: int  # noqa: E741 - the model's name
    equal: float
    ordered: float
    certain: float


@dataclass(frozen=True, slots=True)
class Utility:
    """What the coarsening costs; 0 is nothing.

    Attributes:
        loss: ARX's ``Loss``: weighted geometric mean over columns of how much of the domain a name covers.
        ncp: Normalised certainty penalty: the average share of the domain that a coarsened cell covers.
        discernibility: Sum of squared class sizes; a left-out record counts as many as the table has.
        average_class_size: Records per class, in multiples of k.
    """

    loss: float
    ncp: float
    discernibility: float
    average_class_size: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that can be said about a shown table without showing it.

    Attributes:
        records: How many records are shown.
        suppressed: How many are left out.
        people: How many people have a record that is shown.
        people_left_out: How many have none.
        classes: How many different combinations of quasi-identifiers are seen.
        k: The people in the smallest class.
        holds: Whether the study's models are satisfied.
        histogram: People in a class: (from, classes, people) per bar.
        sensitive: One entry per sensitive column.
        risk: What attackers could do.
        utility: What it costs.
    """

    records: int
    suppressed: int
    people: int
    people_left_out: int
    classes: int
    k: int
    holds: bool
    histogram: tuple[tuple[int, int, int], ...]
    sensitive: tuple[SensitiveMeasure, ...]
    risk: Risk
    utility: Utility

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure(table: Table, shown: Release, settings: AnonymitySettings) -> Measured:
    """Measure a shown table: classes, risks and losses.

    Args:
        table: The table it was made from.
        shown: What is shown of it.
        settings: What the study asks, for k and l and the population.
    """
    place = np.zeros(len(table.counts), np.intp)
    classes = 0
    if shown.kept.any():
        place[shown.kept], classes = dense(shown.key[shown.kept], shown.classes)
    sizes = table.people.per_class(place, classes, shown.kept)
    counts = row_sizes(place[shown.kept], table.counts[shown.kept])
    records, people = int(counts.sum()), table.people.shown(shown.kept)
    sensitive = tuple(_sensitive(column, shown, place, classes) for column in table.sensitive if classes)
    return Measured(
        records,
        table.records - records,
        people,
        table.people.total - people,
        classes,
        int(sizes.min()) if classes else 0,
        satisfied(table, shown, settings),
        _histogram(sizes),
        sensitive,
        risk(sizes, _fraction(table, settings)),
        _utility(table, shown, counts, settings),
    )


def risk(sizes: Floats, fraction: float | None = None) -> Risk:
    """The risks of classes of some sizes.

    Args:
        sizes: People per class.
        fraction: Which share of the population is in the table, if known; a class of the population is then
            estimated as the class of the table divided by it.

    >>> risk(np.array([2.0, 8.0]), 0.1).journalist_highest
    0.05
    """
    if not len(sizes):
        return Risk(
            0.0, 0.0, None if fraction is None else 0.0, None if fraction is None else 0.0, *[0.0] * 5
        )
    people = sizes.sum()
    highest, average = 1 / sizes.min(), len(sizes) / people
    below = [float(sizes[sizes < limit].sum() / people) for limit in (2, 5, 11)]
    return Risk(
        float(highest),
        float(average),
        None if fraction is None else float(highest * fraction),
        None if fraction is None else float(average * fraction),
        float(average if fraction is None else average * fraction),
        below[0],
        *below,
    )


def _fraction(table: Table, settings: AnonymitySettings) -> float | None:
    if settings.population is None:
        return settings.sampling_fraction
    people = table.people.total
    if settings.population < people:
        raise SettingsError(
            f"the population of {settings.population:,} is smaller than the table, {people:,} people",
            where="privacy.anonymity.population",
            remedy="give the number of people the table was drawn from",
        )
    return people / settings.population


def _sensitive(column: SensitiveCounts, shown: Release, place: Any, classes: int) -> SensitiveMeasure:
    counts: ClassCounts = class_counts(only(column, shown.kept), place, classes, column.overall)
    asked = int(column.asked.diversity.l) if column.asked.diversity else 2
    worst = float(recursive(counts, asked).max())
    return SensitiveMeasure(
        column.asked.column,
        len(column.values),
        int(distinct(counts).min()),
        float(entropy(counts).min()),
        worst if np.isfinite(worst) else None,
        asked,
        float(equal_distance(counts).max()),
        float(ordered_distance(counts).max()),
        float(counts.shares.max()),
    )


def _histogram(sizes: Floats) -> tuple[tuple[int, int, int], ...]:
    bar = np.searchsorted(BUCKETS, sizes, side="right") - 1
    classes = np.bincount(bar, minlength=len(BUCKETS))
    people = np.bincount(bar, weights=sizes, minlength=len(BUCKETS))
    return tuple((low, int(c), int(p)) for low, c, p in zip(BUCKETS, classes, people, strict=True))


def _utility(table: Table, shown: Release, sizes: Floats, settings: AnonymitySettings) -> Utility:
    records, columns = table.records, len(table.ladders)
    counts = table.counts[shown.kept]
    left_out = records - int(counts.sum())
    loss, penalty = 1.0, 0.0
    for made, covered, weight in zip(table.ladders, shown.covered, settings.weights, strict=True):
        share = covered[shown.kept] / made.size
        raw, least = float((counts * share).sum()) + left_out, records / made.size
        if made.size > 1:
            loss *= (1 + max((raw - least) / (records - least), 0.0)) ** weight
        coarse = np.where(covered[shown.kept] > 1, share, 0.0)
        penalty += (float((counts * coarse).sum()) + left_out) / (records * columns)
    squares = float((sizes * sizes).sum()) + float(left_out) * records
    average = float(sizes.mean()) / settings.k if len(sizes) else 0.0
    return Utility(loss - 1, penalty, squares, average)


def levels(table: Table, shown: Release) -> list[dict[str, Any]]:
    """For every quasi-identifier: its level, the highest there is, and how many names are shown."""
    rows = []
    for i, (made, names) in enumerate(zip(table.ladders, shown.names, strict=True)):
        used: set[Label] = {names[place] for place in np.unique(shown.places[i][shown.kept])}
        level = None if shown.node is None else shown.node[i]
        rows.append({"column": made.column, "level": level, "height": made.height, "names": len(used)})
    return rows
