"""Server optimisers: what the controller makes of the change that the learners propose (Reddi et al., 2021).

Each is a pair of pure functions in one value: `start` gives its memory, `apply` turns a proposed change into the step
that is taken. With `Plain` the step is the proposed change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abaton.errors import SettingsError
from abaton.vectors import Vector

Memory = tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    """Take the proposed change as it is."""

    def start(self, size: int) -> Memory:
        """Nothing to remember."""
        return ()

    def apply(self, change: Vector, memory: Memory) -> tuple[Vector, Memory]:
        """The change itself."""
        return change, memory


@dataclass(frozen=True, slots=True)
class Momentum:
    """Let earlier changes carry on: v = beta v + change, step = rate v."""

    rate: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        _check(self.rate, self.beta)

    def start(self, size: int) -> Memory:
        """The velocity."""
        return (np.zeros(size, np.float32),)

    def apply(self, change: Vector, memory: Memory) -> tuple[Vector, Memory]:
        """One step with momentum."""
        velocity = np.float32(self.beta) * memory[0] + change
        return np.float32(self.rate) * velocity, (velocity,)


@dataclass(frozen=True, slots=True)
class Adam:
    """Scale each parameter's step by how large its changes have been (FedAdam; FedYogi with `yogi`)."""

    rate: float = 0.01
    beta: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    yogi: bool = False

    def __post_init__(self) -> None:
        _check(self.rate, self.beta)
        _check(self.tau, self.beta2)

    def start(self, size: int) -> Memory:
        """The mean of the changes, and of their squares."""
        return np.zeros(size, np.float32), np.full(size, self.tau**2, np.float32)

    def apply(self, change: Vector, memory: Memory) -> tuple[Vector, Memory]:
        """One adaptive step."""
        mean, square = memory
        mean = np.float32(self.beta) * mean + np.float32(1 - self.beta) * change
        squared = change * change
        if self.yogi:
            drift = squared * np.sign(square - squared)
            square = square - np.float32(1 - self.beta2) * drift
        else:
            square = np.float32(self.beta2) * square + np.float32(1 - self.beta2) * squared
        step = np.float32(self.rate) * mean / (np.sqrt(square) + np.float32(self.tau))
        return np.asarray(step, np.float32), (mean, square)


Optimiser = Plain | Momentum | Adam


def _check(rate: float, beta: float) -> None:
    if not rate > 0:
        raise SettingsError(f"a rate is {rate}", where="server optimiser", remedy="use a number above 0")
    if not 0 <= beta < 1:
        raise SettingsError(
            f"a beta is {beta}", where="server optimiser", remedy="use a number from 0 up to, but not, 1"
        )
