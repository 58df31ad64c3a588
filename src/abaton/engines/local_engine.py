"""Local engine: learners as processes on this machine, in real time.

Every learner has two processes, one for training and one for evaluation, so that a model can be evaluated while its
site trains; the second starts with the first evaluation. Processes are forked, so a site's examples are neither
copied nor written. Only JSON headers and raw bytes cross the pipes. A process that exits or hangs is reported, killed
and started again. A learner's payload is decoded before its event is reported, so an invalid payload is a failed
task.

Child processes end with the engine's process, so that they do not write to a site's state while a resumed run does. A
killed parent does not close the pipes of its children, since their siblings have copies of its ends. Therefore there is
one more pipe without a writer whose writing end only the parent keeps: the system closes it with the parent. As another
forked process may have a copy of that end, children also poll their parent's process id. `PR_SET_PDEATHSIG` is not
used, because it fires when the forking thread ends and exists on Linux only.
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
from abaton.engines.base import PROCESS_EXITED, TIMEOUT, EvaluateTask, Task, TrainTask
from abaton.engines.model_transfer import VersionCache, pack_model, unpack_model
from abaton.engines.reply_validation import PayloadCheck, ReplyValidator, encode_reply, parse_header
from abaton.engines.site_state import LearnerDiskState, clear_state
from abaton.engines.task_handler import TaskHandler
from abaton.engines.task_queue import TaskQueue, TaskRole, role_of_task
from abaton.layout import Vector
from abaton.learners import Learner, SiteReply, TrainingMonitor
from abaton.training import train_settings_from_row

_POLL_SECONDS = 0.5


class ParentWatchdog:
    """Pipe that a parent creates before it forks; it ends children when the parent exits."""

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._child_end, self._parent_end = multiprocessing.get_context("fork").Pipe(duplex=False)

    def release(self) -> None:
        """End remaining child processes of the local engine."""
        self._parent_end.close()
        self._child_end.close()

    def watch(self) -> None:
        """End this learner process of the local engine as soon as its parent has exited."""
        self._parent_end.close()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while os.getppid() == self._parent and not self._child_end.poll(_POLL_SECONDS):
            pass
        os._exit(1)


_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True, eq=False)
class _Process:
    """Process for one role of a learner, its pipe, the versions it has, and the bytes of the last model sent to it."""

    process: ForkProcess
    pipe: Connection
    versions: VersionCache[None]
    sent_bytes: int = 0

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class LocalEngine:
    """Learners as processes, in wall-clock time.

    Args:
        learners: the participants; they start with the state in `state_dir`.
        store_payload: stores a payload and returns its digest.
        check_payload: decodes a learner's payload for a version; raises an `AbatonError` if it is invalid.
        answer_timeout: seconds after which a task without a reply fails and its process is killed.
        groups: the group of each learner.
        state_dir: the run's folder for the learners' state; required for learners with state.
    """

    is_real_time: ClassVar[bool] = True

    def __init__(
        self,
        learners: Mapping[str, Learner],
        *,
        store_payload: Callable[[bytes], str],
        check_payload: PayloadCheck,
        answer_timeout: float = 600.0,
        groups: Mapping[str, str] | None = None,
        state_dir: Path | None = None,
    ) -> None:
        clear_state(learners, state_dir, "local engine")
        self._learners, self._state_dir = learners, state_dir
        self._validator, self._task_queue = (
            ReplyValidator(store_payload, check_payload),
            TaskQueue(learners, groups, answer_timeout),
        )
        self._committed_steps = mmap.mmap(-1, 8)  # shared memory, so that processes read it while they train
        self._watchdog = ParentWatchdog()
        self._processes = {
            role: self._start(role) for role in (TaskRole(name, evaluates=False) for name in learners)
        }

    def now(self) -> float:
        """Return the seconds since the local engine was started."""
        return self._task_queue.now()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Send tasks to the local processes of their learners, one at a time for each process."""
        self._task_queue.add(tasks)
        for task in self._task_queue.ready():
            self._send(task)

    def events(self) -> Sequence[Event]:
        """Wait for the next events of the local learner processes and return them."""
        task_queue = self._task_queue
        while task_queue.is_quiet and (self._processes or task_queue.timers):
            pipes = [process.pipe for process in self._processes.values()]
            ready = wait(pipes, timeout=task_queue.pause(_POLL_SECONDS))
            for role in [role for role, process in self._processes.items() if process.pipe in ready]:
                self._receive(role)
            for role in task_queue.overdue_roles():
                self._replace(role, TIMEOUT)
            task_queue.fire_timers()
        return task_queue.take_events()

    def set_timer(self, name: str, timestamp: float) -> None:
        """Request a `TimerFired` event at a time of the local engine."""
        self._task_queue.timers.set(name, timestamp)

    def cancel(self, task_id: str) -> None:
        """Drop a task that no local process has started; the reply of a running one is ignored."""
        self._task_queue.cancel(task_id)

    def broadcast_progress(self, committed_steps: int) -> None:
        """Share the number of committed steps with local learner processes, also while they train."""
        self._committed_steps[:] = committed_steps.to_bytes(8, "little")

    def close(self) -> None:
        """End all learner processes of the local engine."""
        for process in self._processes.values():
            process.end()
        self._watchdog.release()
        self._processes = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, role: TaskRole) -> _Process:
        parent_end, child_end = _FORK.Pipe()
        versions = VersionCache[Vector](evaluates=role.evaluates)
        learner = self._learners[role.learner]
        arguments = (learner, child_end, self._committed_steps, self._state_dir, self._watchdog, versions)
        process = _FORK.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        child_end.close()
        return _Process(process, parent_end, VersionCache[None](evaluates=role.evaluates))

    def _send(self, task: Task) -> None:
        self._task_queue.begin(task)
        role = role_of_task(task)
        if role not in self._processes:
            self._processes[role] = self._start(role)
        process = self._processes[role]
        transfer = pack_model(task, process.versions)
        transfer_header, data = transfer.pack()
        process.sent_bytes = transfer.size
        try:
            process.pipe.send_bytes(_encode_header(task, transfer_header))
            process.pipe.send_bytes(data)
        except OSError:
            self._replace(role, PROCESS_EXITED)

    def _receive(self, role: TaskRole) -> None:
        process = self._processes[role]
        try:
            reply = SiteReply(parse_header(process.pipe.recv_bytes()), process.pipe.recv_bytes())
        except (OSError, EOFError):
            self._replace(role, PROCESS_EXITED)
            return
        task_queue = self._task_queue
        task = task_queue.current_task(role)
        if task is not None:
            task_queue.end(task, self._validator.event(self.now(), task, reply, process.sent_bytes))
        self._send_next(role)

    def _replace(self, role: TaskRole, reason: str) -> None:
        """Fail the task of a lost local process and start the process again, unless it has exited too often."""
        self._processes.pop(role).end()
        if not self._task_queue.record_loss(role, reason):
            self._processes[role] = self._start(role)
            self._send_next(role)

    def _send_next(self, role: TaskRole) -> None:
        if (task := self._task_queue.next(role)) is not None:
            self._send(task)


