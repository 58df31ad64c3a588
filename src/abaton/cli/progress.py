"""How far a run has come, kept from the events of the run, and the same in a line of words.

How long a run will still take, by how fast it has come forward lately.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from abaton.controller import Arrived, Event, Failed, Joined, Left, State

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


BARS = "▁▂▃▄▅▆▇█"
_MAX_LOSSES = 4096  # losses that are kept; twice as coarse from then on


@dataclass(slots=True)
class Seen:
    """What has been seen of one learner."""

    updates: int = 0
    bytes: int = 0
    loss: float | None = None
    examples: int = 0
    lost: bool = False


@dataclass(slots=True)
class Course:
    """How far a run has come.

    Attributes:
        rounds: How many versions there will be, if that is known.
        losses: The mean of all learners' newest training losses, after each version.
    """

    rounds: int | None = None
    state: State | None = None
    at: float = 0.0
    bytes: int = 0
    updates: int = 0
    learners: dict[str, Seen] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    _versions: int = 0
    _stride: int = 1
    _weight: int = 0
    _sum: float = 0.0

    @property
    def heard(self) -> bool:
        """Whether anything has happened yet."""
        return self.state is not None

    @property
    def version(self) -> int:
        """The newest version of the community model."""
        return self.state.version if self.state is not None else 0

    @property
    def share(self) -> float | None:
        """Which part of the run is done, if that can be told."""
        return min(1.0, self.version / self.rounds) if self.rounds else None

    def hear(self, state: State, event: Event) -> None:
        """Keep what an event changes; called for each, so it does little."""
        self.state, self.at = state, event.at
        match event:
            case Arrived():
                self._arrived(event)
            case Failed() | Left():
                self._of(event.learner).lost = True
            case Joined():
                self._of(event.learner).lost = False
        if state.version > self._versions:
            self._versions = state.version
            self._note_loss()

    def _of(self, learner: str) -> Seen:
        found = self.learners.get(learner)
        if found is None:
            found = self.learners[learner] = Seen()
        return found

    def _arrived(self, event: Arrived) -> None:
        seen = self._of(event.learner)
        self._count(seen, -1)
        seen.updates += 1
        seen.bytes += event.size
        seen.examples, seen.loss, seen.lost = event.examples, event.metrics.get("loss"), False
        self._count(seen, 1)
        self.updates += 1
        self.bytes += event.size

    def _count(self, seen: Seen, sign: int) -> None:
        """Take a learner's newest loss into the mean, or out of it: its cost does not depend on the others."""
        if seen.loss is not None and isfinite(seen.loss):
            self._weight += sign * seen.examples
            self._sum += sign * seen.examples * seen.loss

    def _note_loss(self) -> None:
        if self._versions % self._stride or not self._weight:
            return
        self.losses.append(self._sum / self._weight)
        if len(self.losses) > _MAX_LOSSES:
            self.losses[:] = self.losses[::2]
            self._stride *= 2

    def count(self) -> str:
        """How many versions there are, and of how many."""
        return f"{self.version:,}/{self.rounds:,}" if self.rounds else f"{self.version:,} versions"


def states_of(course: Course) -> dict[str, str]:
    """What each learner does: training, evaluating, waiting, or lost."""
    state = course.state
    if state is None:
        return {}
    made = dict.fromkeys(state.present, "waiting")
    for contribution in state.scoring.values():
        made.update(dict.fromkeys(contribution.waiting, "evaluating"))
    for assignment in state.open.values():
        made[assignment.learner] = "training"
    for name, seen in list(course.learners.items()):
        if seen.lost and made.get(name) != "training":
            made[name] = "lost"
    return made


def sparkline(values: Sequence[float], width: int) -> str:
    """Numbers as a row of small bars, the lowest and the highest as low and as high as can be.

    >>> sparkline([3.0, 2.0, 1.0], 8)
    '█▄▁'
    """
    step = max(1.0, len(values) / width)
    chosen = [values[min(len(values) - 1, int((i + 1) * step) - 1)] for i in range(min(width, len(values)))]
    finite = [value for value in chosen if isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(
        BARS[int((value - low) / span * (len(BARS) - 1))] if isfinite(value) else " " for value in chosen
    )


def duration(seconds: float) -> str:
    """A time as one reads it.

    >>> duration(4.2), duration(75), duration(3700)
    ('4.2 s', '1:15', '1:01:40')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plain_line(course: Course, left: float | None) -> str:
    """How far a run has come, and what is left of it in seconds if that is known, in a line for a file."""
    parts = [f"{course.count()} versions" if course.rounds else course.count()]
    if course.losses:
        parts.append(f"loss {course.losses[-1]:.3f}")
    parts.append(f"{course.bytes:,} bytes in {course.updates:,} updates")
    states = list(states_of(course).values())
    parts.append(", ".join(f"{states.count(name)} {name}" for name in sorted(set(states))))
    if left is not None and (course.share or 0.0) < 1:
        parts.append(f"{about(left)} left")
    return "; ".join(part for part in parts if part)
