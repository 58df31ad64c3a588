"""The ledger of a real engine: which tasks wait and are under way, who died over one, who is gone, which bells ring.

Invariants:
(1) every task that was taken on ends in one event, unless it is cancelled before it begins;
(2) a learner does one training and one evaluation at a time;
(3) a learner that dies over tasks more than `MOST_DEATHS` times in a row is gone: its tasks fail, and if it was
    training it has left;
(4) time that a task was given to train does not try patience.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from abaton.controller import Event, Failed, Joined, Left, Tick
from abaton.engines.base import GONE, EvaluateTask, Task, TrainTask
from abaton.learners import Learner

MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Duty:
    """One of the two things a learner can do at a time.

    >>> Duty("north", evaluates=True)
    Duty(learner='north', evaluates=True)
    """

    learner: str
    evaluates: bool


def duty_of(task: Task) -> Duty:
    """Which of the two a task is."""
    return Duty(task.learner, isinstance(task, EvaluateTask))


def time_given(task: Task) -> float:
    """Seconds that a task may take before anybody waits for it."""
    return task.settings.budget if isinstance(task, TrainTask) else 0.0


class Timers:
    """Bells that were asked for.

    >>> timers = Timers()
    >>> timers.set("late", 2.0); timers.set("early", 1.0)
    >>> timers.next, [tick.name for tick in timers.due(3.0)], bool(timers)
    (1.0, ['early', 'late'], False)
    """

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def set(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._at[name] = at

    @property
    def next(self) -> float:
        """When the next one rings."""
        return min(self._at.values(), default=float("inf"))

    def due(self, now: float) -> list[Tick]:
        """The ticks whose time has come, in their order."""
        names = sorted((name for name, at in self._at.items() if at <= now), key=self._at.__getitem__)
        for name in names:
            del self._at[name]
        return [Tick(now, name) for name in names]


@dataclass(slots=True)
class _Page:
    """What one duty of a learner has to do."""

    waiting: dict[str, Task] = field(default_factory=dict)
    task: Task | None = None
    since: float = 0.0
    deaths: int = 0


class Ledger:
    """Keeps count for an engine in wall-clock time.

    Args:
        learners: who takes part; all of them have joined.
        groups: which group each learner belongs to.
        patience: seconds after which a task without an answer is given up.
        clock: the time in seconds.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        groups: Mapping[str, str] | None,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.patience, self._clock, self._began = patience, clock, clock()
        self.timers = Timers()
        self._pages = {Duty(name, role): _Page() for role in (True, False) for name in learners}
        self._ready: dict[bool, dict[Duty, None]] = {True: {}, False: {}}
        self._busy: dict[Duty, _Page] = {}
        self._seen: dict[str, Duty] = {}
        groups = groups or {}
        self._happened: list[Event] = [
            Joined(0.0, name, learner.declared, groups.get(name, ""), learner.labels)
            for name, learner in learners.items()
        ]

    def now(self) -> float:
        """Seconds since the engine was started."""
        return self._clock() - self._began

    # ---- what is to be done -------------------------------------------------------------------------------------

    def take_on(self, tasks: Sequence[Task]) -> None:
        """Let tasks wait for their learner; one that was taken on before counts once."""
        for task in tasks:
            if task.key in self._seen:
                continue
            duty = self._seen[task.key] = duty_of(task)
            page = self._pages.get(duty)
            if page is None or page.deaths > MOST_DEATHS:
                self.fail(task, GONE)
            else:
                page.waiting[task.key] = task
                self._line_up(duty)

    def cancel(self, key: str) -> None:
        """Forget a task that has not begun."""
        duty = self._seen.get(key)
        if duty in self._pages:
            self._pages[duty].waiting.pop(key, None)
            self._line_up(duty)

    def ready(self, most: int | None = None) -> Iterator[Task]:
        """One task of each duty that is free, at most so many; evaluations first: they are short, and commits wait."""
        for duty in list(islice(chain(self._ready[True], self._ready[False]), most)):
            yield next(iter(self._pages[duty].waiting.values()))

    def next(self, duty: Duty) -> Task | None:
        """What a duty has to do next, if it is free."""
        page = self._pages[duty]
        return None if page.task is not None else next(iter(page.waiting.values()), None)

    def begin(self, task: Task) -> None:
        """Write down that a task is under way."""
        duty, page = duty_of(task), self._pages[duty_of(task)]
        page.waiting.pop(task.key)
        page.task, page.since = task, self.now()
        self._busy[duty] = page
        self._line_up(duty)

    def _line_up(self, duty: Duty) -> None:
        page, line = self._pages[duty], self._ready[duty.evaluates]
        if page.task is None and page.waiting:
            line[duty] = None
        else:
            line.pop(duty, None)

    # ---- what became of it --------------------------------------------------------------------------------------

    def under_way(self, duty: Duty) -> Task | None:
        """What a duty is at."""
        return self._pages[duty].task

    def end(self, task: Task, event: Event) -> None:
        """Write down what became of a task, whether it had begun or not."""
        duty, page = duty_of(task), self._pages.get(duty_of(task))
        if page is not None:
            page.waiting.pop(task.key, None)
            if page.task is task:
                page.task, page.deaths = None, 0
                del self._busy[duty]
            self._line_up(duty)
        self._happened.append(event)

    def fail(self, task: Task, reason: str) -> None:
        """Write down that a task has failed."""
        self.end(task, Failed(self.now(), task.learner, task.key, reason))

    def lost(self, duty: Duty, reason: str) -> bool:
        """Write down that whoever did a duty has died or was given up; whether the learner is gone."""
        page = self._pages[duty]
        task, deaths = page.task, page.deaths + 1
        if task is not None:
            self.fail(task, reason)
        page.deaths = deaths
        if deaths <= MOST_DEATHS:
            return False
        for waiting in list(page.waiting.values()):
            self.fail(waiting, GONE)
        if not duty.evaluates:
            self._happened.append(Left(self.now(), duty.learner))
        return True

    def late(self) -> list[Duty]:
        """Whose answer has been waited for too long."""
        now = self.now()
        return [duty for duty, page in self._busy.items() if now > self._end(page)]

    def _end(self, page: _Page) -> float:
        assert page.task is not None
        return page.since + time_given(page.task) + self.patience

    # ---- what is heard ------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._happened

    def ring(self) -> None:
        """Let the bells ring whose time has come."""
        self._happened += self.timers.due(self.now())

    def pause(self, most: float) -> float:
        """Seconds until a bell rings or somebody is late, at most so many."""
        soonest = min([self.timers.next, *map(self._end, self._busy.values())])
        return max(0.0, min(most, soonest - self.now()))

    def tell(self) -> list[Event]:
        """Everything that has happened and was not told."""
        happened, self._happened = self._happened, []
        return happened
