"""Learners in single-threaded worker processes, for models that cannot train in threads.

Workers are forked at the first job, so that model factories (often closures) and examples need neither pickle nor a
copy. Models, local state and payloads are passed in shared memory, counts as JSON through a pipe. Local state returns
with the update; a worker keeps no state, so any worker can run any job. Exception texts are not forwarded because they
may contain data.
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
from abaton.layout import Vector
from abaton.learners.learner import Learner, LearnerUpdate
from abaton.training import TrainSettings, train_settings_from_row

ArrayHeader = tuple[str, Sequence[int]]

_SPARE_BYTES = 64 * 2**20
_MODEL_VECTORS = 16  # model-sized vectors per direction; memory that is not written is not allocated


@dataclass(frozen=True, slots=True, eq=False)
class TrainingJob:
    """Training task of one learner, which starts from a version of the community model."""

    learner: str
    task: str
    version: int
    start: Vector
    settings: TrainSettings


class LearnerError(AbatonError):
    """Training of a learner failed."""


class SharedArrays:
    """Arrays in memory shared with a worker: the first half for requests, the second for replies.

    >>> shared = SharedArrays(1000)
    >>> headers = shared.write(0, {"start": np.float32([1, 2])})
    >>> shared.get(0, headers)["start"].tolist()
    [1.0, 2.0]
    """

    def __init__(self, half_bytes: int) -> None:
        self._half_bytes = half_bytes
        self._memory = mmap.mmap(-1, 2 * half_bytes)

    def write(self, half_index: int, arrays: Mapping[str, Vector]) -> list[ArrayHeader]:
        """Write arrays to memory shared with a pool process; return their names and shapes."""
        end = half_index * self._half_bytes
        if sum(4 * a.size for a in arrays.values()) > self._half_bytes:
            raise LearnerError(
                "a learner's arrays exceed the shared memory",
                where="parallel trainer",
                remedy="use workers=1",
            )
        for array in arrays.values():
            self._view(end, array.shape)[...] = array
            end += 4 * array.size
        return [(name, array.shape) for name, array in arrays.items()]

    def get(self, half_index: int, headers: Sequence[ArrayHeader]) -> dict[str, Vector]:
        """Return arrays as views of the memory shared with a pool process."""
        arrays, end = {}, half_index * self._half_bytes
        for name, shape in headers:
            arrays[name] = self._view(end, shape)
            end += 4 * arrays[name].size
        return arrays

    def _view(self, offset: int, shape: Sequence[int]) -> Vector:
        return np.frombuffer(self._memory, np.float32, math.prod(shape), offset).reshape(shape)


class PoolWorker:
    """Worker process that trains one learner at a time."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        largest = max(learner.model.layout.size for learner in learners.values())
        self._shared = SharedArrays(
            -(-(_MODEL_VECTORS * 4 * largest + _SPARE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        )
        fork = multiprocessing.get_context("fork")
        self.pipe, worker_pipe = fork.Pipe()
        self.process = fork.Process(
            target=_run_worker, args=(learners, self._shared, worker_pipe, self.pipe), daemon=True
        )
        with warnings.catch_warnings():
            # Newer Pythons warn about forks with threads; the child uses no locks of other threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        worker_pipe.close()

    def submit(self, job: TrainingJob, local_state: Mapping[str, Vector]) -> None:
        """Send a job and its learner's local state to a worker of the process pool."""
        headers = self._shared.write(0, {"": job.start, **local_state})
        message = {
            "learner": job.learner,
            "task": job.task,
            "version": job.version,
            "settings": asdict(job.settings),
            "arrays": headers,
        }
        with suppress(ConnectionError):  # a dead worker is detected when its reply is received
            self.pipe.send_bytes(json.dumps(message).encode())

    def receive(self, learner: Learner) -> LearnerUpdate | AbatonError:
        """Return the reply of a worker of the process pool, and restore the learner's local state."""
        try:
            reply = json.loads(self.pipe.recv_bytes())
            if "error" in reply:
                what, where, remedy = reply["error"]
                return LearnerError(what, where=where, remedy=remedy)
        except (EOFError, ConnectionError):
            self.process.join()
            return LearnerError(
                f"the process of learner '{learner.name}' exited",
                where=f"exit code {self.process.exitcode}",
                remedy="check the machine's memory, or use workers=1 to train in this process",
            )
        arrays = self._shared.get(1, reply["arrays"])
        payload = arrays.pop("").tobytes()[: reply["length"]]
        learner.restore({name: a.copy() for name, a in arrays.items()})
        counts: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in reply["counts"].items()
        }
        return LearnerUpdate(payload=payload, **counts)

    def close(self) -> None:
        """Stop a worker process of the pool."""
        with suppress(OSError):
            self.pipe.send_bytes(b"")
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class LearnerPool:
    """Pool of workers; a free worker gets the next job."""

    def __init__(self, learners: Mapping[str, Learner], *, workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SettingsError(
                "this system cannot fork processes", where="parallel trainer", remedy="use workers=1"
            )
        self._learners, self.known = learners, frozenset(learners)
        self._workers = [PoolWorker(learners) for _ in range(workers)]

    def train(self, jobs: Sequence[TrainingJob]) -> list[LearnerUpdate | AbatonError]:
        """Train in the process pool: return updates or errors of all jobs in order; a dead worker is replaced."""
        results: dict[int, LearnerUpdate | AbatonError] = {}
        queue = deque(range(len(jobs)))
        free, busy = list(range(len(self._workers))), dict[int, int]()
        while queue or busy:
            while queue and free:
                i = queue.popleft()
                learner = self._learners[jobs[i].learner]
                try:
                    learner.model.layout.check(jobs[i].start, label="the model")
                    self._workers[free[-1]].submit(jobs[i], learner.local_state)
                    busy[free.pop()] = i
                except AbatonError as error:
                    results[i] = error
            ready = wait([self._workers[w].pipe for w in busy]) if busy else []
            for w in [w for w in busy if self._workers[w].pipe in ready]:
                i = busy.pop(w)
                results[i] = self._workers[w].receive(self._learners[jobs[i].learner])
                if not self._workers[w].process.is_alive():
                    self._workers[w].close()
                    self._workers[w] = PoolWorker(self._learners)
                free.append(w)
        return [results[i] for i in range(len(jobs))]

    def close(self) -> None:
        """Stop all worker processes of the pool."""
        for worker in self._workers:
            worker.close()


def _run_worker(
    learners: Mapping[str, Learner], shared: SharedArrays, pipe: Connection, parent_pipe: Connection
) -> None:
    """Run jobs in a worker of the process pool until its pipe is closed."""
    parent_pipe.close()
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
            reply = _train(learners[message["learner"]], shared, message)
        except AbatonError as error:
            pipe.send_bytes(json.dumps({"error": (error.what, error.where, error.remedy)}).encode())
        except Exception as error:  # its text may contain records: only its class is reported
            what = f"training learner '{message['learner']}' failed with {type(error).__name__}"
            remedy = "use workers=1 to see the full error"
            pipe.send_bytes(json.dumps({"error": (what, "parallel trainer", remedy)}).encode())
        else:
            pipe.send_bytes(json.dumps(reply).encode())


def _train(learner: Learner, shared: SharedArrays, message: Mapping[str, Any]) -> dict[str, Any]:
    arrays = shared.get(0, message["arrays"])
    start = arrays.pop("")
    learner.restore(arrays)
    settings = train_settings_from_row(message["settings"])
    update = learner.train(message["task"], message["version"], start, settings)
    counts = {f.name: getattr(update, f.name) for f in fields(update) if f.name != "payload"}
    length = len(update.payload)
    payload_values = np.frombuffer(
        update.payload + bytes(-length % 4), np.float32
    )  # bytes of the payload, not numbers
    return {
        "counts": counts,
        "length": length,
        "arrays": shared.write(1, {"": payload_values, **learner.local_state}),
    }
