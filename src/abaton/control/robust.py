"""Robust mixing: what to do when some updates may be wrong or hostile.

Each takes the updates of a round as rows, with their weights, and gives the change to apply. The weights decide how
much an update counts only where the method can use them without giving a liar more say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.vectors import Vector

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Median:
    """The middle value of each parameter: half of the learners may lie."""

    def mix(self, rows: Rows, weights: NDArray[Any]) -> Vector:
        """The median of every column; weights are not used."""
        return np.asarray(np.median(rows, axis=0), np.float32)


@dataclass(frozen=True, slots=True)
class Trimmed:
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
class Krum:
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
class NormBound:
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


Robust = Median | Trimmed | Krum | NormBound
