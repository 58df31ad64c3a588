"""Going on with a run of a real engine: its journal first, then what was still under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from abaton.controller import Arrived, Event, Failed, Scored, Tick
from abaton.engines.base import Engine, Task


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was open at a checkpoint: at which time, which tasks, which timers."""

    at: float = 0.0
    tasks: tuple[Task, ...] = ()
    timers: Mapping[str, float] = field(default_factory=dict)


class Replayed:
    """An engine that first tells what the journal holds, and then goes on with what has no answer yet.

    While the journal is told, tasks are only remembered. Tasks that were under way when the run was cut off are
    submitted again under their old keys: at most their work is lost.

    Args:
        engine: what goes on afterwards.
        journal: what is told first: all events, or those after a checkpoint.
        resumed: the tasks and timers that were open at that checkpoint.
    """

    real: ClassVar[bool] = True

    def __init__(self, engine: Engine, journal: Iterable[Event], resumed: Resumed | None = None) -> None:
        self._engine, self._told = engine, list(journal)
        resumed = Resumed() if resumed is None else resumed
        self._now = self._end = max((event.at for event in self._told), default=resumed.at)
        self._told.reverse()
        self._handed_over = False
        self._open: dict[str, Task] = {task.key: task for task in resumed.tasks}
        self._timers: dict[str, float] = dict(resumed.timers)

    def now(self) -> float:
        """The journal's time, and from its end on the engine's."""
        return self._end + self._engine.now() if self._handed_over else self._now

    def submit(self, tasks: Sequence[Task]) -> None:
        """Remember tasks while the journal is told; hand them over afterwards."""
        if self._handed_over:
            self._engine.submit(tasks)
        else:
            self._open |= {task.key: task for task in tasks}

    def events(self) -> Sequence[Event]:
        """The next event of the journal, or of the engine."""
        if self._told:
            event = self._told.pop()
            self._now = event.at
            if isinstance(event, Arrived | Scored | Failed):
                self._open.pop(event.task, None)
            elif isinstance(event, Tick):
                self._timers.pop(event.name, None)
            return (event,)
        if not self._handed_over:
            self._handed_over = True
            self._engine.submit(list(self._open.values()))
            for name, at in self._timers.items():
                self.set_timer(name, at)
        return [replace(event, at=self._end + event.at) for event in self._engine.events()]

    def set_timer(self, name: str, at: float) -> None:
        """Remember a timer while the journal is told; set it afterwards."""
        if self._handed_over:
            self._engine.set_timer(name, at - self._end)
        else:
            self._timers[name] = at

    def cancel(self, key: str) -> None:
        """Forget a task."""
        self._open.pop(key, None)
        self._engine.cancel(key)

    def tell(self, committed: int) -> None:
        """Pass on how many steps have been committed."""
        self._engine.tell(committed)