def _encode_header(task: Task, transfer_header: Mapping[str, Any]) -> bytes:
    header: dict[str, Any] = {"task_id": task.task_id, "model": transfer_header}
    if isinstance(task, TrainTask):
        header |= {"version": task.version, "settings": asdict(task.settings)}
    return json.dumps(header).encode()


def _serve(
    learner: Learner,
    pipe: Connection,
    committed_steps: mmap.mmap,
    state_dir: Path | None,
    watchdog: ParentWatchdog,
    versions: VersionCache[Vector],
) -> None:
    """Run a learner's tasks in a process of the local engine until the pipe is closed or the parent has exited."""
    watchdog.watch()
    monitor = TrainingMonitor(time.monotonic, lambda: int.from_bytes(committed_steps[:], "little"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when the run ends
    handler = TaskHandler(learner, None if state_dir is None else LearnerDiskState(state_dir, learner.name))
    while True:
        try:
            header, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            model = unpack_model(learner, versions, header["model"], data)
            reply = handler.handle(_task(learner.name, header, model), monitor)
            pipe.send_bytes(encode_reply(reply))
            pipe.send_bytes(reply.payload)
        except (EOFError, OSError):
            return


def _task(learner: str, header: Mapping[str, Any], model: Vector) -> Task:
    if "settings" not in header:
        return EvaluateTask(header["task_id"], learner, model)
    return TrainTask(
        header["task_id"], learner, header["version"], model, train_settings_from_row(header["settings"])
    )
