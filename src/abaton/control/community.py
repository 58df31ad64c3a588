"""The community model: what the learners' updates add up to."""

from __future__ import annotations

from abaton.codecs import Accumulator, Key, Pipeline
from abaton.vectors import Layout, Vector


class CommunityModel:
    """The newest mix, and the updates that have been committed since.

    Synchronous pacing: all updates of a round start from the same version, so the next version is that version plus the
    weighted mean of the updates. They are added while still encoded, where the codec can do that.
    """

    def __init__(self, layout: Layout, codec: Pipeline, initial: Vector) -> None:
        self.layout, self.codec = layout, codec
        self.vector: Vector = layout.check(initial, whose="the initial model")
        self._sum: Accumulator | None = None

    def commit(self, payload: bytes, weight: float, key: Key) -> None:
        """Add a learner's update to the next mix."""
        if self._sum is None:
            self._sum = self.codec.accumulator(self.layout, key.round)
        self._sum.add(payload, weight, key.learner)

    def publish(self) -> Vector:
        """Make the mix the newest community model and return it; the vector of older versions stays as it was."""
        if self._sum is not None:
            self.vector = self.layout.check(self.vector + self._sum.mean(), whose="the community model")
            self._sum = None
        return self.vector
