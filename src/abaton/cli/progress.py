"""Progress of a run from its events, as numbers and as a line of text, with an estimate of the time left."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from abaton.controller import ControllerState, Event, LearnerJoined, LearnerLeft, TaskFailed, UpdateReceived

_MIN_VERSIONS, _MIN_SECONDS, _MIN_FRACTION = 3, 3.0, 0.03  # required before the first estimate
_SMOOTHING, _MIN_INTERVAL_SECONDS, _MAX_POINTS = 0.2, 0.5, 512  # limit: points that are stored


class TimeEstimate:
    """Estimate of the time left from the times of versions.

    The speed is measured over the second half of the elapsed time, so a slow start (reading, compiling) has no effect.
    Estimates of the end are smoothed exponentially, so a single slow learner has little effect.

    Args:
        rounds: Number of versions of the run, if known.
    """

    def __init__(self, rounds: int | None) -> None:
        self._rounds = rounds
        self._times: list[float] = []
        self._versions: list[int] = []
        self._end: float | None = None

    def note(self, elapsed: float, version: int) -> None:
        """Record for the progress estimate the version that a run has after `elapsed` seconds."""
        if self._times and elapsed < self._times[-1] + _MIN_INTERVAL_SECONDS:
            return
        self._times.append(elapsed)
        self._versions.append(version)
        if len(self._times) > _MAX_POINTS:
            self._times, self._versions = self._times[::2], self._versions[::2]
        end = self._estimate(elapsed, version)
        if end is not None:
            self._end = end if self._end is None else self._end + _SMOOTHING * (end - self._end)

    def _estimate(self, elapsed: float, version: int) -> float | None:
        rounds = self._rounds
        if not rounds or elapsed < _MIN_SECONDS or version < max(_MIN_VERSIONS, _MIN_FRACTION * rounds):
            return None
        midpoint = bisect_left(self._times, elapsed / 2)
        versions, seconds = version - self._versions[midpoint], elapsed - self._times[midpoint]
        return elapsed + seconds * (rounds - version) / versions if versions > 0 and seconds > 0 else None

    def seconds_left(self, elapsed: float) -> float | None:
        """Return the estimated seconds left by a run's progress; `None` before there is an estimate."""
        return None if self._end is None else max(0.0, self._end - elapsed)


def approximate_duration(seconds: float) -> str:
    """Return an estimated duration as rounded text of a progress line.

    >>> [approximate_duration(seconds) for seconds in (3.2, 47, 75, 4000)]
    ['a few seconds', 'about 45 s', 'about 1 min', 'about 1 h 5 min']
    """
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {5 * round(seconds / 5)} s"
    minutes = max(1, round(seconds / 60))
    if minutes > 30:
        minutes = 5 * round(minutes / 5)
    hours, remainder = divmod(minutes, 60)
    return f"about {hours} h {remainder} min" if hours else f"about {minutes} min"


BARS = "▁▂▃▄▅▆▇█"
_MAX_LOSSES = 4096  # stored losses; every second one is dropped beyond


@dataclass(slots=True)
class LearnerProgress:
    """Progress of one learner."""

    updates: int = 0
    bytes: int = 0
    loss: float | None = None
    examples: int = 0
    lost: bool = False


