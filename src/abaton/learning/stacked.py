"""Many small dense networks trained together: one compiled call for several learners, divided among threads.

For a network of some thousand weights, calling Python between learners costs as much as training does, and threads only
wait for its lock. Here everything that needs Python is done for all learners first; the arithmetic then runs without
it. Each learner's is the same `kernels.epochs` that trains it alone, on its own rows: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.controller.events import TrainSettings
from abaton.models import dense_kernels
from abaton.models.dense_network import DenseNetwork
from abaton.learners.learner import Seat
from abaton.models.base import Trained
from abaton.learning.shuffle import epoch_order
from abaton.models.optimisers import Solver, rate

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
        self.rows = np.empty((total, network.layers[0, dense_kernels.INPUTS]), np.float32)
        self.targets = np.empty(total)
        self.losses = np.zeros(len(seats))
        self.order = np.arange(total)
        self.steps = [-(-count // settings.batch_size) for count in self.counts]

    def prepared(self, number: int) -> Callable[[], None]:
        """Everything of an epoch that needs Python; what is left to do does not."""
        begin = 0
        for seat, count in zip(self.seats, self.counts, strict=True):
            data, mine = seat.examples, slice(begin, begin := begin + count)
            order = epoch_order(data.y, self.settings.window, seat.chance)
            self.network.rows(data.x).take(order, 0, self.rows[mine], "clip")
            self.targets[mine] = data.y[order]
        s, done, eta = self.settings, number * np.array(self.steps), rate(self.settings, number)
        return lambda: dense_kernels.epochs(
            self.network.layers, self.models, self.rows, self.targets, self.order, self.places,
            self.network.labels, s.batch_size, self.anchors, self.first, self.second, self.solver.kind, done, eta,
            s.momentum, s.proximal, s.clip, self.losses, dense_kernels.NOTHING,
        )  # fmt: skip

    def trained(self) -> Iterator[Trained | None]:
        """The results, learner by learner."""
        each = zip(self.models, self.steps, self.losses.tolist(), self.counts, strict=True)
        for model, steps, loss, count in each:
            wrong = loss == dense_kernels.WRONG_LABEL
            yield None if wrong else Trained(model, self.settings.epochs * steps, loss / count)
