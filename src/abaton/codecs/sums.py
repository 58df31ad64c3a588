"""Sums of updates: the running weight, and the plain sum for codecs that must decode each update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import numpy as np

from abaton.codecs.contract import Key
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.codecs.contract import Codec
    from abaton.layout import Layout, Vector


def check_weight(weight: float, learner: str) -> float:
    """The weight itself, if it is one."""
    if not math.isfinite(weight) or weight < 0:
        raise SettingsError(
            f"learner '{learner}' has weight {weight}", remedy="weights are finite and not negative"
        )
    return float(weight)


def check_total(total: float) -> float:
    """The sum of all weights, if a mean can be taken."""
    if not total > 0:
        raise SettingsError("nothing with a weight was added", remedy="add at least one update first")
    return total


class DecodedSum:
    """Decodes each update and adds it, in float64 so that many additions do not drift."""

    def __init__(self, codec: Codec, layout: Layout, round_key: bytes) -> None:
        self.codec, self.layout, self.round_key = codec, layout, round_key
        self.total = 0.0
        self.sum = np.zeros(layout.size, dtype=np.float64)

    def add(self, payload: bytes, weight: float, learner: str) -> None:
        """Add one learner's payload."""
        weight = check_weight(weight, learner)
        self._include(payload, weight, Key(self.round_key, learner))
        self.total += weight

    def merge(self, other: Self) -> None:
        """Add another sum of the same round."""
        check_same(self, other)
        self.sum += other.sum
        self.total += other.total

    def mean(self) -> Vector:
        """The weighted mean of everything added."""
        return (self.sum / check_total(self.total)).astype(np.float32)

    def _include(self, payload: bytes, weight: float, key: Key) -> None:
        self.sum += np.multiply(self.codec.decode(payload, self.layout, key), weight, dtype=np.float64)


def check_same(one: DecodedSum | object, other: DecodedSum | object) -> None:
    """Refuse to merge sums of different codecs, layouts or rounds."""
    for what in ("codec", "layout", "round_key"):
        if getattr(one, what) != getattr(other, what):
            raise SettingsError(
                f"the two sums have a different {what.replace('_', ' ')}", remedy="merge sums of one round"
            )
