"""Anonymity metrics of a release: re-identification risk, sensitive values and data utility.

Risk follows El Emam: a *prosecutor* knows that the person is in the table, a *journalist* only that they are in the
population it was sampled from, a *marketer* wants to re-identify as many as possible and accepts errors. The size of
a class is its number of subjects; a subject with rows in several classes is in each of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from abaton.anonymity.equivalence_classes import EncodedTable, Floats, SensitiveCounts, class_sizes, renumber
from abaton.anonymity.hierarchies import Label
from abaton.anonymity.privacy_models import (
    ClassCounts,
    class_counts,
    distinct,
    entropy,
    equal_distance,
    ordered_distance,
    recursive,
    restrict_to,
)
from abaton.anonymity.release import TableRelease, is_satisfied
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import SettingsError

SIZE_BINS = (1, 2, 3, 5, 11, 21, 51, 101)
"""Lower bounds of the bins of the histogram of class sizes."""


@dataclass(frozen=True, slots=True)
class ReidentificationRisk:
    """Probability of re-identification by three attackers; ``None`` where the population is unknown."""

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
    """Metrics of the worst class for one sensitive column.

    Attributes:
        column: the column.
        values: the number of distinct values.
        distinct: the smallest number of distinct values in a class.
        entropy: the smallest effective number of values in a class (exp of the entropy).
        recursive_c: the c that recursive (c, l)-diversity would need; ``None`` if no c is large enough.
        l: the l of that c.
        equal: the largest distance of a class from the whole table, with equal distances between values.
        ordered: the same with values as ranks.
        max_confidence: the largest share of one value in a class: 1 means that the value of its subjects is known.
    """

    column: str
    values: int
    distinct: int
    entropy: float
    recursive_c: float | None
    l: int  # noqa: E741 - the model's name
    equal: float
    ordered: float
    max_confidence: float


@dataclass(frozen=True, slots=True)
class DataUtility:
    """Information loss of the generalisation; 0 is none.

    Attributes:
        loss: ARX's ``Loss``: weighted geometric mean over columns of the share of the domain that a name covers.
        ncp: normalised certainty penalty: the mean share of the domain that a generalised cell covers.
        discernibility: sum of squared class sizes; a suppressed record counts as many as the table has.
        average_class_size: records per class, in multiples of k.
    """

    loss: float
    ncp: float
    discernibility: float
    average_class_size: float


@dataclass(frozen=True, slots=True)
class AnonymityMetrics:
    """Anonymity metrics of a release.

    Attributes:
        records: the number of released records.
        suppressed: the number of suppressed records.
        subjects: the number of subjects with a released record.
        suppressed_subjects: the number of subjects without one.
        classes: the number of equivalence classes.
        k: the number of subjects in the smallest class.
        is_satisfied: whether the study's models are satisfied.
        histogram: per bin of class sizes: lower bound, classes, subjects.
        sensitive: one entry per sensitive column.
        risk: the risk of re-identification.
        utility: the information loss.
    """

    records: int
    suppressed: int
    subjects: int
    suppressed_subjects: int
    classes: int
    k: int
    is_satisfied: bool
    histogram: tuple[tuple[int, int, int], ...]
    sensitive: tuple[SensitiveMeasure, ...]
    risk: ReidentificationRisk
    utility: DataUtility

    def row(self) -> dict[str, Any]:
        """Return the risk and utility metrics of a table as JSON values."""
        return asdict(self)


def compute_metrics(
    table: EncodedTable, release: TableRelease, settings: AnonymitySettings
) -> AnonymityMetrics:
    """Compute the risk and utility metrics of an anonymous release.

    Args:
        table: the encoded table.
        release: the release.
        settings: the study's settings, for k, l and the population.
    """
    index = np.zeros(len(table.counts), np.intp)
    classes = 0
    if release.retained.any():
        index[release.retained], classes = renumber(release.key[release.retained], release.classes)
    sizes = table.subjects.per_class(index, classes, release.retained)
    counts = class_sizes(index[release.retained], table.counts[release.retained])
    records, subjects = int(counts.sum()), table.subjects.count_released(release.retained)
    sensitive = tuple(_sensitive(column, release, index, classes) for column in table.sensitive if classes)
    return AnonymityMetrics(
        records,
        table.records - records,
        subjects,
        table.subjects.total - subjects,
        classes,
        int(sizes.min()) if classes else 0,
        is_satisfied(table, release, settings),
        _histogram(sizes),
        sensitive,
        estimate_risk(sizes, _fraction(table, settings)),
        _utility(table, release, counts, settings),
    )


def estimate_risk(sizes: Floats, fraction: float | None = None) -> ReidentificationRisk:
    """Estimate the risk of re-identification from class sizes.

    Args:
        sizes: subjects per class.
        fraction: the share of the population that is in the table, if known; the size of a class in the population is
            estimated as its size in the table divided by this share.

    >>> estimate_risk(np.array([2.0, 8.0]), 0.1).journalist_highest
    0.05
    """
    if not len(sizes):
        return ReidentificationRisk(
            0.0, 0.0, None if fraction is None else 0.0, None if fraction is None else 0.0, *[0.0] * 5
        )
    subjects = sizes.sum()
    highest, average = 1 / sizes.min(), len(sizes) / subjects
    below = [float(sizes[sizes < limit].sum() / subjects) for limit in (2, 5, 11)]
    return ReidentificationRisk(
        float(highest),
        float(average),
        None if fraction is None else float(highest * fraction),
        None if fraction is None else float(average * fraction),
        float(average if fraction is None else average * fraction),
        below[0],
        *below,
    )


def _fraction(table: EncodedTable, settings: AnonymitySettings) -> float | None:
    if settings.population is None:
        return settings.sampling_fraction
    subjects = table.subjects.total
    if settings.population < subjects:
        raise SettingsError(
            f"population is {settings.population:,}, but the table has {subjects:,} subjects",
            where="privacy.anonymity.population",
            remedy="give the number of persons that the table was sampled from",
        )
    return subjects / settings.population


def _sensitive(column: SensitiveCounts, release: TableRelease, index: Any, classes: int) -> SensitiveMeasure:
    counts: ClassCounts = class_counts(restrict_to(column, release.retained), index, classes, column.overall)
    diversity_l = int(column.attribute.diversity.l) if column.attribute.diversity else 2
    worst = float(recursive(counts, diversity_l).max())
    return SensitiveMeasure(
        column.attribute.column,
        len(column.values),
        int(distinct(counts).min()),
        float(entropy(counts).min()),
        worst if np.isfinite(worst) else None,
        diversity_l,
        float(equal_distance(counts).max()),
        float(ordered_distance(counts).max()),
        float(counts.shares.max()),
    )


def _histogram(sizes: Floats) -> tuple[tuple[int, int, int], ...]:
    size_bin = np.searchsorted(SIZE_BINS, sizes, side="right") - 1
    classes = np.bincount(size_bin, minlength=len(SIZE_BINS))
    subjects = np.bincount(size_bin, weights=sizes, minlength=len(SIZE_BINS))
    return tuple((low, int(c), int(p)) for low, c, p in zip(SIZE_BINS, classes, subjects, strict=True))


def _utility(
    table: EncodedTable, release: TableRelease, sizes: Floats, settings: AnonymitySettings
) -> DataUtility:
    records, columns = table.records, len(table.hierarchies)
    counts = table.counts[release.retained]
    suppressed = records - int(counts.sum())
    loss, penalty = 1.0, 0.0
    for hierarchy, covered, weight in zip(table.hierarchies, release.covered, settings.weights, strict=True):
        share = covered[release.retained] / hierarchy.size
        raw, minimum = float((counts * share).sum()) + suppressed, records / hierarchy.size
        if hierarchy.size > 1:
            loss *= (1 + max((raw - minimum) / (records - minimum), 0.0)) ** weight
        generalised = np.where(covered[release.retained] > 1, share, 0.0)
        penalty += (float((counts * generalised).sum()) + suppressed) / (records * columns)
    discernibility = float((sizes * sizes).sum()) + float(suppressed) * records
    average = float(sizes.mean()) / settings.k if len(sizes) else 0.0
    return DataUtility(loss - 1, penalty, discernibility, average)


def describe_levels(table: EncodedTable, release: TableRelease) -> list[dict[str, Any]]:
    """Return for the metrics of a release every quasi-identifier's level, highest level and number of names."""
    rows = []
    for i, (hierarchy, names) in enumerate(zip(table.hierarchies, release.names, strict=True)):
        used: set[Label] = {names[index] for index in np.unique(release.indices[i][release.retained])}
        level = None if release.node is None else release.node[i]
        rows.append(
            {"column": hierarchy.column, "level": level, "height": hierarchy.height, "names": len(used)}
        )
    return rows
