"""Learners in processes with one thread each, for models whose training cannot share a process.

Processes are forked when the first job comes, so they see every learner's model and examples without a copy. A job's
model, what a learner keeps and its payload go through memory shared with that worker; a few counts go through a pipe as
JSON. What a learner keeps comes back with its update: nothing stays in a worker, and any worker may take any job.
"""

from __future__ import annotations

import json
import math
import mmap
import multiprocessing
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from abaton.errors import AbatonError, SettingsError
from abaton.kernels import Vector
from abaton.learners.learner import Learner, Update
from abaton.training import TrainSettings, settings_from

Place = tuple[str, Sequence[int]]

_SPARE = 64 * 2**20
_VECTORS = 16  # as many model-sized vectors fit each way; memory that is never written is never taken


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A task for one learner: train from a version of the community model."""

    learner: str
    task: str
    version: int
    start: Vector
    settings: TrainSettings


class LearnerError(AbatonError):
    """A learner could not be trained."""


class Desk:
    """Memory shared by this process and a worker: one half for what is asked, one for what is answered.

    >>> desk = Desk(1000)
    >>> places = desk.put(0, {"start": np.float32([1, 2])})
    >>> desk.take(0, places)["start"].tolist()
    [1.0, 2.0]
    """

    def __init__(self, half: int) -> None:
        self._half = half
        self._memory = mmap.mmap(-1, 2 * half)

    def put(self, side: int, arrays: Mapping[str, Vector]) -> list[Place]:
        """Lay arrays one after the other; their names and shapes."""
        end = side * self._half
        if sum(4 * a.size for a in arrays.values()) > self._half:
            raise LearnerError("a learner keeps more than fits", where="crew", remedy="use workers=1")
        for array in arrays.values():
            self._view(end, array.shape)[...] = array
            end += 4 * array.size
        return [(name, array.shape) for name, array in arrays.items()]

    def take(self, side: int, places: Sequence[Place]) -> dict[str, Vector]:
        """The arrays that lie there, as views of the shared memory."""
        arrays, end = {}, side * self._half
        for name, shape in places:
            arrays[name] = self._view(end, shape)
            end += 4 * arrays[name].size
        return arrays

    def _view(self, at: int, shape: Sequence[int]) -> Vector:
        return np.frombuffer(self._memory, np.float32, math.prod(shape), at).reshape(shape)


class Worker:
    """One process that trains one learner at a time."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        largest = max(learner.model.layout.size for learner in learners.values())
        self._desk = Desk(-(-(_VECTORS * 4 * largest + _SPARE) // mmap.PAGESIZE) * mmap.PAGESIZE)
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=_work, args=(learners, self._desk, theirs, self.pipe), daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads; the child calls nothing that such threads could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def ask(self, job: Job, kept: Mapping[str, Vector]) -> None:
        """Hand over a job and what its learner keeps."""
        places = self._desk.put(0, {"": job.start, **kept})
        message = {
            "learner": job.learner,
            "task": job.task,
            "version": job.version,
            "settings": asdict(job.settings),
            "places": places,
        }
        with suppress(ConnectionError):  # a worker that has died is noticed when its answer is taken
            self.pipe.send_bytes(json.dumps(message).encode())

    def answer(self, learner: Learner) -> Update | AbatonError:
        """Take the answer, and let the learner keep what it keeps."""
        try:
            head = json.loads(self.pipe.recv_bytes())
            if "error" in head:
                what, where, remedy = head["error"]
                return LearnerError(what, where=where, remedy=remedy)
        except (EOFError, ConnectionError):
            self.process.join()
            return LearnerError(
                f"the process that trained learner '{learner.name}' ended",
                where=f"exit code {self.process.exitcode}",
                remedy="check the machine's memory, or use workers=1 to train in this process",
            )
        arrays = self._desk.take(1, head["places"])
        payload = arrays.pop("").tobytes()[: head["length"]]
        learner.restore({name: a.copy() for name, a in arrays.items()})
        counts: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in head["counts"].items()
        }
        return Update(payload=payload, **counts)

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.pipe.send_bytes(b"")
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Pool:
    """As many workers as cores, each given the next job when it has done one."""

    def __init__(self, learners: Mapping[str, Learner], *, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                "this system cannot fork processes", where="crew", remedy="use workers=1 to train one by one"
            )
        self._learners, self.known = learners, frozenset(learners)
        self._workers = [Worker(learners) for _ in range(workers)]

    def train(self, jobs: Sequence[Job]) -> list[Update | AbatonError]:
        """The updates of all jobs, or why there is none, in order; a worker that died is replaced."""
        answers: dict[int, Update | AbatonError] = {}
        waiting = deque(range(len(jobs)))
        free, busy = list(range(len(self._workers))), dict[int, int]()
        while waiting or busy:
            while waiting and free:
                i = waiting.popleft()
                learner = self._learners[jobs[i].learner]
                try:
                    learner.model.layout.check(jobs[i].start, whose="the model")
                    self._workers[free[-1]].ask(jobs[i], learner.kept)
                    busy[free.pop()] = i
                except AbatonError as error:
                    answers[i] = error
            ready = wait([self._workers[w].pipe for w in busy]) if busy else []
            for w in [w for w in busy if self._workers[w].pipe in ready]:
                i = busy.pop(w)
                answers[i] = self._workers[w].answer(self._learners[jobs[i].learner])
                if not self._workers[w].process.is_alive():
                    self._workers[w].close()
                    self._workers[w] = Worker(self._learners)
                free.append(w)
        return [answers[i] for i in range(len(jobs))]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()


def _work(learners: Mapping[str, Learner], desk: Desk, pipe: Connection, theirs: Connection) -> None:
    """What a worker does until its pipe is closed."""
    theirs.close()
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            message = json.loads(pipe.recv_bytes() or b"null")
        except EOFError:
            return
        if message is None:
            return
        try:
            head = _train(learners[message["learner"]], desk, message)
        except AbatonError as error:
            pipe.send_bytes(json.dumps({"error": (error.what, error.where, error.remedy)}).encode())
        except Exception as error:  # its text may hold anything, also a record: only its kind is told
            what = f"training learner '{message['learner']}' failed with {type(error).__name__}"
            remedy = "use workers=1 to see it in full"
            pipe.send_bytes(json.dumps({"error": (what, "crew", remedy)}).encode())
        else:
            pipe.send_bytes(json.dumps(head).encode())


def _train(learner: Learner, desk: Desk, message: Mapping[str, Any]) -> dict[str, Any]:
    arrays = desk.take(0, message["places"])
    start = arrays.pop("")
    learner.restore(arrays)
    settings = settings_from(message["settings"])
    update = learner.train(message["task"], message["version"], start, settings)
    counts = {f.name: getattr(update, f.name) for f in fields(update) if f.name != "payload"}
    length = len(update.payload)
    words = np.frombuffer(
        update.payload + bytes(-length % 4), np.float32
    )  # moved as they are, never computed with
    return {"counts": counts, "length": length, "places": desk.put(1, {"": words, **learner.kept})}
