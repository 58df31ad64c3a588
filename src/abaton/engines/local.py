"""The local engine: learners as processes on this machine, in real time, with everything that can go wrong.

Every learner has two processes, one that trains and one that evaluates, so that a model can be scored while its site
trains. Processes are forked: a site's examples are never copied or written anywhere. Only plain headers (JSON) and raw
bytes cross the pipes. A process that dies or hangs is reported, ended and started again; what a learner sends is
decoded once before anybody hears of it, so that rubbish is a failed task and never a crash.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from abaton.control import Arrived, Event, Failed, Joined, Left, Scored, Tick, settings_from
from abaton.engines.contract import EvaluateTask, Task, TrainTask
from abaton.engines.site import SiteState, check_states
from abaton.errors import AbatonError
from abaton.learning import Learner, Watch

Check = Callable[[str, int, bytes], None]

_FORK = multiprocessing.get_context("fork")
_RESTARTS = 3


@dataclass(slots=True, eq=False)
class _Worker:
    """One process of a learner, and what it is working on."""

    learner: str
    evaluates: bool
    process: ForkProcess
    pipe: Connection
    waiting: list[Task]
    task: Task | None = None
    since: float = 0.0
    restarts: int = 0


class LocalEngine:
    """Learners as processes, in wall-clock time.

    Args:
        learners: who takes part.
        keep: stores a payload and returns its digest.
        check: decodes a learner's payload for a version; raises an `AbatonError` if it is not sound.
        patience: seconds after which a task without an answer is given up and its process ended.
        groups: which group each learner belongs to.
        states: a folder where each learner keeps what must survive its process; needed if it keeps anything.
    """

    real: ClassVar[bool] = True

    def __init__(
        self,
        learners: Mapping[str, Learner],
        *,
        keep: Callable[[bytes], str],
        check: Check,
        patience: float = 600.0,
        groups: Mapping[str, str] | None = None,
        states: Path | None = None,
    ) -> None:
        check_states(learners, states, "local engine")
        self._states = states
        self._learners, self._keep, self._check, self._patience = learners, keep, check, patience
        self._began = time.monotonic()
        self._seen: set[str] = set()
        self._timers: dict[str, float] = {}
        self._committed = mmap.mmap(-1, 8)  # shared with all processes, so that they know while they train
        groups = groups or {}
        self._happened: list[Event] = [
            Joined(0.0, name, len(learner.examples), groups.get(name, ""), learner.labels)
            for name, learner in learners.items()
        ]
        self._workers = [self._start(name, evaluates) for name in learners for evaluates in (False, True)]

    def now(self) -> float:
        """Seconds since the engine was started."""
        return time.monotonic() - self._began

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand tasks to the processes of their learners, each one after the other."""
        for task in tasks:
            if task.key not in self._seen:
                self._seen.add(task.key)
                worker = self._worker(task)
                if worker is None:
                    self._happened.append(Failed(self.now(), task.learner, task.key, "learner is gone"))
                else:
                    worker.waiting.append(task)
                    self._give(worker)

    def events(self) -> Sequence[Event]:
        """What happened next; waits for it."""
        while not self._happened and (self._workers or self._timers):
            ready = wait([worker.pipe for worker in self._workers], timeout=self._pause())
            for worker in [w for w in self._workers if w.pipe in ready]:
                self._hear(worker)
            self._give_up_on_the_hung()
            self._ring()
        happened, self._happened = self._happened, []
        return happened

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._timers[name] = at

    def cancel(self, key: str) -> None:
        """Forget a task that has not begun; one under way is let end, and its answer is not waited for."""
        for worker in self._workers:
            worker.waiting = [task for task in worker.waiting if task.key != key]

    def tell(self, committed: int) -> None:
        """Let learners know at once, also while they train."""
        self._committed[:] = committed.to_bytes(8, "little")

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            _end(worker)
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, learner: str, evaluates: bool, restarts: int = 0) -> _Worker:  # noqa: FBT001
        ours, theirs = _FORK.Pipe()
        told = (self._learners[learner], theirs, self._committed, self._states)
        process = _FORK.Process(target=_serve, args=told, daemon=True)
        process.start()
        theirs.close()
        return _Worker(learner, evaluates, process, ours, [], restarts=restarts)

    def _worker(self, task: Task) -> _Worker | None:
        evaluates = isinstance(task, EvaluateTask)
        mine = (w for w in self._workers if w.learner == task.learner and w.evaluates == evaluates)
        return next(mine, None)

    def _give(self, worker: _Worker) -> None:
        if worker.task is None and worker.waiting:
            task = worker.waiting.pop(0)
            worker.task, worker.since = task, self.now()
            header: dict[str, Any] = {"key": task.key}
            if isinstance(task, TrainTask):
                header |= {"version": task.version, "settings": asdict(task.settings)}
            try:
                worker.pipe.send_bytes(json.dumps(header).encode())
                worker.pipe.send_bytes(np.ascontiguousarray(task.model, dtype="<f4").tobytes())
            except OSError:
                self._replace(worker, "process ended")

    def _hear(self, worker: _Worker) -> None:
        try:
            header = json.loads(worker.pipe.recv_bytes())
            payload = worker.pipe.recv_bytes()
        except (OSError, EOFError, ValueError):
            self._replace(worker, "process ended")
            return
        task, worker.task = worker.task, None
        if task is not None and header.get("key") == task.key:
            self._happened.append(self._event(task, header, payload))
        self._give(worker)

    def _event(self, task: Task, header: Mapping[str, Any], payload: bytes) -> Event:
        at = self.now()
        if "reason" in header:
            return Failed(at, task.learner, task.key, str(header["reason"]))
        if isinstance(task, EvaluateTask):
            return Scored(at, task.learner, task.key, tuple(header["score"]))
        try:
            self._check(task.learner, task.version, payload)
        except AbatonError:
            return Failed(at, task.learner, task.key, "unreadable update")
        metrics = {} if header["loss"] is None else {"loss": float(header["loss"])}
        digest, steps, examples = self._keep(payload), int(header["steps"]), int(header["examples"])
        told = (steps, examples, metrics, tuple(header["score"]), str(header["cohort"]))
        return Arrived(at, task.learner, task.key, digest, len(payload), *told)

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Report what a lost process was doing, and start it again; a learner that keeps dying has left."""
        _end(worker)
        self._workers.remove(worker)
        if worker.task is not None:
            self._happened.append(Failed(self.now(), worker.learner, worker.task.key, reason))
        if worker.restarts < _RESTARTS:
            fresh = self._start(worker.learner, worker.evaluates, worker.restarts + 1)
            fresh.waiting = worker.waiting
            self._workers.append(fresh)
            self._give(fresh)
            return
        for task in worker.waiting:
            self._happened.append(Failed(self.now(), worker.learner, task.key, "learner is gone"))
        if not worker.evaluates:
            self._happened.append(Left(self.now(), worker.learner))

    def _give_up_on_the_hung(self) -> None:
        for worker in list(self._workers):
            if worker.task is not None and self.now() > self._end(worker.task, worker.since):
                self._replace(worker, "no answer in time")

    def _end(self, task: Task, since: float) -> float:
        """When patience with a task ends; time that it was given to train does not try it."""
        given = task.settings.budget if isinstance(task, TrainTask) else 0.0
        return since + given + self._patience

    def _ring(self) -> None:
        for name, at in sorted(self._timers.items(), key=lambda timer: timer[1]):
            if at <= self.now():
                del self._timers[name]
                self._happened.append(Tick(self.now(), name))

    def _pause(self) -> float:
        ends = [
            *self._timers.values(),
            *(self._end(w.task, w.since) for w in self._workers if w.task is not None),
        ]
        return max(0.0, min([end - self.now() for end in ends], default=0.5))


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def _serve(learner: Learner, pipe: Connection, committed: mmap.mmap, states: Path | None) -> None:
    """The life of a learner's process: one task after the other, until the pipe is closed."""
    watch = Watch(time.monotonic, lambda: int.from_bytes(committed[:], "little"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the run decides when it ends
    state = SiteState(states, learner.name) if states is not None else None
    while True:
        try:
            header, model = json.loads(pipe.recv_bytes()), np.frombuffer(pipe.recv_bytes(), dtype="<f4")
        except (EOFError, OSError):
            return
        answer, payload = {"key": header["key"]}, b""
        try:
            known = state.answered(header["key"]) if state is not None and "settings" in header else None
            if state is not None:
                state.refresh(learner)
            if known is not None:
                answer, payload = known
            elif "settings" in header:
                settings = settings_from(header["settings"])
                learner.begin(time.time(), header["version"])
                made = learner.train(header["key"], header["version"], model, settings, watch)
                answer |= {"steps": made.steps, "loss": made.loss, "score": made.score}
                answer |= {"examples": learner.size(settings), "cohort": learner.cohort}
                payload = made.payload
                if state is not None:
                    state.save(learner, answer, payload)
            else:
                learner.begin(time.time())
                answer |= {"score": learner.evaluate(model)}
        except AbatonError:
            answer |= {"reason": "task was refused"}  # never the text: it may speak of the site's data
        except Exception:
            answer |= {"reason": "learner failed"}
        try:
            pipe.send_bytes(json.dumps(answer).encode())
            pipe.send_bytes(payload)
        except OSError:
            return
