"""How long a run will still take, by how fast it has come forward lately."""

from __future__ import annotations

from bisect import bisect_left

_VERSIONS, _SECONDS, _SHARE = 3, 3.0, 0.03  # nothing is said before so much is known
_WEIGHT, _PAUSE, _MAX_TIMES = 0.2, 0.5, 512  # of a new estimate; seconds between two; moments that are kept


class Pace:
    """When versions came, and when the last one will.

    The speed is that of the newer half of the time so far, so that a slow start (reading, compiling) is forgotten. The
    end that it leads to is averaged with earlier estimates, so that one slow learner does not move it far.

    Args:
        rounds: How many versions there will be, if that is known.
    """

    def __init__(self, rounds: int | None) -> None:
        self._rounds = rounds
        self._times: list[float] = []
        self._versions: list[int] = []
        self._end: float | None = None

    def note(self, elapsed: float, version: int) -> None:
        """Keep how far the run is after so many seconds."""
        if self._times and elapsed < self._times[-1] + _PAUSE:
            return
        self._times.append(elapsed)
        self._versions.append(version)
        if len(self._times) > _MAX_TIMES:
            self._times, self._versions = self._times[::2], self._versions[::2]
        end = self._estimate(elapsed, version)
        if end is not None:
            self._end = end if self._end is None else self._end + _WEIGHT * (end - self._end)

    def _estimate(self, elapsed: float, version: int) -> float | None:
        rounds = self._rounds
        if not rounds or elapsed < _SECONDS or version < max(_VERSIONS, _SHARE * rounds):
            return None
        half = bisect_left(self._times, elapsed / 2)
        done, took = version - self._versions[half], elapsed - self._times[half]
        return elapsed + took * (rounds - version) / done if done > 0 and took > 0 else None

    def left(self, elapsed: float) -> float | None:
        """Seconds that are left, if enough is known to say so."""
        return None if self._end is None else max(0.0, self._end - elapsed)


def about(seconds: float) -> str:
    """A time that is a guess, as roughly as it is known.

    >>> about(3.2), about(47), about(75), about(4000)
    ('a few seconds', 'about 45 s', 'about 1 min', 'about 1 h 5 min')
    """
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {5 * round(seconds / 5)} s"
    minutes = max(1, round(seconds / 60))
    if minutes > 30:
        minutes = 5 * round(minutes / 5)
    hours, rest = divmod(minutes, 60)
    return f"about {hours} h {rest} min" if hours else f"about {minutes} min"
