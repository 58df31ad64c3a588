"""Replay of a journal before a real-time engine continues with the open tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from abaton.controller import EvaluationReceived, Event, TaskFailed, TimerFired, UpdateReceived
from abaton.engines.base import Engine, Task


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Time, open tasks and timers at a checkpoint."""

    timestamp: float = 0.0
    tasks: tuple[Task, ...] = ()
    timers: Mapping[str, float] = field(default_factory=dict)


class ReplayedEngine:
    """Engine that returns the journal's events first and then continues with the open tasks.

    During the replay tasks are only recorded. Tasks that were running when the run was interrupted are submitted
    again with their ids, so at most their work is lost.

    Args:
        engine: the engine that continues.
        journal: the events to replay: all, or those after a checkpoint.
        resume_point: the tasks and timers that were open at that checkpoint.
    """

    is_real_time: ClassVar[bool] = True

    def __init__(
        self, engine: Engine, journal: Iterable[Event], resume_point: ResumePoint | None = None
    ) -> None:
        self._engine, self._events = engine, list(journal)
        resume_point = ResumePoint() if resume_point is None else resume_point
        self._now = self._end = max(
            (event.timestamp for event in self._events), default=resume_point.timestamp
        )
        self._events.reverse()
        self._is_replayed = False
        self._open: dict[str, Task] = {task.task_id: task for task in resume_point.tasks}
        self._timers: dict[str, float] = dict(resume_point.timers)

    def now(self) -> float:
        """Return the time of the replayed journal, and after its end that of the engine."""
        return self._end + self._engine.now() if self._is_replayed else self._now

    def submit(self, tasks: Sequence[Task]) -> None:
        """Record tasks during the replay of a journal; submit them to the engine afterwards."""
        if self._is_replayed:
            self._engine.submit(tasks)
        else:
            self._open |= {task.task_id: task for task in tasks}

    def events(self) -> Sequence[Event]:
        """Return the next replayed event of the journal, or after its end the next events of the engine."""
        if self._events:
            event = self._events.pop()
            self._now = event.timestamp
            if isinstance(event, UpdateReceived | EvaluationReceived | TaskFailed):
                self._open.pop(event.task, None)
            elif isinstance(event, TimerFired):
                self._timers.pop(event.name, None)
            return (event,)
        if not self._is_replayed:
            self._is_replayed = True
            self._engine.submit(list(self._open.values()))
            for name, timestamp in self._timers.items():
                self.set_timer(name, timestamp)
        return [replace(event, timestamp=self._end + event.timestamp) for event in self._engine.events()]

    def set_timer(self, name: str, timestamp: float) -> None:
        """Record a timer during the replay of a journal; set it in the engine afterwards."""
        if self._is_replayed:
            self._engine.set_timer(name, timestamp - self._end)
        else:
            self._timers[name] = timestamp

    def cancel(self, task_id: str) -> None:
        """Drop a task, during the replay of a journal or afterwards in the engine."""
        self._open.pop(task_id, None)
        self._engine.cancel(task_id)

    def broadcast_progress(self, committed_steps: int) -> None:
        """Forward the number of committed steps from the replay to the engine."""
        self._engine.broadcast_progress(committed_steps)
