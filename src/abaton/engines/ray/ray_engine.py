"""Ray engine: learners and evaluators as tasks on a cluster, in real time, for runs that exceed one machine.

The learners stay in this process: admission checks before each task, their state, and its storage with the reply happen
here. Tasks get examples and models as arrays through Ray's object store, once each, and the rest as JSON. Models and
codecs are serialised by Ray itself, since a cluster belongs to one party and code submitted to it runs anyway. A task
whose worker exits, raises, hangs or sends an invalid reply fails with a code. A learner whose workers exit repeatedly
has left.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from abaton import __version__
from abaton.controller import Event
from abaton.engines.base import (
    LEARNER_FAILED,
    PROCESS_EXITED,
    TIMEOUT,
    VERSION_MISMATCH,
    DeltaPath,
    EvaluateTask,
    Task,
    TrainTask,
)
from abaton.engines.ray import ray_worker
from abaton.engines.ray.cluster import ClusterError, connect, disconnect, processors
from abaton.engines.ray.ray_worker import Arrays, RayModelRef, pack_examples
from abaton.engines.reply_validation import PayloadCheck, ReplyValidator, parse_header
from abaton.engines.site_state import LearnerDiskState, clear_state
from abaton.engines.task_handler import TaskHandler, failure_code
from abaton.engines.task_queue import TaskQueue, role_of_task
from abaton.errors import SettingsError
from abaton.layout import Vector
from abaton.learners import Learner, SiteReply

_MAX_MODELS = 32


class RayObjectCache:
    """References to objects in Ray's object store; objects without a reference are removed from it.

    Args:
        put: adds an object to the store and returns a reference to it.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._setups: dict[tuple[type[Learner], int, int], tuple[Learner, Any]] = {}
        self._examples: dict[str, tuple[Arrays, Any]] = {}
        self._models: OrderedDict[int, tuple[Vector, Any]] = OrderedDict()
        self._deltas: dict[int, Any] = {}
        self._run = secrets.token_hex(8)

    def training_setup(self, learner: Learner) -> Any:
        """Return a Ray reference to learner class, model and codecs; equal learners share it.

        Raises:
            SettingsError: Ray cannot serialise them.
        """
        key = type(learner), id(learner.model), id(learner.codec)  # the stored learner keeps these ids valid
        if key not in self._setups:
            try:
                setup = learner.remote_class(), learner.model, learner.codec, learner.downlink
                self._setups[key] = learner, self._put(setup)
            except (TypeError, AttributeError, ValueError) as error:
                raise SettingsError(
                    f"the model {type(learner.model).__name__} or its codec cannot be serialised",
                    where="engine ray",
                    remedy="remove open files, locks and threads from them, or use the engine 'local'",
                ) from error
        return self._setups[key][1]

    def examples(self, learner: Learner) -> Any:
        """Return a Ray reference to a learner's current examples; after a withdrawal the old ones are removed."""
        packed = pack_examples(learner)
        stored = self._examples.get(learner.name)
        if stored is None or not _is_same(stored[0], packed):
            stored = self._examples[learner.name] = packed, self._put(packed)
        return stored[1]

    def model(self, vector: Vector) -> Any:
        """Return a Ray reference to a model; the vectors of tasks are immutable, so a vector identifies a model."""
        key = id(vector)  # the stored vector keeps this id valid
        if key not in self._models:
            self._models[key] = vector, self._put(vector)
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key][1]

    def model_ref(self, delta_path: DeltaPath) -> RayModelRef:
        """Return a model as Ray references to a version and deltas; a worker reads only those that it lacks."""
        recent = [delta for delta in delta_path.recent_versions if delta.version <= delta_path.version]
        for delta in recent:
            if delta.version not in self._deltas:
                self._deltas[delta.version] = self._put(delta.data)
        deltas = {delta.version: self._deltas[delta.version] for delta in recent}
        for version in [v for v in self._deltas if v < min(deltas, default=v)]:
            del self._deltas[version]
        start = [self.model(delta_path.start)]
        return RayModelRef(
            self._run, delta_path.version, start, deltas, delta_path.trained_by, delta_path.payload
        )

    def clear(self) -> None:
        """Drop all references of the Ray engine to objects on the cluster."""
        self._setups.clear()
        self._examples.clear()
        self._models.clear()
        self._deltas.clear()


def _is_same(first: Arrays, second: Arrays) -> bool:
    return first.keys() == second.keys() and all(first[name] is second[name] for name in first)


