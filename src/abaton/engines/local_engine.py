"""The local engine: learners as processes on this machine, in real time, with everything that can go wrong.

Every learner has two processes, one that trains and one that evaluates, so that a model can be scored while its site
trains; the second is started when there is something to evaluate. Processes are forked: a site's examples are never
copied or written anywhere. Only plain headers (JSON) and raw bytes cross the pipes. A process that dies or hangs is
reported, ended and started again; what a learner sends is decoded once before anybody hears of it, so that rubbish is a
failed task and never a crash. When the engine's process is gone, however it ended, its learners' processes end at once:
none of them writes to a site's memory while the resumed run's processes do.

A lifeline: processes end with the one that started them, however that ended.

A child whose parent was killed waits forever: its pipes never end, since its brothers and sisters hold copies of the
parent's ends. So there is one pipe more, to which nobody writes and whose writing end only the parent keeps. The system
closes it with the parent, and every child hears that. Something else that the parent has forked may hold a copy of that
end, too, so that children also look now and then whether their parent is still the same.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, ClassVar, Self

from abaton.controller import Event
from abaton.engines.base import DIED, LATE, EvaluateTask, Task, TrainTask
from abaton.engines.model_transfer import Held, load, unload
from abaton.engines.reply_validation import Check, Reader, header, packed
from abaton.engines.site_state import SiteState, begin_anew
from abaton.engines.task_handler import Worker
from abaton.engines.task_queue import Duty, Ledger, duty_of
from abaton.kernels import Vector
from abaton.learners import Learner, Reply, Watch
from abaton.training import settings_from

_LOOK = 0.5  # seconds


class Lifeline:
    """Made by a parent before it forks, and held by its children."""

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._theirs, self._ours = multiprocessing.get_context("fork").Pipe(duplex=False)

    def let_go(self) -> None:
        """Let children that are still there end."""
        self._ours.close()
        self._theirs.close()

    def hold(self) -> None:
        """End this process, a child, as soon as its parent is gone, whatever it is doing."""
        self._ours.close()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.getppid() == self._parent and not self._theirs.poll(_LOOK):
            pass
        os._exit(1)


_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True, eq=False)
class _Process:
    """Who does one duty of a learner, the pipe to it, the versions it holds, and the bytes of what it was sent last."""

    process: ForkProcess
    pipe: Connection
    held: Held[None]
    sent: int = 0

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class LocalEngine:
    """Learners as processes, in wall-clock time.

    Args:
        learners: who takes part; they begin with what `states` holds, and with nothing else.
        keep: stores a payload and returns its digest.
        check: decodes a learner's payload for a version; raises an `AbatonError` if it is not sound.
        patience: seconds after which a task without an answer is given up and its process ended.
        groups: which group each learner belongs to.
        states: the run's folder where each learner keeps what must survive its process; needed if it keeps anything.
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
        begin_anew(learners, states, "local engine")
        self._learners, self._states = learners, states
        self._reader, self._ledger = Reader(keep, check), Ledger(learners, groups, patience)
        self._committed = mmap.mmap(-1, 8)  # shared with all processes, so that they know while they train
        self._lifeline = Lifeline()
        self._processes = {
            duty: self._start(duty) for duty in (Duty(name, evaluates=False) for name in learners)
        }

    def now(self) -> float:
        """Seconds since the engine was started."""
        return self._ledger.now()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand tasks to the processes of their learners, each one after the other."""
        self._ledger.take_on(tasks)
        for task in self._ledger.ready():
            self._give(task)

    def events(self) -> Sequence[Event]:
        """What happened next; waits for it."""
        ledger = self._ledger
        while ledger.quiet and (self._processes or ledger.timers):
            ready = wait([each.pipe for each in self._processes.values()], timeout=ledger.pause(_LOOK))
            for duty in [duty for duty, each in self._processes.items() if each.pipe in ready]:
                self._hear(duty)
            for duty in ledger.late():
                self._replace(duty, LATE)
            ledger.ring()
        return ledger.tell()

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._ledger.timers.set(name, at)

    def cancel(self, key: str) -> None:
        """Forget a task that has not begun; one under way is let end, and its answer is not waited for."""
        self._ledger.cancel(key)

    def tell(self, committed: int) -> None:
        """Let learners know at once, also while they train."""
        self._committed[:] = committed.to_bytes(8, "little")

    def close(self) -> None:
        """End all processes."""
        for each in self._processes.values():
            each.end()
        self._lifeline.let_go()
        self._processes = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, duty: Duty) -> _Process:
        ours, theirs = _FORK.Pipe()
        held = Held[Vector](evaluates=duty.evaluates)
        told = (self._learners[duty.learner], theirs, self._committed, self._states, self._lifeline, held)
        process = _FORK.Process(target=_serve, args=told, daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours, Held[None](evaluates=duty.evaluates))

    def _give(self, task: Task) -> None:
        self._ledger.begin(task)
        duty = duty_of(task)
        if duty not in self._processes:
            self._processes[duty] = self._start(duty)
        process = self._processes[duty]
        freight = load(task, process.held)
        about, data = freight.packed()
        process.sent = freight.size
        try:
            process.pipe.send_bytes(_worded(task, about))
            process.pipe.send_bytes(data)
        except OSError:
            self._replace(duty, DIED)

    def _hear(self, duty: Duty) -> None:
        process = self._processes[duty]
        try:
            reply = Reply(header(process.pipe.recv_bytes()), process.pipe.recv_bytes())
        except (OSError, EOFError):
            self._replace(duty, DIED)
            return
        ledger = self._ledger
        task = ledger.under_way(duty)
        if task is not None:
            ledger.end(task, self._reader.event(self.now(), task, reply, process.sent))
        self._go_on(duty)

    def _replace(self, duty: Duty, reason: str) -> None:
        """Write down what a lost process was doing, and start it again; a learner that keeps dying is gone."""
        self._processes.pop(duty).end()
        if not self._ledger.lost(duty, reason):
            self._processes[duty] = self._start(duty)
            self._go_on(duty)

    def _go_on(self, duty: Duty) -> None:
        if (task := self._ledger.next(duty)) is not None:
            self._give(task)


def _worded(task: Task, freight: Mapping[str, Any]) -> bytes:
    about: dict[str, Any] = {"key": task.key, "freight": freight}
    if isinstance(task, TrainTask):
        about |= {"version": task.version, "settings": asdict(task.settings)}
    return json.dumps(about).encode()


def _serve(
    learner: Learner,
    pipe: Connection,
    committed: mmap.mmap,
    states: Path | None,
    lifeline: Lifeline,
    held: Held[Vector],
) -> None:
    """The life of a learner's process: one task after the other, until the pipe is closed or the engine is gone."""
    lifeline.hold()
    watch = Watch(time.monotonic, lambda: int.from_bytes(committed[:], "little"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started the run decides when it ends
    worker = Worker(learner, None if states is None else SiteState(states, learner.name))
    while True:
        try:
            about, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            model = unload(learner, held, about["freight"], data)
            reply = worker.answer(_task(learner.name, about, model), watch)
            pipe.send_bytes(packed(reply))
            pipe.send_bytes(reply.payload)
        except (EOFError, OSError):
            return


def _task(learner: str, about: Mapping[str, Any], model: Vector) -> Task:
    if "settings" not in about:
        return EvaluateTask(about["key"], learner, model)
    return TrainTask(about["key"], learner, about["version"], model, settings_from(about["settings"]))
