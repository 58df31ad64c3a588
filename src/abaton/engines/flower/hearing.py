"""A post that is listened to: how long the network was silent when it was spoken to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from abaton.engines.flower.parcels import Lost, Parcel, Post

SILENT = 5.0  # seconds; Flower's own calls wait and try again when the SuperLink is away

_Said = TypeVar("_Said")


class Heard:
    """Passes everything on to a post, and remembers the longest time that it took to answer."""

    def __init__(self, post: Post, clock: Callable[[], float]) -> None:
        self._post, self._clock, self._longest = post, clock, 0.0

    def nodes(self) -> Collection[int]:
        """Which nodes are connected."""
        return self._timed(self._post.nodes)

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        """Send a parcel."""
        return self._timed(lambda: self._post.send(node, parcel, ttl))

    def collect(self, letters: Collection[str]) -> Mapping[str, Parcel | Lost]:
        """The answers that are there."""
        return self._timed(lambda: self._post.collect(letters))

    def silence(self) -> float:
        """How long the network was silent since this was last asked; 0 if it was not for long."""
        longest, self._longest = self._longest, 0.0
        return longest if longest > SILENT else 0.0

    def _timed(self, call: Callable[[], _Said]) -> _Said:
        began = self._clock()
        try:
            return call()
        finally:
            self._longest = max(self._longest, self._clock() - began)
