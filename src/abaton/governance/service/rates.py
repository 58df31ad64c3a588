"""Rates: how often somebody may ask, as a bucket that fills while they wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

_MOST_KNOWN = 10_000


class Rates:
    """One bucket for everybody by name; the longest unseen are forgotten, which only ever gives them more.

    Args:
        rate: Requests a second.
        burst: Requests at once, after a pause.
        tick: Seconds that only go forward.

    >>> rates = Rates(1, 2, lambda: 0.0)
    >>> [rates.take("a") for _ in range(3)], rates.take("b")
    ([0.0, 0.0, 1.0], 0.0)
    """

    def __init__(self, rate: float, burst: float, tick: Callable[[], float]) -> None:
        self.rate, self.burst, self.tick = rate, max(burst, 1.0), tick
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one; how many seconds to wait if there is none, else zero."""
        now = self.tick()
        left, since = self._buckets.pop(name, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._buckets[name] = (left if wait else left - 1, now)
        if len(self._buckets) > _MOST_KNOWN:
            self._buckets.popitem(last=False)
        return wait
