"""What is made of the updates: whose model counts, what is done when some may be wrong, and how far the step goes.

`Latest` and `Blend` say what an asynchronous commit does to the community model. A robust mix takes the updates of a
version as rows, with their weights, and gives the change to apply; weights decide how much an update counts only where
the method can use them without giving a liar more say. A server optimiser (Reddi et al., 2021) is a pair of pure
functions in one value: `start` gives its memory, `apply` turns a proposed change into the step that is taken; with
`Plain` the step is the proposed change.

How far an update may reach: no learner moves the community model much further than the others lately did.

An update is compared with the newest accepted update of each of the other learners, at most so many of them. One that
is longer than so many times their median is shortened to that; it still counts, in its direction. Whoever carries the
model away makes the others' updates longer, too, as they come back from further away: by their newest ones alone the
bound would grow by a share in every round. So their first ones bind as well, by so many times more. Before two others
are known there is nothing to compare with: then a fixed length holds that no honest start comes near. What is decided
depends on the commits and their order alone, so a run that is replayed decides the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.kernels import Vector
from abaton.training import TrainSettings

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


_KNOWN = 64  # learners whose newest length is remembered: a median costs the same however many there are
_OTHERS = 2  # the fewest others that can be compared with
_START = 100.0  # how many learning rates each number of a first update may move, in the mean


class Reach:
    """Remembers how long accepted updates were, and says how much of the next one counts.

    Args:
        factor: how many times longer than others' an update may be; 0 is no bound.
        size: how many numbers a model has.
        training: how learners train, which says what a first update may be.

    >>> reach = Reach(10.0, 100, TrainSettings(learning_rate=0.05))
    >>> [reach.share(name, length) for name, length in (("north", 1.0), ("south", 2.0), ("east", 150.0))]
    [1.0, 1.0, 0.1]
    >>> reach.share("north", 1e9) * 1e9, reach.shortened
    (85.0, 2)
    """

    def __init__(self, factor: float, size: int, training: TrainSettings) -> None:
        self.factor, self.shortened = factor, 0
        self._start = math.sqrt(size) * max(1.0, _START * training.learning_rate)
        self._lengths: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def share(self, learner: str, length: float) -> float:
        """The share of an update that counts: 1, or what shortens it to the bound; its length is remembered."""
        if not self.factor:
            return 1.0
        limit = self._limit(learner)
        self._lengths.pop(learner, None)
        self._lengths[learner] = min(length, limit)
        if len(self._first) < _KNOWN:
            self._first.setdefault(learner, min(length, limit))
        if len(self._lengths) > _KNOWN:
            del self._lengths[next(iter(self._lengths))]
        if length <= limit:
            return 1.0
        self.shortened += 1
        return limit / length

    def _limit(self, learner: str) -> float:
        usual, first = _usual(self._lengths, learner), _usual(self._first, learner)
        if not usual:
            return self._start
        return self.factor * (min(usual, self.factor * first) if first else usual)

    def save(self) -> dict[str, object]:
        """Plain values that `load` goes on from."""
        return {
            "lengths": [[name, length] for name, length in self._lengths.items()],
            "first": [[name, length] for name, length in self._first.items()],
            "shortened": self.shortened,
        }

    def load(self, saved: Mapping[str, object]) -> None:
        """Take over what was saved."""
        shortened = saved["shortened"]
        assert isinstance(shortened, int)
        self._lengths, self._first = _lengths(saved["lengths"]), _lengths(saved["first"])
        self.shortened = shortened


def _usual(lengths: Mapping[str, float], learner: str) -> float:
    """The median length of the others; 0 if too few are known."""
    others = [length for name, length in lengths.items() if name != learner]
    return median(others) if len(others) >= _OTHERS else 0.0


def _lengths(saved: object) -> dict[str, float]:
    assert isinstance(saved, list | tuple)
    return {str(name): float(length) for name, length in saved}
