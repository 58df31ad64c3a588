"""Local optimisers: steps of SGD, momentum and Adam on flat vectors.

Compiled and PyTorch training use the same functions. They change their vectors in place and have no state. The proximal
term is added to the gradient before clipping by global norm, as if it were part of the loss. Optimiser state is new for
each task unless `keep_optimiser_state` is set, because the Metis paper leaves this open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels.jit import expanded, kernel
from abaton.layout import Vector
from abaton.training import TrainSettings

SGD, MOMENTUM, ADAM = 0, 1, 2
OPTIMISERS = ("sgd", "adam")
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's published values
_FIRST_KEY, _SECOND_KEY, _STEPS_KEY = "optimiser.first", "optimiser.second", "optimiser.steps"


@expanded
def sgd_step(model: Vector, gradient: Vector, learning_rate: float) -> None:
    """Apply a local optimiser step of gradient descent: `w ← w − η ∇F(w)`.

    >>> model = np.float32([1, 2])
    >>> sgd_step(model, np.float32([1, 1]), 0.5)
    >>> model.tolist()
    [0.5, 1.5]
    """
    eta = np.float32(learning_rate)
    for i in range(model.size):
        model[i] -= eta * gradient[i]


@expanded
def momentum_step(
    model: Vector, gradient: Vector, velocity: Vector, learning_rate: float, momentum: float
) -> None:
    """Apply a local optimiser step with momentum (Metis, Eq. 2): `u ← γ u + ∇F(w)`, then `w ← w − η u`."""
    eta, gamma = np.float32(learning_rate), np.float32(momentum)
    for i in range(model.size):
        velocity[i] = gamma * velocity[i] + gradient[i]
        model[i] -= eta * velocity[i]


@expanded
def adam_step(
    model: Vector, gradient: Vector, mean: Vector, mean_square: Vector, learning_rate: float, step: int
) -> None:
    """Apply a local optimiser step of Adam with bias correction; ``step`` counts from 1."""
    one = np.float32(1)
    b1, b2, epsilon = np.float32(_BETA1), np.float32(_BETA2), np.float32(_EPSILON)
    eta = np.float32(learning_rate / (1.0 - _BETA1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - _BETA2**step))
    for i in range(model.size):
        mean[i] = b1 * mean[i] + (one - b1) * gradient[i]
        mean_square[i] = b2 * mean_square[i] + (one - b2) * gradient[i] * gradient[i]
        model[i] -= eta * mean[i] / (np.sqrt(mean_square[i]) * root + epsilon)


@expanded
def add_proximal_term(gradient: Vector, model: Vector, anchor: Vector, proximal_mu: float) -> None:
    """Add the proximal term of FedProx to a gradient: `∇F(w) + μ (w − w_start)`."""
    mu = np.float32(proximal_mu)
    for i in range(gradient.size):
        gradient[i] += mu * (model[i] - anchor[i])


@expanded
def clip_gradient(gradient: Vector, max_norm: float) -> None:
    """Clip a gradient to a maximum norm before the local optimiser's step.

    >>> gradient = np.float32([3, 4])
    >>> clip_gradient(gradient, 2.5)
    >>> gradient.tolist()
    [1.5, 2.0]
    """
    squared_norm = 0.0
    for i in range(gradient.size):
        squared_norm += np.float64(gradient[i]) * np.float64(gradient[i])
    if squared_norm > max_norm * max_norm:
        factor = np.float32(max_norm / math.sqrt(squared_norm))
        for i in range(gradient.size):
            gradient[i] *= factor


@expanded
def optimiser_step(
    model: Vector,
    gradient: Vector,
    anchor: Vector,
    first: Vector,
    second: Vector,
    kind: int,
    step: int,
    learning_rate: float,
    momentum: float,
    proximal_mu: float,
    max_grad_norm: float,
) -> None:
    """Apply one step of the local optimiser ``kind``; the gradient is overwritten."""
    if proximal_mu > 0:
        add_proximal_term(gradient, model, anchor, proximal_mu)
    if max_grad_norm > 0:
        clip_gradient(gradient, max_grad_norm)
    if kind == ADAM:
        adam_step(model, gradient, first, second, learning_rate, step)
    elif kind == MOMENTUM:
        momentum_step(model, gradient, first, learning_rate, momentum)
    else:
        sgd_step(model, gradient, learning_rate)


@kernel
def optimiser_step_kernel(
    model: Vector,
    gradient: Vector,
    anchor: Vector,
    first: Vector,
    second: Vector,
    kind: int,
    step: int,
    learning_rate: float,
    momentum: float,
    proximal_mu: float,
    max_grad_norm: float,
) -> None:
    """Apply a local optimiser step, called from Python with gradients of PyTorch."""
    optimiser_step(
        model,
        gradient,
        anchor,
        first,
        second,
        kind,
        step,
        learning_rate,
        momentum,
        proximal_mu,
        max_grad_norm,
    )


def learning_rate_at(settings: TrainSettings, epoch: int) -> float:
    """Return the local optimiser's learning rate in an epoch of a task, counted from 0.

    `step` multiplies by `learning_rate_decay` after every `schedule_period` epochs; `cosine` falls to
    `learning_rate_decay` times the rate within `schedule_period` epochs and stays there; `plateau` multiplies by
    `learning_rate_decay`, a factor that the controller sends with each task. `elapsed_epochs` before this task count.

    >>> schedule = {"learning_rate_schedule": "step", "learning_rate_decay": 0.5, "schedule_period": 2}
    >>> [learning_rate_at(TrainSettings(learning_rate=1, **schedule), epoch) for epoch in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    >>> schedule |= {"learning_rate_schedule": "cosine", "learning_rate_decay": 0, "elapsed_epochs": 1}
    >>> [learning_rate_at(TrainSettings(learning_rate=1, **schedule), epoch) for epoch in (0, 1, 2)]
    [0.5, 0.0, 0.0]
    """
    eta, factor, elapsed_epochs = (
        float(settings.learning_rate),
        settings.learning_rate_decay,
        settings.elapsed_epochs + epoch,
    )
    if settings.learning_rate_schedule == "constant":
        return eta
    if settings.learning_rate_schedule == "plateau":
        return eta * factor
    if settings.learning_rate_schedule == "step":
        return float(eta * factor ** (elapsed_epochs // settings.schedule_period))
    if settings.learning_rate_schedule == "cosine":
        half = (1 + math.cos(math.pi * min(1.0, elapsed_epochs / settings.schedule_period))) / 2
        return float(eta * (factor + (1 - factor) * half))
    raise SettingsError(
        f"learning_rate_schedule is '{settings.learning_rate_schedule}'",
        where="training",
        remedy="use constant, step, cosine or plateau",
    )


@dataclass(slots=True)
class LocalOptimiser:
    """Optimiser of one task with its state, at one learner."""

    settings: TrainSettings
    anchor: Vector
    first: Vector
    second: Vector
    kind: int
    steps: int = 0

    @classmethod
    def create(
        cls, settings: TrainSettings, start: Vector, stored_state: Mapping[str, Vector] | None
    ) -> LocalOptimiser:
        """Return the local optimiser of a task, with the state of earlier tasks if `keep_optimiser_state` is set."""
        if settings.optimiser not in OPTIMISERS:
            raise SettingsError(
                f"there is no optimiser '{settings.optimiser}'",
                where="training.optimiser",
                remedy="use sgd or adam",
            )
        kind = ADAM if settings.optimiser == "adam" else MOMENTUM if settings.momentum else SGD
        state = stored_state if stored_state and settings.keep_optimiser_state else {}
        sizes = {SGD: (0, 0), MOMENTUM: (start.size, 0), ADAM: (start.size, start.size)}[kind]
        first, second = (
            state[name].copy() if name in state and state[name].size == size else np.zeros(size, np.float32)
            for name, size in zip((_FIRST_KEY, _SECOND_KEY), sizes, strict=True)
        )
        steps = int(state[_STEPS_KEY][0]) if _STEPS_KEY in state else 0
        return cls(settings, start, first, second, kind, steps)

    def apply(self, model: Vector, gradients: Sequence[Vector], learning_rate: float) -> None:
        """Apply one local optimiser step to a model; the gradient is given as consecutive segments."""
        settings = self.settings
        self.steps += 1
        if settings.max_grad_norm > 0:
            gradients = [np.concatenate(gradients)]  # the norm is that of the full gradient
        end = 0
        for gradient in gradients:
            segment = slice(end, end := end + gradient.size)
            optimiser_step_kernel(
                model[segment], gradient, self.anchor[segment], self.first[segment], self.second[segment],
                self.kind, self.steps, learning_rate, settings.momentum, settings.proximal_mu, settings.max_grad_norm,
            )  # fmt: skip

    def state(self) -> dict[str, Vector]:
        """Return the local optimiser's state for the next task; empty unless `keep_optimiser_state` is set."""
        if not self.settings.keep_optimiser_state or self.kind == SGD:
            return {}
        steps = np.array([self.steps], np.float32)
        return {_FIRST_KEY: self.first.copy(), _SECOND_KEY: self.second.copy(), _STEPS_KEY: steps}
