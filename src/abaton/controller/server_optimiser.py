"""Server optimisers, which turn the aggregated change into the step that is applied (Reddi et al., 2021).

A server optimiser is a pair of pure functions in one value: `start` returns its state, `apply` returns the step and the
next state. With `ServerSgd` the step is the aggregated change.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from abaton.errors import SettingsError
from abaton.layout import Vector

OptimiserState = tuple[Vector, ...]


class ServerOptimiser(Protocol):
    """Step of the community model from an aggregated change; its state is stored in checkpoints."""

    @abstractmethod
    def start(self, size: int) -> OptimiserState:
        """Return the initial state of the server optimiser: vectors of any length."""

    @abstractmethod
    def apply(self, change: Vector, state: OptimiserState) -> tuple[Vector, OptimiserState]:
        """Return the server optimiser's step and its next state; the arguments are not modified."""


@dataclass(frozen=True, slots=True)
class ServerSgd(ServerOptimiser):
    """Server SGD with learning rate 1: the step is the aggregated change."""

    def start(self, size: int) -> OptimiserState:
        """Return the empty state of server SGD."""
        return ()

    def apply(self, change: Vector, state: OptimiserState) -> tuple[Vector, OptimiserState]:
        """Return the aggregated change as the step of server SGD."""
        return change, state


@dataclass(frozen=True, slots=True)
class ServerMomentum(ServerOptimiser):
    """Server momentum (FedAvgM): v = beta v + change, step = rate v."""

    rate: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        _check(self.rate, self.beta)

    def start(self, size: int) -> OptimiserState:
        """Return the initial velocity of server momentum."""
        return (np.zeros(size, np.float32),)

    def apply(self, change: Vector, state: OptimiserState) -> tuple[Vector, OptimiserState]:
        """Return one step of the server optimiser with momentum."""
        velocity = np.float32(self.beta) * state[0] + change
        return np.float32(self.rate) * velocity, (velocity,)


@dataclass(frozen=True, slots=True)
class ServerAdam(ServerOptimiser):
    """Server Adam: adaptive step size per parameter (FedAdam; FedYogi with `yogi`)."""

    rate: float = 0.01
    beta: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    yogi: bool = False

    def __post_init__(self) -> None:
        _check(self.rate, self.beta)
        _check(self.tau, self.beta2)

    def start(self, size: int) -> OptimiserState:
        """Return server Adam's initial means of the aggregated changes and of their squares."""
        return np.zeros(size, np.float32), np.full(size, self.tau**2, np.float32)

    def apply(self, change: Vector, state: OptimiserState) -> tuple[Vector, OptimiserState]:
        """Return one adaptive step of server Adam."""
        mean, square = state
        mean = np.float32(self.beta) * mean + np.float32(1 - self.beta) * change
        squared = change * change
        if self.yogi:
            drift = squared * np.sign(square - squared)
            square = square - np.float32(1 - self.beta2) * drift
        else:
            square = np.float32(self.beta2) * square + np.float32(1 - self.beta2) * squared
        step = np.float32(self.rate) * mean / (np.sqrt(square) + np.float32(self.tau))
        return np.asarray(step, np.float32), (mean, square)


def _check(rate: float, beta: float) -> None:
    if not rate > 0:
        raise SettingsError(f"rate is {rate}", where="server optimiser", remedy="use a number above 0")
    if not 0 <= beta < 1:
        raise SettingsError(f"beta is {beta}", where="server optimiser", remedy="use 0 <= beta < 1")
