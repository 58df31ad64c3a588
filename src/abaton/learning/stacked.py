"""Many small dense networks trained together: one compiled call for several learners, divided among threads.

For a network of some thousand weights, calling Python between learners costs as much as training does, and threads only
wait for its lock. Here everything that needs Python is done for all learners first; the arithmetic then runs without
it. Each learner's is the same `kernels.epoch` that trains it alone, on its own rows: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
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
Divide = Callable[[Sequence[Callable[[], Callable[[], None]]]], None]
"""Makes pieces of work ready one after the other, does each while the next is made ready, and waits for all."""


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
    size = -(-len(seats) // parts)
    stacks = [_Stack(network, seats[i : i + size], settings) for i in range(0, len(seats), size)]
    for number in range(settings.epochs):
        divide([partial(stack.prepared, number) for stack in stacks])
    return [trained for stack in stacks for trained in stack.trained()]


class _Stack:
    """Some learners whose models and rows lie one after the other."""

    def __init__(self, network: DenseNetwork, seats: Sequence[Seat], settings: TrainSettings) -> None:
        self.network, self.seats, self.settings = network, seats, settings
        self.solver = Solver.begin(settings, seats[0].start, None)
        self.models = np.empty((len(seats), self.solver.anchor.size), np.float32)
        for model, seat in zip(self.models, seats, strict=True):
            model[:] = seat.start
            seat.chance.bit_generator.random_raw()  # one number is drawn first in training alone, too
        self.anchors = self.models.copy() if settings.proximal else self.models
        self.first, self.second = (
            np.zeros((len(seats), each.size), np.float32) for each in (self.solver.first, self.solver.second)
        )
        self.counts = [len(seat.examples) for seat in seats]
        self.places = np.array([0, *accumulate(self.counts)])
        total = int(self.places[-1])
        self.rows = np.empty((total, network.layers[0, kernels.INPUTS]), np.float32)
        self.labels = np.empty(total if network.classes else 0, np.int64)
        self.values = np.empty(0 if network.classes else total, np.float32)
        self.losses = np.zeros(len(seats))
        self.steps = [-(-count // settings.batch_size) for count in self.counts]

    def prepared(self, number: int) -> Callable[[], None]:
        """Everything of an epoch that needs Python; what is left to do does not."""
        targets, begin = self.labels if self.network.classes else self.values, 0
        for seat, count in zip(self.seats, self.counts, strict=True):
            data, mine = seat.examples, slice(begin, begin := begin + count)
            order = epoch_order(data.y, self.settings.window, seat.chance)
            self.network.rows(data.x).take(order, 0, self.rows[mine], "clip")
            targets[mine] = data.y[order]
        s, done, eta = self.settings, number * np.array(self.steps), rate(self.settings, number)
        return lambda: epochs(
            self.network.layers, self.models, self.rows, self.labels, self.values, self.places, s.batch_size,
            self.anchors, self.first, self.second, self.solver.kind, done, eta, s.momentum, s.proximal, s.clip,
            self.losses,
        )  # fmt: skip

    def trained(self) -> Iterator[Trained | None]:
        """What came out, learner by learner."""
        each = zip(self.models, self.steps, self.losses.tolist(), self.counts, strict=True)
        for model, steps, loss, count in each:
            wrong = loss == kernels.WRONG_LABEL
            yield None if wrong else Trained(model, self.settings.epochs * steps, loss / count)


@kernel
def epochs(
    layers: Array,
    models: Array,
    rows: Array,
    labels: Array,
    values: Array,
    places: Array,
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
) -> None:
    """One epoch of all learners in a stack; a wrong label shows in the loss, and ends that learner's training."""
    for k in range(models.shape[0]):
        if losses[k] == kernels.WRONG_LABEL:
            continue
        mine = slice(places[k], places[k + 1])
        losses[k] = kernels.epoch(
            layers, models[k], rows[mine], labels[mine], values[mine], np.arange(places[k + 1] - places[k]), batch,
            anchors[k], first[k], second[k], kind, steps[k], rate, momentum, proximal, longest,
        )  # fmt: skip
