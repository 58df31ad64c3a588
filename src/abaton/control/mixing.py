"""What is made of the updates: whose model counts, what is done when some may be wrong, and how far the step goes.

`Latest` and `Blend` say what an asynchronous commit does to the community model. A robust mix takes the updates of a
version as rows, with their weights, and gives the change to apply; weights decide how much an update counts only where
the method can use them without giving a liar more say. A server optimiser (Reddi et al., 2021) is a pair of pure
functions in one value: `start` gives its memory, `apply` turns a proposed change into the step that is taken; with
`Plain` the step is the proposed change.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.kernels import Vector

Rows = NDArray[np.float32]
Memory = tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Latest:
    """The mix of the newest model of every learner (Metis): what a learner sends replaces what it sent before."""

    leavers: str = "stay"


@dataclass(frozen=True, slots=True)
class Blend:
    """Each commit pulls the community model towards it by alpha times its weight (FedAsync)."""

    alpha: float = 0.5


class Robust(Protocol):
    """What is made of a mix's updates when some may be wrong.

    A robust mix of your own inherits from this and says how updates are mixed; it is a value without a memory.
    """

    @abstractmethod
    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The change to apply, of updates as rows with their weights."""

    @property
    def least(self) -> int:
        """The fewest updates that it can judge."""
        return 1


@dataclass(frozen=True, slots=True)
class Median(Robust):
    """The middle value of each parameter: half of the learners may lie."""

    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The median of every column; weights are not used."""
        return np.asarray(np.median(rows, axis=0), np.float32)


@dataclass(frozen=True, slots=True)
class Trimmed(Robust):
    """The mean of each parameter without its largest and smallest values."""

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise SettingsError(
                f"share is {self.share}",
                where="trimmed mean",
                remedy="use a number from 0 up to, but not, 0.5",
            )

    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The trimmed mean of every column; weights are not used."""
        cut = int(self.share * len(rows))
        kept = np.sort(rows, axis=0)[cut : len(rows) - cut]
        return np.asarray(kept.mean(axis=0, dtype=np.float64), np.float32)


@dataclass(frozen=True, slots=True)
class Krum(Robust):
    """The mean of the updates that lie closest to most others (multi-Krum, Blanchard et al., 2017).

    Attributes:
        liars: how many wrong updates a round may have; it needs at least 2 * liars + 3 updates.
        keep: how many updates are averaged; 1 is plain Krum.
    """

    liars: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        if self.liars < 0 or self.keep < 1:
            raise SettingsError(
                f"liars is {self.liars} and keep is {self.keep}",
                where="Krum",
                remedy="use 0 or more liars, and keep 1 or more",
            )

    @property
    def least(self) -> int:
        """So many that liars are outvoted."""
        return 2 * self.liars + 3

    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The mean of the best updates; with too few updates to tell, of the closest half."""
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        distances = squares[:, None] + squares[None, :] - 2 * (rows @ rows.T).astype(np.float64)
        np.fill_diagonal(distances, 0.0)
        neighbours = max(1, len(rows) - self.liars - 2)
        scores = np.sort(distances, axis=1)[:, : neighbours + 1].sum(axis=1)
        chosen = np.argsort(scores, kind="stable")[: min(self.keep, len(rows))]
        return np.asarray(rows[chosen].mean(axis=0, dtype=np.float64), np.float32)


@dataclass(frozen=True, slots=True)
class NormBound(Robust):
    """The weighted mean of updates that are scaled down to a largest norm; the median norm if none is given."""

    norm: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and not self.norm > 0:
            raise SettingsError(f"norm is {self.norm}", where="norm bound", remedy="use a number above 0")

    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The weighted mean after clipping."""
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        limit = float(np.median(norms)) if self.norm is None else self.norm
        shrink = np.minimum(1.0, limit / np.maximum(norms, 1e-30))
        return np.asarray((weights * shrink) @ rows / weights.sum(), np.float32)


class Optimiser(Protocol):
    """What is made of the change that a mix proposes; what it remembers is kept for it, in checkpoints too."""

    @abstractmethod
    def start(self, size: int) -> Memory:
        """What it remembers before the first change: vectors of any length."""

    @abstractmethod
    def apply(self, change: Vector, memory: Memory) -> tuple[Vector, Memory]:
        """The step that is taken, and what to remember; nothing passed in is changed."""


@dataclass(frozen=True, slots=True)
class Plain(Optimiser):
    """Take the proposed change as it is."""

    def start(self, size: int) -> Memory:
        """Nothing to remember."""
        return ()

    def apply(self, change: Vector, memory: Memory) -> tuple[Vector, Memory]:
        """The change itself."""
        return change, memory


@dataclass(frozen=True, slots=True)
class Momentum(Optimiser):
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
class Adam(Optimiser):
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


def _check(rate: float, beta: float) -> None:
    if not rate > 0:
        raise SettingsError(f"a rate is {rate}", where="server optimiser", remedy="use a number above 0")
    if not 0 <= beta < 1:
        raise SettingsError(
            f"a beta is {beta}", where="server optimiser", remedy="use a number from 0 up to, but not, 1"
        )
