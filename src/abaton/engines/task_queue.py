"""Task queue of a real-time engine: waiting and running tasks, lost processes and timers.

Invariants:
(1) every accepted task ends in one event, unless it is cancelled before it starts;
(2) a learner has at most one training and one evaluation at a time;
(3) a role whose process is lost more than `MAX_DEATHS` times in a row is given up: its tasks fail, and if it was
    training, the learner has left;
(4) the time budget of a training does not count towards `answer_timeout`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from abaton.controller import Event, LearnerJoined, LearnerLeft, TaskFailed, TimerFired
from abaton.engines.base import LEARNER_GONE, EvaluateTask, Task, TrainTask
from abaton.learners import Learner

MAX_DEATHS = 3


@dataclass(frozen=True, slots=True)
class TaskRole:
    """Role of a learner: training or evaluation.

    >>> TaskRole("north", evaluates=True)
    TaskRole(learner='north', evaluates=True)
    """

    learner: str
    evaluates: bool


def role_of_task(task: Task) -> TaskRole:
    """Return the role in whose queue a task waits: training or evaluation by a learner."""
    return TaskRole(task.learner, isinstance(task, EvaluateTask))


def task_timeout(task: Task) -> float:
    """Return the seconds that a queued task may take before its timeout starts."""
    return task.settings.time_budget_seconds if isinstance(task, TrainTask) else 0.0


class Timers:
    """Requested timers.

    >>> timers = Timers()
    >>> timers.set("second", 2.0); timers.set("first", 1.0)
    >>> timers.next, [event.name for event in timers.due(3.0)], bool(timers)
    (1.0, ['first', 'second'], False)
    """

    def __init__(self) -> None:
        self._timestamps: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._timestamps)

    def set(self, name: str, timestamp: float) -> None:
        """Add a timer to the queue of timers."""
        self._timestamps[name] = timestamp

    @property
    def next(self) -> float:
        """Time of the next timer in the queue of timers."""
        return min(self._timestamps.values(), default=float("inf"))

    def due(self, now: float) -> list[TimerFired]:
        """Remove the due timers from the queue of timers and return their events in order."""
        due = sorted(
            (name for name, timestamp in self._timestamps.items() if timestamp <= now),
            key=self._timestamps.__getitem__,
        )
        for name in due:
            del self._timestamps[name]
        return [TimerFired(now, name) for name in due]


@dataclass(slots=True)
class _RoleQueue:
    """Tasks of one role of a learner."""

    waiting: dict[str, Task] = field(default_factory=dict)
    task: Task | None = None
    started_at: float = 0.0
    deaths: int = 0


class TaskQueue:
    """Task queue for an engine in wall-clock time.

    Args:
        learners: the participants; all of them have joined.
        groups: the group of each learner.
        answer_timeout: seconds after which a task without a reply fails.
        clock: the time in seconds.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        groups: Mapping[str, str] | None,
        answer_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer_timeout, self._clock, self._started_at = answer_timeout, clock, clock()
        self.timers = Timers()
        self._queues = {
            TaskRole(name, evaluates): _RoleQueue() for evaluates in (True, False) for name in learners
        }
        self._ready: dict[bool, dict[TaskRole, None]] = {True: {}, False: {}}
        self._busy: dict[TaskRole, _RoleQueue] = {}
        self._seen: dict[str, TaskRole] = {}
        groups = groups or {}
        self._events: list[Event] = [
            LearnerJoined(0.0, name, learner.declared_examples, groups.get(name, ""), learner.labels)
            for name, learner in learners.items()
        ]

    def now(self) -> float:
        """Return the seconds since the task queue was created, the clock of its engine."""
        return self._clock() - self._started_at

    # ---- tasks to run -------------------------------------------------------------------------------------------

    def add(self, tasks: Sequence[Task]) -> None:
        """Add tasks to the queues of their learners; a task that was queued before is ignored."""
        for task in tasks:
            if task.task_id in self._seen:
                continue
            role = self._seen[task.task_id] = role_of_task(task)
            queue = self._queues.get(role)
            if queue is None or queue.deaths > MAX_DEATHS:
                self.fail(task, LEARNER_GONE)
            else:
                queue.waiting[task.task_id] = task
                self._update_ready(role)

    def cancel(self, task_id: str) -> None:
        """Remove a task that has not started from the task queue."""
        role = self._seen.get(task_id)
        if role in self._queues:
            self._queues[role].waiting.pop(task_id, None)
            self._update_ready(role)

    def ready(self, limit: int | None = None) -> Iterator[Task]:
        """Yield one queued task of each free role, up to `limit`; evaluations first, because commits wait for them."""
        for role in list(islice(chain(self._ready[True], self._ready[False]), limit)):
            yield next(iter(self._queues[role].waiting.values()))

    def next(self, role: TaskRole) -> Task | None:
        """Return the next task in a role's queue if the role is free."""
        queue = self._queues[role]
        return None if queue.task is not None else next(iter(queue.waiting.values()), None)

    def begin(self, task: Task) -> None:
        """Record in the task queue that a task is running."""
        role, queue = role_of_task(task), self._queues[role_of_task(task)]
        queue.waiting.pop(task.task_id)
        queue.task, queue.started_at = task, self.now()
        self._busy[role] = queue
        self._update_ready(role)

    def _update_ready(self, role: TaskRole) -> None:
        queue, ready = self._queues[role], self._ready[role.evaluates]
        if queue.task is None and queue.waiting:
            ready[role] = None
        else:
            ready.pop(role, None)

    # ---- ends of tasks ------------------------------------------------------------------------------------------

    def current_task(self, role: TaskRole) -> Task | None:
        """Return the running task of a role of the task queue."""
        return self._queues[role].task

    def end(self, task: Task, event: Event) -> None:
        """Record in the task queue the event that ends a task, whether it had started or not."""
        role, queue = role_of_task(task), self._queues.get(role_of_task(task))
        if queue is not None:
            queue.waiting.pop(task.task_id, None)
            if queue.task is task:
                queue.task, queue.deaths = None, 0
                del self._busy[role]
            self._update_ready(role)
        self._events.append(event)

    def fail(self, task: Task, reason: str) -> None:
        """Record in the task queue that a task has failed."""
        self.end(task, TaskFailed(self.now(), task.learner, task.task_id, reason))

    def record_loss(self, role: TaskRole, reason: str) -> bool:
        """Record in the task queue that the process of a role was lost; return whether the role is given up."""
        queue = self._queues[role]
        task, deaths = queue.task, queue.deaths + 1
        if task is not None:
            self.fail(task, reason)
        queue.deaths = deaths
        if deaths <= MAX_DEATHS:
            return False
        for waiting in list(queue.waiting.values()):
            self.fail(waiting, LEARNER_GONE)
        if not role.evaluates:
            self._events.append(LearnerLeft(self.now(), role.learner))
        return True

    def overdue_roles(self) -> list[TaskRole]:
        """Return the roles of the task queue whose task has timed out."""
        now = self.now()
        return [role for role, queue in self._busy.items() if now > self._timeout_at(queue)]

    def _timeout_at(self, queue: _RoleQueue) -> float:
        assert queue.task is not None
        return queue.started_at + task_timeout(queue.task) + self.answer_timeout

    # ---- events -------------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether the task queue has no event to report."""
        return not self._events

    def fire_timers(self) -> None:
        """Add the events of due timers to the task queue."""
        self._events += self.timers.due(self.now())

    def pause(self, limit: float) -> float:
        """Return the seconds until the next timer or task timeout of the queue, up to `limit`."""
        soonest = min([self.timers.next, *map(self._timeout_at, self._busy.values())])
        return max(0.0, min(limit, soonest - self.now()))

    def take_events(self) -> list[Event]:
        """Take all events since the last call from the task queue."""
        events, self._events = self._events, []
        return events