_POLL_SECONDS = 5.0  # between queries of the cluster's size


@dataclass(frozen=True, slots=True)
class _RunningTask:
    """Running task, and the digest of its learner's cohort."""

    task: Task
    cohort: str


class RayEngine:
    """Learners as tasks on a Ray cluster, in wall-clock time.

    Args:
        learners: the participants; they start with the state in `state_dir`.
        store_payload: stores a payload and returns its digest.
        check_payload: decodes a learner's payload for a version; raises an `AbatonError` if it is invalid.
        address: the address of the cluster (see `connect`).
        answer_timeout: seconds after which a task without a reply fails and its worker is ended.
        groups: the group of each learner.
        state_dir: the run's folder for the learners' state and last replies; required for learners with state.
    """

    is_real_time: ClassVar[bool] = True

    def __init__(
        self,
        learners: Mapping[str, Learner],
        *,
        store_payload: Callable[[bytes], str],
        check_payload: PayloadCheck,
        address: str = "",
        answer_timeout: float = 600.0,
        groups: Mapping[str, str] | None = None,
        state_dir: Path | None = None,
    ) -> None:
        clear_state(learners, state_dir, "Ray engine")
        self._is_own_connection = connect(address)
        import ray

        self._ray, self._run_task = ray, ray.remote(max_retries=0)(ray_worker.run_task)
        self._validator = ReplyValidator(store_payload, check_payload)
        self._handlers = {
            name: TaskHandler(learner, None if state_dir is None else LearnerDiskState(state_dir, name))
            for name, learner in learners.items()
        }
        self._task_queue = TaskQueue(learners, groups, answer_timeout)
        self._sent: dict[Any, _RunningTask] = {}
        self._objects = RayObjectCache(ray.put)
        self._progress: Any = None
        self._committed_steps, self._size, self._size_checked_at = 0, processors(), 0.0

    def now(self) -> float:
        """Return the seconds since the Ray engine was started."""
        return self._task_queue.now()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Accept tasks for the Ray engine; each is sent when its learner and a processor of the cluster are free."""
        self._task_queue.add(tasks)

    def events(self) -> Sequence[Event]:
        """Wait for the next events of the Ray engine and return them."""
        task_queue = self._task_queue
        self._send_ready()
        while task_queue.is_quiet and (self._sent or task_queue.timers):
            self._receive()
            self._cancel_overdue()
            task_queue.fire_timers()
            self._send_ready()
        return task_queue.take_events()

    def set_timer(self, name: str, timestamp: float) -> None:
        """Request a `TimerFired` event at a time of the Ray engine."""
        self._task_queue.timers.set(name, timestamp)

    def cancel(self, task_id: str) -> None:
        """Drop a task that has not been sent to a Ray worker; the reply to a running one is ignored."""
        self._task_queue.cancel(task_id)

    def broadcast_progress(self, committed_steps: int) -> None:
        """Share the number of committed steps with the Ray engine's learners, also while they train."""
        self._committed_steps = committed_steps
        if self._progress is not None:
            self._progress.write.remote(committed_steps)

    def close(self) -> None:
        """Cancel all tasks of the Ray engine, and stop the cluster if it was started here."""
        for ref in self._sent:
            self._ray.cancel(ref, force=True)
        self._sent = {}
        self._objects.clear()
        if self._progress is not None:
            self._ray.kill(self._progress)
            self._progress = None
        if self._is_own_connection:
            disconnect()
            self._is_own_connection = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- requests -----------------------------------------------------------------------------------------------

    def _send_ready(self) -> None:
        """Send as many tasks as the Ray cluster has processors; waiting ones can still be cancelled or refused."""
        for task in self._task_queue.ready(max(0, self._capacity() - len(self._sent))):
            self._send(task)

    def _capacity(self) -> int:
        """Return the number of tasks that the Ray engine may send at once: the cluster's size, which may change."""
        if self.now() > self._size_checked_at + _POLL_SECONDS:
            self._size, self._size_checked_at = processors(), self.now()
        return self._size

    def _send(self, task: Task) -> None:
        handler, task_queue = self._handlers[task.learner], self._task_queue
        try:
            stored_reply = handler.begin(task)
        except Exception as error:
            task_queue.fail(task, failure_code(error))
            return
        if stored_reply is not None:
            task_queue.end(task, self._validator.event(self.now(), task, stored_reply))
            return
        learner = handler.learner
        request, progress = self._build_request(task)
        setup, examples = self._objects.training_setup(learner), self._objects.examples(learner)
        model = (
            self._objects.model(task.model)
            if task.delta_path is None
            else self._objects.model_ref(task.delta_path)
        )
        ref = self._run_task.remote(request, [setup], examples, model, learner.local_state, progress)
        task_queue.begin(task)
        self._sent[ref] = _RunningTask(task, learner.cohort)

    def _build_request(self, task: Task) -> tuple[bytes, Any]:
        learner = self._handlers[task.learner].learner
        request: dict[str, Any] = {
            "task_id": task.task_id,
            "learner": ray_worker.learner_values(learner),
            "committed_steps": self._committed_steps,
        }
        if isinstance(task, EvaluateTask):
            return json.dumps(request).encode(), None
        request |= {"version": task.version, "settings": asdict(task.settings)}
        return json.dumps(
            request
        ).encode(), None if task.settings.update_thresholds is None else self._progress_actor()

    def _progress_actor(self) -> Any:
        if self._progress is None:
            self._progress = self._ray.remote(num_cpus=0)(ray_worker.CommittedStepsActor).remote()
            self._progress.write.remote(self._committed_steps)
        return self._progress

    # ---- replies ------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        pause = self._task_queue.pause(_POLL_SECONDS)
        if not self._sent:
            time.sleep(pause)
            return
        try:
            ready, _ = self._ray.wait(list(self._sent), num_returns=1, timeout=pause)
        except (OSError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise _cluster_gone() from error
        for ref in ready:
            sent = self._sent.pop(ref)
            try:
                reply = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError:
                self._task_queue.fail(sent.task, LEARNER_FAILED)  # the text may contain data of the site
            except self._ray.exceptions.RayError:
                self._task_queue.record_loss(role_of_task(sent.task), PROCESS_EXITED)
            else:
                self._process_reply(sent, reply)

    def _process_reply(self, sent: _RunningTask, worker_reply: object) -> None:
        """Process a Ray worker's reply; a learner's state changes only with a reply that its site releases."""
        task, validator = sent.task, self._validator
        reply, state, downlink_bytes, problem = _unpack_reply(sent, worker_reply)
        problem = problem or validator.problem(task, reply)
        if problem:
            self._task_queue.fail(task, problem)
            return
        handler = self._handlers[task.learner]
        learner, before = handler.learner, handler.learner.local_state
        if isinstance(task, TrainTask):
            learner.restore(state)
        try:
            released = handler.finish(task, reply, before)
        except Exception as error:
            self._task_queue.fail(task, failure_code(error))
            return
        # A reply that the site's policy has changed is checked again; an unchanged one is not decoded twice.
        problem = "" if released is reply else validator.problem(task, released)
        self._task_queue.end(task, validator.build_event(self.now(), task, released, problem, downlink_bytes))

    def _cancel_overdue(self) -> None:
        overdue = set(self._task_queue.overdue_roles())
        for ref, sent in [
            (ref, sent) for ref, sent in self._sent.items() if role_of_task(sent.task) in overdue
        ]:
            del self._sent[ref]
            self._ray.cancel(ref, force=True)
            self._task_queue.record_loss(role_of_task(sent.task), TIMEOUT)


def _unpack_reply(sent: _RunningTask, worker_reply: object) -> tuple[SiteReply, ray_worker.Arrays, int, str]:
    """Return a Ray worker's reply, the learner's new state, the bytes of the model it read, and a failure code."""
    task = sent.task
    match worker_reply:
        case (bytes() as data, bytes() as payload, dict() as state) if all(
            map(_is_state_entry, state.items())
        ):
            header = parse_header(data)
            software, downlink_bytes = header.pop("software", None), header.pop("downlink_bytes", None)
            if header.get("task_id") == task.task_id and software != __version__:
                return SiteReply({}), {}, 0, VERSION_MISMATCH
            if "cohort" in header:
                header["cohort"] = sent.cohort  # workers do not have it
            if isinstance(downlink_bytes, int):
                copied = {name: np.array(values) for name, values in state.items()}
                return SiteReply(header, payload), copied, downlink_bytes, ""
    return SiteReply({}), {}, 0, ""  # an invalid reply, which the validator detects


def _is_state_entry(item: tuple[object, object]) -> bool:
    name, values = item
    return isinstance(name, str) and name.startswith(("codec/", "model/")) and isinstance(values, np.ndarray)


def _cluster_gone() -> ClusterError:
    return ClusterError(
        "the Ray cluster is gone", where="engine ray", remedy="restart it, and continue with 'abaton resume'"
    )
