"""Contribution rules, robust aggregation and the norm bound of updates.

`LatestContribution` and `FedAsyncContribution` define the effect of an asynchronous commit. A robust aggregator gets
the updates of a version as rows, with their weights, and returns the change to apply; it uses the weights only where
they give a Byzantine learner no more influence.

With `Strategy(robustness="capped")`, `UpdateNormBound` compares the norm of an update with the latest accepted updates
of up to 64 other learners. An update longer than ten times their median is clipped to that norm. A malicious learner
that shifts the model also enlarges honest updates and would raise the bound every round, so the others' first updates
bound the norm as well, with the squared ratio (100, since error feedback at 1 % sparsity grows honest updates 23-fold
over 150 rounds). Until two other learners are known, a fixed norm applies that no honest first update approaches. The
bound depends only on the commits and their order, so a replayed run gives the same result.
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
from abaton.layout import Vector
from abaton.training import TrainSettings

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LatestContribution:
    """Weighted mean of every learner's latest model (Metis): an update replaces the learner's previous one.

    Attributes:
        departed: `keep` or `subtract` the contribution of a learner that leaves.
    """

    departed: str = "keep"


@dataclass(frozen=True, slots=True)
class FedAsyncContribution:
    """FedAsync: move the community model towards each committed model by `alpha * weight`."""

    alpha: float = 0.5


class RobustAggregator(Protocol):
    """Aggregation of updates of which some may be Byzantine.

    A user-defined aggregator inherits from this class and implements `aggregate`; it has no state.
    """

    @abstractmethod
    def aggregate(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """Return the robustly aggregated change to apply, from updates as rows and their weights."""

    @property
    def min_updates(self) -> int:
        """Minimum number of updates that robust aggregation needs."""
        return 1


@dataclass(frozen=True, slots=True)
class CoordinateMedian(RobustAggregator):
    """Coordinate-wise median: tolerates up to half Byzantine learners."""

    def aggregate(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """Return the coordinate-wise median of the updates, a robust aggregate; weights are not used."""
        return np.asarray(np.median(rows, axis=0), np.float32)


@dataclass(frozen=True, slots=True)
class TrimmedMean(RobustAggregator):
    """Coordinate-wise mean without the largest and smallest values.

    Attributes:
        fraction: Fraction of the updates that is removed at each end.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 0.5:
            raise SettingsError(
                f"fraction is {self.fraction}", where="trimmed_mean", remedy="use 0 <= fraction < 0.5"
            )

    def aggregate(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """Return the coordinate-wise trimmed mean of the updates, a robust aggregate; weights are not used."""
        removed = int(self.fraction * len(rows))
        trimmed = np.sort(rows, axis=0)[removed : len(rows) - removed]
        return np.asarray(trimmed.mean(axis=0, dtype=np.float64), np.float32)


@dataclass(frozen=True, slots=True)
class Krum(RobustAggregator):
    """Mean of the updates closest to most others (multi-Krum; Blanchard et al., 2017).

    Attributes:
        byzantine: Maximum number of Byzantine updates of a round; it needs at least 2 * byzantine + 3 updates.
        keep: Number of updates that are averaged; 1 is Krum.
    """

    byzantine: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        if self.byzantine < 0 or self.keep < 1:
            raise SettingsError(
                f"byzantine is {self.byzantine} and keep is {self.keep}",
                where="krum",
                remedy="use byzantine >= 0 and keep >= 1",
            )

    @property
    def min_updates(self) -> int:
        """Minimum number of updates for Krum: honest learners have a majority."""
        return 2 * self.byzantine + 3

    def aggregate(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """Return Krum's aggregate: the mean of the `keep` updates with the smallest distance to their neighbours."""
        squared_norms = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        distances = squared_norms[:, None] + squared_norms[None, :] - 2 * (rows @ rows.T).astype(np.float64)
        np.fill_diagonal(distances, 0.0)
        neighbours = max(1, len(rows) - self.byzantine - 2)
        scores = np.sort(distances, axis=1)[:, : neighbours + 1].sum(axis=1)
        selected = np.argsort(scores, kind="stable")[: min(self.keep, len(rows))]
        return np.asarray(rows[selected].mean(axis=0, dtype=np.float64), np.float32)


@dataclass(frozen=True, slots=True)
class NormBound(RobustAggregator):
    """Weighted mean of updates clipped to a norm; the median norm if None."""

    norm: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and not self.norm > 0:
            raise SettingsError(f"norm is {self.norm}", where="norm_bound", remedy="use a number above 0")

    def aggregate(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """Return the weighted mean of the updates clipped to the norm bound, a robust aggregate."""
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        limit = float(np.median(norms)) if self.norm is None else self.norm
        factors = np.minimum(1.0, limit / np.maximum(norms, 1e-30))
        return np.asarray((weights * factors) @ rows / weights.sum(), np.float32)


MAX_NORM_RATIO = 10.0
"""Maximum norm of an update relative to the median of the others, if the strategy's robustness is `capped`."""

_MAX_LEARNERS = 64  # learners whose latest norm is stored, so that the cost of a median is bounded
_MIN_OTHERS = 2  # minimum number of other learners to compare with
_MAX_FIRST_STEPS = 100.0  # bound of a first update: mean change per parameter in units of the learning rate


class UpdateNormBound:
    """Bound of an update's norm relative to the norms of accepted updates.

    Args:
        max_norm_ratio: Maximum ratio to the other learners' norms; 0 is no bound.
        size: Number of parameters of a model.
        training: Settings of local training, which bound the first updates.

    >>> bound = UpdateNormBound(10.0, 100, TrainSettings(learning_rate=0.05))
    >>> [bound.clip_factor(name, norm) for name, norm in (("north", 1.0), ("south", 2.0), ("east", 150.0))]
    [1.0, 1.0, 0.1]
    >>> bound.clip_factor("north", 1e9) * 1e9, bound.clipped_updates
    (85.0, 2)
    """

    def __init__(self, max_norm_ratio: float, size: int, training: TrainSettings) -> None:
        self.max_norm_ratio, self.clipped_updates = max_norm_ratio, 0
        self._first_bound = math.sqrt(size) * max(1.0, _MAX_FIRST_STEPS * training.learning_rate)
        self._norms: dict[str, float] = {}
        self._first_norms: dict[str, float] = {}

    def clip_factor(self, learner: str, norm: float) -> float:
        """Return the factor, at most 1, that clips an update to the robust norm bound, and store its norm."""
        if not self.max_norm_ratio:
            return 1.0
        limit = self._limit(learner)
        self._norms.pop(learner, None)
        self._norms[learner] = min(norm, limit)
        if len(self._first_norms) < _MAX_LEARNERS:
            self._first_norms.setdefault(learner, min(norm, limit))
        if len(self._norms) > _MAX_LEARNERS:
            del self._norms[next(iter(self._norms))]
        if norm <= limit:
            return 1.0
        self.clipped_updates += 1
        return limit / norm

    def _limit(self, learner: str) -> float:
        typical, first = (
            _median_of_others(self._norms, learner),
            _median_of_others(self._first_norms, learner),
        )
        if not typical:
            return self._first_bound
        return self.max_norm_ratio * (min(typical, self.max_norm_ratio * first) if first else typical)

    def save(self) -> dict[str, object]:
        """Return the state of the robust norm bound as JSON values."""
        return {
            "norms": [[name, norm] for name, norm in self._norms.items()],
            "first_norms": [[name, norm] for name, norm in self._first_norms.items()],
            "clipped_updates": self.clipped_updates,
        }

    def load(self, saved: Mapping[str, object]) -> None:
        """Restore the state of the robust norm bound that `save` returned."""
        clipped_updates = saved["clipped_updates"]
        assert isinstance(clipped_updates, int)
        self._norms, self._first_norms = _parse_norms(saved["norms"]), _parse_norms(saved["first_norms"])
        self.clipped_updates = clipped_updates


def _median_of_others(norms: Mapping[str, float], learner: str) -> float:
    """Return the median update norm of the other learners for the robust norm bound; 0 if below two are known."""
    other_norms = [norm for name, norm in norms.items() if name != learner]
    return median(other_norms) if len(other_norms) >= _MIN_OTHERS else 0.0


def _parse_norms(saved: object) -> dict[str, float]:
    assert isinstance(saved, list | tuple)
    return {str(name): float(norm) for name, norm in saved}
