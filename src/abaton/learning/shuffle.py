"""In which order a learner sees its examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.controller.events import TrainSettings

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
