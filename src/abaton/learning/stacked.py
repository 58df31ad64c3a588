"""Many small dense networks trained together: one compiled call for several learners, divided among threads.

For a network of some thousand weights, calling Python between learners costs as much as training does, and threads only
wait for its lock. Here everything that needs Python is done for all learners first; the arithmetic then runs without
it. Each learner's is the same `kernels.epoch` that trains it alone, on its own rows: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.control.messages import TrainSettings
from abaton.learning import kernels
from abaton.learning.dense import DenseNetwork
from abaton.learning.learner import Seat
from abaton.learning.model import Trained
from abaton.learning.shuffle import epoch_order
from abaton.learning.solvers import Solver, rate
from abaton.vectors.jit import kernel

Array = NDArray[Any]
Divide = Callable[[Sequence[Callable[[], None]]], None]
"""Runs several pieces of work at the same time and returns when all are done."""


def train_stacked(
    network: DenseNetwork, seats: Sequence[Seat], settings: TrainSettings, parts: int, divide: Divide
) -> list[Trained | None]:
    """Train several learners, each from its own start; nothing for one whose labels are not the model's classes.

    Args:
        network: the network that all of them have.
        seats: who is trained.
        settings: how, the same for all.
        parts: among how many threads the work is divided.
        divide: what runs them.
    """
    models = np.stack([seat.start for seat in seats])
    solvers = [Solver.begin(settings, seat.start, None) for seat in seats]
    first, second = (np.stack([getattr(each, name) for each in solvers]) for name in ("first", "second"))
    anchors = models.copy() if settings.proximal else models
    ends = np.cumsum([len(seat.examples) for seat in seats])
    begins = ends - np.array([len(seat.examples) for seat in seats])
    rows = np.empty((ends[-1], network.layers[0, kernels.INPUTS]), np.float32)
    labels = np.empty(ends[-1] if network.classes else 0, np.int64)
    values = np.empty(0 if network.classes else ends[-1], np.float32)
    targets = labels if network.classes else values
    losses = np.zeros(len(seats))
    batches = -(-(ends - begins) // settings.batch_size)
    for seat in seats:
        seat.chance.bit_generator.random_raw()  # one number is drawn first in training alone, too
    for number in range(settings.epochs):
        for seat, begin, end in zip(seats, begins.tolist(), ends.tolist(), strict=True):
            data = seat.examples
            order = epoch_order(data.y, settings.window, seat.chance)
            np.take(network.rows(data.x), order, 0, out=rows[begin:end], mode="clip")
            targets[begin:end] = data.y[order]
        shared = (
            network.layers, models, rows, labels, values, begins, ends, settings.batch_size, anchors, first, second,
            solvers[0].kind, number * batches, rate(settings, number), settings.momentum, settings.proximal,
            settings.clip, losses,
        )  # fmt: skip
        borders = np.searchsorted(ends, np.arange(parts + 1) * ends[-1] / parts, "right").tolist()
        divide([_piece(*shared, low, high) for low, high in pairwise(borders)])
    return [
        None
        if loss == kernels.WRONG_LABEL
        else Trained(model, settings.epochs * steps, loss / len(seat.examples))
        for seat, model, steps, loss in zip(seats, models, batches.tolist(), losses.tolist(), strict=True)
    ]


def _piece(*arguments: Any) -> Callable[[], None]:
    return lambda: epochs(*arguments)


@kernel
def epochs(
    layers: Array,
    models: Array,
    rows: Array,
    labels: Array,
    values: Array,
    begins: Array,
    ends: Array,
    batch: int,
    anchors: Array,
    first: Array,
    second: Array,
    kind: int,
    steps: Array,
    rate: float,
    momentum: float,
    proximal: float,
    longest: float,
    losses: Array,
    low: int,
    high: int,
) -> None:
    """One epoch of the learners from `low` to `high`; a wrong label shows in the loss, and ends that learner's."""
    for k in range(low, high):
        if losses[k] == kernels.WRONG_LABEL:
            continue
        mine = slice(begins[k], ends[k])
        losses[k] = kernels.epoch(
            layers, models[k], rows[mine], labels[mine], values[mine], np.arange(ends[k] - begins[k]), batch,
            anchors[k], first[k], second[k], kind, steps[k], rate, momentum, proximal, longest,
        )  # fmt: skip
