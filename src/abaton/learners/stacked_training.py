"""Training of several learners with the same small network as one array.

It needs compiled kernels and is imported only when learners are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from abaton.learners.learner import TrainingSlot
from abaton.models import dense_kernels
from abaton.models.base import TrainingResult
from abaton.models.dense_network import DenseNetwork
from abaton.models.optimisers import LocalOptimiser, learning_rate_at
from abaton.models.sampling import epoch_order
from abaton.training import TrainSettings

RunParallel = Callable[[Sequence[Callable[[], Callable[[], None]]]], None]
"""Prepares jobs one after the other, runs each while the next is prepared, and waits for all."""


def train_stacked(
    network: DenseNetwork,
    slots: Sequence[TrainingSlot],
    settings: TrainSettings,
    threads: int,
    run_parallel: RunParallel,
) -> list[TrainingResult | None]:
    """Train several learners' networks as one stack; None for a learner with invalid labels.

    Args:
        network: The common network.
        slots: Start models, examples and generators of the learners.
        settings: The common settings.
        threads: Number of threads.
        run_parallel: Function that runs prepared jobs in parallel.
    """
    size = -(-len(slots) // threads)
    stacks = [_Stack(network, slots[i : i + size], settings) for i in range(0, len(slots), size)]
    for epoch in range(settings.epochs):
        run_parallel([partial(stack.prepare_epoch, epoch) for stack in stacks])
    return [trained for stack in stacks for trained in stack.trained()]


class _Stack:
    """Learners whose models and rows are concatenated."""

    def __init__(self, network: DenseNetwork, slots: Sequence[TrainingSlot], settings: TrainSettings) -> None:
        self.network, self.slots, self.settings = network, slots, settings
        self.optimiser = LocalOptimiser.create(settings, slots[0].start, None)
        self.models = np.empty((len(slots), self.optimiser.anchor.size), np.float32)
        for model, slot in zip(self.models, slots, strict=True):
            model[:] = slot.start
            slot.rng.bit_generator.random_raw()  # separate training draws one value first, too
        self.anchors = self.models.copy() if settings.proximal_mu else self.models
        self.first, self.second = (
            np.zeros((len(slots), array.size), np.float32)
            for array in (self.optimiser.first, self.optimiser.second)
        )
        self.counts = [len(slot.examples) for slot in slots]
        self.row_offsets = np.array([0, *accumulate(self.counts)])
        total = int(self.row_offsets[-1])
        self.rows = np.empty((total, network.layers[0, dense_kernels.INPUTS]), np.float32)
        self.targets = np.empty(total)
        self.relative_weights = [slot.examples.relative_weights for slot in slots]
        has_weights = any(weights is not None for weights in self.relative_weights)
        self.weights = np.ones(total) if has_weights else dense_kernels.NO_WEIGHTS
        self.losses = np.zeros(len(slots))
        self.order = np.arange(total)
        self.steps = [-(-example_count // settings.batch_size) for example_count in self.counts]

    def prepare_epoch(self, epoch: int) -> Callable[[], None]:
        """Prepare an epoch of the stack with the GIL; return the remaining work, which does not need it."""
        end = 0
        for slot, example_count, weights in zip(self.slots, self.counts, self.relative_weights, strict=True):
            data, rows = slot.examples, slice(end, end := end + example_count)
            order = epoch_order(data.y, self.settings.shuffle_window, slot.rng)
            self.network.as_rows(data.x).take(order, 0, self.rows[rows], "clip")
            self.targets[rows] = data.y[order]
            if weights is not None:
                self.weights[rows] = weights[order]
        settings, step_counts, learning_rate = (
            self.settings,
            epoch * np.array(self.steps),
            learning_rate_at(self.settings, epoch),
        )
        return lambda: dense_kernels.train_epoch(
            self.network.layers, self.models, self.rows, self.targets, self.weights, self.order, self.row_offsets,
            self.network.class_count, settings.batch_size, self.anchors, self.first, self.second,
            self.optimiser.kind, step_counts, learning_rate,
            settings.momentum, settings.proximal_mu, settings.max_grad_norm, self.losses, dense_kernels.NO_PREDICTIONS,
        )  # fmt: skip

    def trained(self) -> Iterator[TrainingResult | None]:
        """Yield the training results of the stack, learner by learner."""
        results = zip(self.models, self.steps, self.losses.tolist(), self.counts, strict=True)
        for model, steps, loss, example_count in results:
            is_invalid = loss == dense_kernels.INVALID_LABEL
            yield (
                None
                if is_invalid
                else TrainingResult(model, self.settings.epochs * steps, loss / example_count)
            )
