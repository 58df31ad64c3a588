"""Sampling of a learner's examples: the stratified validation set, and the order and batches of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.training import TrainSettings

Rows = NDArray[np.int64]


def stratified_split(
    labels: NDArray[Any],
    rows: Rows,
    *,
    rng: np.random.Generator,
    fraction: float = 0.05,
    learner: str = "",
) -> tuple[Rows, Rows]:
    """Sample a learner's validation rows, stratified by class; return its training and validation rows.

    Every class contributes the same fraction, up to rounding, and keeps at least one example for training, so a class
    with a single example is in the training set. There is at least one validation example, or an error that names the
    learner.

    Args:
        labels: Classes of all rows of the data set.
        rows: The learner's rows.
        rng: Selects the validation examples of a class.
        fraction: Fraction of validation examples; the paper uses 5 %.
        learner: Name of the learner, for the error.

    >>> labels = np.array([0] * 40 + [1] * 60)
    >>> train, validation = stratified_split(labels, np.arange(100), rng=np.random.default_rng(0))
    >>> len(train), np.sort(labels[validation]).tolist()
    (95, [0, 0, 1, 1, 1])
    """
    check_fraction(fraction)
    classes, codes, class_counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
    available = class_counts - 1
    validation_size = max(1, round(fraction * len(rows)))
    if not available.sum():
        raise SettingsError(
            f"{len(rows)} examples of {len(classes)} classes are too few for a stratified validation set",
            where=f"learner '{learner}'",
            remedy="give it two examples of a class or more, exclude it, or weight by examples instead of DVW",
        )
    validation_counts = np.minimum(
        largest_remainder(class_counts.astype(np.float64), validation_size), available
    )
    while validation_counts.sum() < min(validation_size, available.sum()):
        # Classes with the largest deficit replace what classes with one example cannot contribute.
        deficit = np.where(
            validation_counts < available, class_counts * fraction - validation_counts, -np.inf
        )
        validation_counts[int(deficit.argmax())] += 1
    is_validation = np.zeros(len(rows), dtype=bool)
    for j in np.flatnonzero(validation_counts):
        is_validation[rng.permutation(np.flatnonzero(codes == j))[: validation_counts[j]]] = True
    return rows[~is_validation], rows[is_validation]


def check_fraction(fraction: float) -> None:
    """Raise an error for a validation fraction that is not between 0 and 1."""
    if not 0 < fraction < 1:
        raise SettingsError(
            f"the validation fraction is {fraction}",
            where="validation",
            remedy="use a number between 0 and 1, like 0.05",
        )


def largest_remainder(weights: NDArray[np.float64], total: int) -> Rows:
    """Return integers in proportion to weights that sum to the total (largest remainder method).

    A larger weight does not get less than a smaller one.

    >>> largest_remainder(np.array([0.5, 0.3, 0.2]), 11).tolist()
    [6, 3, 2]
    """
    quota = weights / weights.sum() * total
    counts: Rows = np.floor(quota + 1e-9).astype(np.int64)
    by_remainder = np.argsort(counts - quota, kind="stable")
    counts[by_remainder[: total - int(counts.sum())]] += 1
    return counts


Order = NDArray[np.int64]


def epoch_order(labels: NDArray[Any], shuffle_window: int, rng: np.random.Generator) -> Order:
    """Sample the order of a learner's examples in one epoch: a full shuffle, or one through a window.

    A window of `w` acts like an input pipeline with a small buffer: examples are sorted by label, a buffer holds
    `w` of them, and the next example is sampled from the buffer. Batches then have few classes, and local models are
    erratic; a window as large as the data is a full shuffle. Examples with several labels are not sorted.

    >>> epoch_order(np.array([1, 0, 1, 0]), 1, np.random.default_rng(0)).tolist()
    [1, 3, 0, 2]
    """
    count = len(labels)
    if not shuffle_window:
        return rng.permutation(count)
    sorted_rows = (np.argsort(labels, kind="stable") if labels.ndim == 1 else np.arange(count)).tolist()
    buffer, remaining = sorted_rows[:shuffle_window], iter(sorted_rows[shuffle_window:])
    order = []
    for uniform in rng.random(count).tolist():
        position = int(uniform * len(buffer))
        order.append(buffer[position])
        next_row = next(remaining, None)
        if next_row is None:
            buffer[position] = buffer[-1]
            buffer.pop()
        else:
            buffer[position] = next_row
    return np.array(order, dtype=np.int64)


def epoch_batches(
    order: Order, settings: TrainSettings, trained_batches: int, *, by_batch: bool
) -> Iterator[Order]:
    """Yield the remaining rows of an epoch's sampled order at once, or batch by batch.

    >>> settings = TrainSettings(batch_size=2, steps=3)
    >>> [rows.tolist() for rows in epoch_batches(np.arange(5), settings, 1, by_batch=False)]
    [[0, 1, 2, 3]]
    """
    size = settings.batch_size
    if settings.steps:
        order = order[: (settings.steps - trained_batches) * size]
    stride = size if by_batch else len(order)
    return (order[i : i + stride] for i in range(0, len(order), stride))