@dataclass(slots=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        rounds: Number of versions of the run, if known.
        losses: Mean of the learners' latest training losses, weighted by examples, after each version.
    """

    rounds: int | None = None
    state: ControllerState | None = None
    elapsed_seconds: float = 0.0
    bytes: int = 0
    updates: int = 0
    learners: dict[str, LearnerProgress] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    _versions: int = 0
    _stride: int = 1
    _weight: int = 0
    _sum: float = 0.0

    @property
    def has_started(self) -> bool:
        """Whether an event of the run was received, so that its progress has started."""
        return self.state is not None

    @property
    def version(self) -> int:
        """Latest version of the community model in the run's progress."""
        return self.state.version if self.state is not None else 0

    @property
    def fraction(self) -> float | None:
        """Completed fraction of the run's progress, if the number of rounds is known."""
        return min(1.0, self.version / self.rounds) if self.rounds else None

    def on_event(self, state: ControllerState, event: Event) -> None:
        """Update the run's progress by an event; called for every event, so it is cheap."""
        self.state, self.elapsed_seconds = state, event.timestamp
        match event:
            case UpdateReceived():
                self._add_update(event)
            case TaskFailed() | LearnerLeft():
                self._learner(event.learner).lost = True
            case LearnerJoined():
                self._learner(event.learner).lost = False
        if state.version > self._versions:
            self._versions = state.version
            self._note_loss()

    def _learner(self, learner: str) -> LearnerProgress:
        progress = self.learners.get(learner)
        if progress is None:
            progress = self.learners[learner] = LearnerProgress()
        return progress

    def _add_update(self, event: UpdateReceived) -> None:
        progress = self._learner(event.learner)
        self._add_loss(progress, -1)
        progress.updates += 1
        progress.bytes += event.payload_bytes
        progress.examples, progress.loss, progress.lost = event.examples, event.metrics.get("loss"), False
        self._add_loss(progress, 1)
        self.updates += 1
        self.bytes += event.payload_bytes

    def _add_loss(self, progress: LearnerProgress, sign: int) -> None:
        """Add a learner's latest loss to the progress's running mean, or subtract it; constant time."""
        if progress.loss is not None and isfinite(progress.loss):
            self._weight += sign * progress.examples
            self._sum += sign * progress.examples * progress.loss

    def _note_loss(self) -> None:
        if self._versions % self._stride or not self._weight:
            return
        self.losses.append(self._sum / self._weight)
        if len(self.losses) > _MAX_LOSSES:
            self.losses[:] = self.losses[::2]
            self._stride *= 2

    def count(self) -> str:
        """Return the number of versions in the progress as text, with the total if known."""
        return f"{self.version:,}/{self.rounds:,}" if self.rounds else f"{self.version:,} versions"


def learner_states(progress: RunProgress) -> dict[str, str]:
    """Return the state of each learner in a run's progress: training, evaluating, waiting, or lost."""
    state = progress.state
    if state is None:
        return {}
    states = dict.fromkeys(state.present, "waiting")
    for contribution in state.awaiting_evaluation.values():
        states.update(dict.fromkeys(contribution.pending_evaluators, "evaluating"))
    for assignment in state.open_tasks.values():
        states[assignment.learner] = "training"
    for name, learner in list(progress.learners.items()):
        if learner.lost and states.get(name) != "training":
            states[name] = "lost"
    return states


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values of a run's progress as a line of bars between their minimum and maximum.

    >>> sparkline([3.0, 2.0, 1.0], 8)
    '█▄▁'
    """
    step = max(1.0, len(values) / width)
    sampled = [values[min(len(values) - 1, int((i + 1) * step) - 1)] for i in range(min(width, len(values)))]
    finite = [value for value in sampled if isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(
        BARS[int((value - low) / span * (len(BARS) - 1))] if isfinite(value) else " " for value in sampled
    )


def duration(seconds: float) -> str:
    """Return a duration as text of a progress line.

    >>> duration(4.2), duration(75), duration(3700)
    ('4.2 s', '1:15', '1:01:40')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def progress_line(progress: RunProgress, seconds_left: float | None) -> str:
    """Return a run's progress and the estimated time left as one line."""
    texts = [f"{progress.count()} versions" if progress.rounds else progress.count()]
    if progress.losses:
        texts.append(f"loss {progress.losses[-1]:.3f}")
    texts.append(f"{progress.bytes:,} bytes in {progress.updates:,} updates")
    states = list(learner_states(progress).values())
    texts.append(", ".join(f"{states.count(name)} {name}" for name in sorted(set(states))))
    if seconds_left is not None and (progress.fraction or 0.0) < 1:
        texts.append(f"{approximate_duration(seconds_left)} left")
    return "; ".join(text for text in texts if text)
