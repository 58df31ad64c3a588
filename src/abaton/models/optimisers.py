"""Local solvers: what one batch's gradient does to a model, as small functions on flat vectors.

Every way of training uses these same functions, so a solver is written once. They change the vectors they are given,
in place, and keep nothing themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels import Vector
from abaton.kernels.jit import kernel, spelled
from abaton.training import TrainSettings

SGD, MOMENTUM, ADAM = 0, 1, 2
SOLVERS = ("sgd", "adam")
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's published values
_FIRST, _SECOND, _STEPS = "solver.first", "solver.second", "solver.steps"


@spelled
def descend(model: Vector, slope: Vector, rate: float) -> None:
    """Plain descent: `w ← w − η ∇F(w)`.

    >>> model = np.float32([1, 2])
    >>> descend(model, np.float32([1, 1]), 0.5)
    >>> model.tolist()
    [0.5, 1.5]
    """
    eta = np.float32(rate)
    for i in range(model.size):
        model[i] -= eta * slope[i]


@spelled
def descend_with_momentum(model: Vector, slope: Vector, velocity: Vector, rate: float, kept: float) -> None:
    """Descent with momentum (Metis, Eq. 2): `u ← γ u + ∇F(w)`, then `w ← w − η u`."""
    eta, gamma = np.float32(rate), np.float32(kept)
    for i in range(model.size):
        velocity[i] = gamma * velocity[i] + slope[i]
        model[i] -= eta * velocity[i]


@spelled
def adam(model: Vector, slope: Vector, mean: Vector, square: Vector, rate: float, step: int) -> None:
    """Adam, at a step counted from 1: running means of slope and squared slope, corrected for their start."""
    one = np.float32(1)
    b1, b2, tiny = np.float32(_BETA1), np.float32(_BETA2), np.float32(_EPSILON)
    eta = np.float32(rate / (1.0 - _BETA1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - _BETA2**step))
    for i in range(model.size):
        mean[i] = b1 * mean[i] + (one - b1) * slope[i]
        square[i] = b2 * square[i] + (one - b2) * slope[i] * slope[i]
        model[i] -= eta * mean[i] / (np.sqrt(square[i]) * root + tiny)


@spelled
def pull_back(slope: Vector, model: Vector, anchor: Vector, strength: float) -> None:
    """The proximal term of FedProx: `∇F(w) + ρ (w − w_start)`."""
    rho = np.float32(strength)
    for i in range(slope.size):
        slope[i] += rho * (model[i] - anchor[i])


@spelled
def clip(slope: Vector, limit: float) -> None:
    """Shorten a gradient to a length, measured over the whole model; a shorter one is left as it is.

    >>> slope = np.float32([3, 4])
    >>> clip(slope, 2.5)
    >>> slope.tolist()
    [1.5, 2.0]
    """
    squares = 0.0
    for i in range(slope.size):
        squares += np.float64(slope[i]) * np.float64(slope[i])
    if squares > limit * limit:
        factor = np.float32(limit / math.sqrt(squares))
        for i in range(slope.size):
            slope[i] *= factor


@spelled
def advance(
    model: Vector,
    slope: Vector,
    anchor: Vector,
    first: Vector,
    second: Vector,
    kind: int,
    step: int,
    rate: float,
    momentum: float,
    proximal: float,
    longest: float,
) -> None:
    """One step of the chosen solver; the gradient is used up."""
    if proximal > 0:
        pull_back(slope, model, anchor, proximal)
    if longest > 0:
        clip(slope, longest)
    if kind == ADAM:
        adam(model, slope, first, second, rate, step)
    elif kind == MOMENTUM:
        descend_with_momentum(model, slope, first, rate, momentum)
    else:
        descend(model, slope, rate)


@kernel
def advance_part(
    model: Vector,
    slope: Vector,
    anchor: Vector,
    first: Vector,
    second: Vector,
    kind: int,
    step: int,
    rate: float,
    momentum: float,
    proximal: float,
    longest: float,
) -> None:
    """The same step, called from Python: for models whose gradients PyTorch makes."""
    advance(model, slope, anchor, first, second, kind, step, rate, momentum, proximal, longest)


def rate(settings: TrainSettings, epoch: int) -> float:
    """The learning rate in an epoch of a task, counted from 0.

    `step` multiplies by `decay` after every `period` epochs; `cosine` comes down to `decay` times the rate within
    `period` epochs and stays there; `driven` multiplies by `decay`, a factor that the controller sends anew with each
    task. `elapsed` epochs before this task are counted in.

    >>> [rate(TrainSettings(learning_rate=1, schedule="step", decay=0.5, period=2), e) for e in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    >>> [rate(TrainSettings(learning_rate=1, schedule="cosine", decay=0, period=2, elapsed=1), e) for e in (0, 1, 2)]
    [0.5, 0.0, 0.0]
    """
    eta, factor, age = float(settings.learning_rate), settings.decay, settings.elapsed + epoch
    if settings.schedule == "constant":
        return eta
    if settings.schedule == "driven":
        return eta * factor
    if settings.schedule == "step":
        return float(eta * factor ** (age // settings.period))
    if settings.schedule == "cosine":
        half = (1 + math.cos(math.pi * min(1.0, age / settings.period))) / 2
        return float(eta * (factor + (1 - factor) * half))
    raise SettingsError(
        f"there is no schedule '{settings.schedule}'",
        where="training.schedule",
        remedy="use constant, step, cosine or driven",
    )


@dataclass(slots=True)
class Solver:
    """The solver of one task with its memory, at one learner."""

    settings: TrainSettings
    anchor: Vector
    first: Vector
    second: Vector
    kind: int
    steps: int = 0

    @classmethod
    def begin(cls, settings: TrainSettings, start: Vector, kept: Mapping[str, Vector] | None) -> Solver:
        """The solver for a task that starts from a model, with the memory of earlier tasks if it is kept."""
        if settings.solver not in SOLVERS:
            raise SettingsError(
                f"there is no solver '{settings.solver}'", where="training.solver", remedy="use sgd or adam"
            )
        kind = ADAM if settings.solver == "adam" else MOMENTUM if settings.momentum else SGD
        memory = kept if kept and settings.keep_momentum else {}
        sizes = {SGD: (0, 0), MOMENTUM: (start.size, 0), ADAM: (start.size, start.size)}[kind]
        first, second = (
            memory[name].copy()
            if name in memory and memory[name].size == size
            else np.zeros(size, np.float32)
            for name, size in zip((_FIRST, _SECOND), sizes, strict=True)
        )
        steps = int(memory[_STEPS][0]) if _STEPS in memory else 0
        return cls(settings, start, first, second, kind, steps)

    def apply(self, model: Vector, slopes: Sequence[Vector], eta: float) -> None:
        """Move a model along one batch's gradient, which comes in parts that follow each other."""
        s = self.settings
        self.steps += 1
        if s.clip > 0:
            slopes = [np.concatenate(slopes)]  # its length is that of the whole
        end = 0
        for slope in slopes:
            part = slice(end, end := end + slope.size)
            advance_part(
                model[part], slope, self.anchor[part], self.first[part], self.second[part],
                self.kind, self.steps, eta, s.momentum, s.proximal, s.clip,
            )  # fmt: skip

    def kept(self) -> dict[str, Vector]:
        """What the learner keeps for its next task: nothing, unless the settings say so."""
        if not self.settings.keep_momentum or self.kind == SGD:
            return {}
        steps = np.array([self.steps], np.float32)
        return {_FIRST: self.first.copy(), _SECOND: self.second.copy(), _STEPS: steps}
