"""A learner's own validation set: a small share of each class, set aside so that others' models can be judged on it.

In which order a learner sees its examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.training import TrainSettings

Rows = NDArray[np.int64]


def stratified(
    labels: NDArray[Any],
    rows: Rows,
    *,
    rng: np.random.Generator,
    share: float = 0.05,
    learner: str = "",
) -> tuple[Rows, Rows]:
    """Split a learner's rows into those to train on and those to validate on, class by class.

    Every class gives the same share, as whole numbers allow it, and keeps at least one example for training; so a
    class with a single example goes to training. There is at least one validation example, or an error that names
    the learner.

    Args:
        labels: the classes of all rows of the data set.
        rows: the learner's rows.
        rng: decides which examples of a class are set aside.
        share: how much is set aside; the paper uses 5 %.
        learner: whose rows they are, for the error.

    >>> train, validation = stratified(np.array([0] * 40 + [1] * 60), np.arange(100), rng=np.random.default_rng(0))
    >>> len(train), np.sort(np.array([0] * 40 + [1] * 60)[validation]).tolist()
    (95, [0, 0, 1, 1, 1])
    """
    check_share(share)
    found, codes, count = np.unique(labels[rows], return_inverse=True, return_counts=True)
    room = count - 1
    wanted = max(1, round(share * len(rows)))
    if not room.sum():
        raise SettingsError(
            f"{len(rows)} examples of {len(found)} classes are too few for a stratified validation set",
            where=f"learner '{learner}'",
            remedy="give it two examples of a class or more, leave it out, or weigh by examples instead of by DVW",
        )
    taken = np.minimum(apportion(count.astype(np.float64), wanted), room)
    while taken.sum() < min(wanted, room.sum()):
        # What classes of one example could not give, the classes that lag furthest behind their share give.
        lag = np.where(taken < room, count * share - taken, -np.inf)
        taken[int(lag.argmax())] += 1
    aside = np.zeros(len(rows), dtype=bool)
    for j in np.flatnonzero(taken):
        aside[rng.permutation(np.flatnonzero(codes == j))[: taken[j]]] = True
    return rows[~aside], rows[aside]


def check_share(share: float) -> None:
    """Refuse a share that leaves nothing to train on or nothing to validate on."""
    if not 0 < share < 1:
        raise SettingsError(
            f"the share of validation examples is {share}",
            where="validation",
            remedy="use a number between 0 and 1, like 0.05",
        )


def apportion(weights: NDArray[np.float64], total: int) -> Rows:
    """Whole numbers in proportion to weights that sum up to the total exactly (largest remainders).

    A larger weight never gets less than a smaller one.

    >>> apportion(np.array([0.5, 0.3, 0.2]), 11).tolist()
    [6, 3, 2]
    """
    quota = weights / weights.sum() * total
    made: Rows = np.floor(quota + 1e-9).astype(np.int64)
    most = np.argsort(made - quota, kind="stable")
    made[most[: total - int(made.sum())]] += 1
    return made


Order = NDArray[np.int64]


def epoch_order(labels: NDArray[Any], window: int, chance: np.random.Generator) -> Order:
    """The order of one epoch: all examples shuffled, or only through a window.

    A window of `w` is what an input pipeline with a small buffer does: examples come sorted by label, a buffer holds
    `w` of them, and each next one is drawn from the buffer. Batches then hold few classes, and local models are
    erratic; with a window as large as the data the order is a full shuffle again. Examples with several labels come in
    the order in which they are stored.

    >>> epoch_order(np.array([1, 0, 1, 0]), 1, np.random.default_rng(0)).tolist()
    [1, 3, 0, 2]
    """
    count = len(labels)
    if not window:
        return chance.permutation(count)
    waiting = (np.argsort(labels, kind="stable") if labels.ndim == 1 else np.arange(count)).tolist()
    buffer, rest = waiting[:window], iter(waiting[window:])
    order = []
    for share in chance.random(count).tolist():
        place = int(share * len(buffer))
        order.append(buffer[place])
        following = next(rest, None)
        if following is None:
            buffer[place] = buffer[-1]
            buffer.pop()
        else:
            buffer[place] = following
    return np.array(order, dtype=np.int64)


def stretches(order: Order, settings: TrainSettings, done: int, *, asked: bool) -> Iterator[Order]:
    """The parts in which an epoch is trained: all that is left to do at once, or batch by batch if someone is asked.

    >>> [part.tolist() for part in stretches(np.arange(5), TrainSettings(batch_size=2, steps=3), 1, asked=False)]
    [[0, 1, 2, 3]]
    """
    size = settings.batch_size
    if settings.steps:
        order = order[: (settings.steps - done) * size]
    stride = size if asked else len(order)
    return (order[i : i + stride] for i in range(0, len(order), stride))
