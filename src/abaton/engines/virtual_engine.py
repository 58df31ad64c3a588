"""Virtual engine: a federation under a simulated clock, with the same bits in every run.

The engine is a heap of (time, sequence, action, name). Training is real; compute, download and upload times are
simulated, the transfers from the real number of encoded bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from abaton import training
from abaton.controller import (
    EvaluationReceived,
    Event,
    LearnerJoined,
    LearnerLeft,
    TaskFailed,
    TimerFired,
    UpdateReceived,
)
from abaton.engines.base import DROPPED_OUT, REFUSED, EvaluateTask, Task, TrainTask
from abaton.engines.model_transfer import VersionCache, pack_model
from abaton.engines.reply_validation import ReplyHeader, to_event
from abaton.engines.task_handler import TaskHandler, failure_code, update_reply
from abaton.errors import AbatonError, SettingsError
from abaton.layout import Vector
from abaton.learners import (
    EpochResult,
    Learner,
    LearnerUpdate,
    ParallelTrainer,
    ParallelTrainingError,
    TrainingJob,
    should_end_cycle,
)

_MAX_PARALLEL_TASKS = 64  # enough for all cores, and few updates wait in memory


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Compute and network properties of a simulated learner.

    Attributes:
        speed: training batches per second.
        bandwidth: bytes per second, in each direction.
        latency: seconds per message besides the time for its bytes.
        dropout_probability: the probability that a task fails without a reply.
        joins_at, leaves_at: when the learner joins and leaves, in seconds.
        group: the group of the learner, such as fast or slow.
    """

    speed: float = 100.0
    bandwidth: float = 1.25e6
    latency: float = 0.05
    dropout_probability: float = 0.0
    joins_at: float = 0.0
    leaves_at: float = float("inf")
    group: str = ""

    def __post_init__(self) -> None:
        for name in ("speed", "bandwidth"):
            if not getattr(self, name) > 0:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}", where="machine profile", remedy="use a number above 0"
                )
        if not self.latency >= 0:
            raise SettingsError(
                f"latency is {self.latency}", where="machine profile", remedy="use 0 or more seconds"
            )
        if not 0 <= self.dropout_probability <= 1:
            raise SettingsError(
                f"dropout_probability is {self.dropout_probability}",
                where="machine profile",
                remedy="use a probability from 0 to 1",
            )
        if not 0 <= self.joins_at < self.leaves_at:
            raise SettingsError(
                f"joins_at is {self.joins_at} and leaves_at is {self.leaves_at}",
                where="machine profile",
                remedy="use 0 <= joins_at < leaves_at",
            )


@dataclass(slots=True)
class _Cycle:
    """Training of a learner that decides itself when to send its update.

    Attributes:
        epochs: its training, one epoch per item.
        steps: the number of batches per epoch.
        known_epochs: the remaining epochs, if the update is known from the journal.
        losses: its validation loss after each epoch.
    """

    epochs: Iterator[EpochResult]
    steps: int
    known_epochs: int | None
    losses: list[float] = field(default_factory=list)


class VirtualEngine:
    """Learners in this process under a simulated clock.

    Args:
        learners: the participants; they start without state, since a run is replayed from its start.
        profiles: the machine of each learner; learners without one get the default.
        store_payload: stores a payload and returns its digest.
        seed: decides which tasks drop out.
        known_updates: updates in the run's journal, by task: they replace training.
    """

    is_real_time: ClassVar[bool] = False

    def __init__(
        self,
        learners: Mapping[str, Learner],
        profiles: Mapping[str, MachineProfile],
        *,
        store_payload: Callable[[bytes], str],
        seed: int,
        known_updates: Mapping[str, UpdateReceived] | None = None,
    ) -> None:
        for learner in learners.values():
            learner.reset_state()
        self._learners, self._store_payload, self._seed = learners, store_payload, seed
        self._profiles = {name: profiles.get(name, MachineProfile()) for name in learners}
        self._known_updates = known_updates or {}
        self._tasks: dict[str, Task] = {}
        self._sizes: dict[str, int] = {}
        self._version_caches = {
            name: [VersionCache[None](evaluates=evaluates) for evaluates in (False, True)]
            for name in learners
        }
        self._untrained: dict[str, TrainTask] = {}
        self._updates: dict[str, UpdateReceived] = {}
        self._cycles: dict[str, _Cycle] = {}
        self._refused: set[str] = set()
        self._trainer = ParallelTrainer(learners)
        self._handlers: dict[str, TaskHandler] = {}
        self._seen: set[str] = set()
        self._heap: list[tuple[float, int, str, str]] = []
        self._sequence = 0
        self._now, self._committed_steps = 0.0, 0
        for name, profile in self._profiles.items():
            self._push(profile.joins_at, "join", name)
            if profile.leaves_at != float("inf"):
                self._push(profile.leaves_at, "leave", name)

    def now(self) -> float:
        """Return the time of the virtual clock in seconds."""
        return self._now

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start tasks at the current time of the virtual clock."""
        for task in tasks:
            if task.task_id in self._seen:
                continue
            self._seen.add(task.task_id)
            task = self._with_steps(task)
            self._tasks[task.task_id] = task
            learner, profile = self._learners[task.learner], self._profiles[task.learner]
            model_bytes = self._sizes[task.task_id] = self._transfer_bytes(task)
            started_at = self._now + profile.latency + model_bytes / profile.bandwidth
            if isinstance(task, EvaluateTask):
                # Evaluators are separate: they work while their learner trains.
                busy = learner.evaluation_steps / profile.speed
                self._push(started_at + busy + profile.latency, "evaluate", task.task_id)
                continue
            if not self._accepts(task):
                self._push(started_at, "train", task.task_id)
                continue
            steps = learner.steps(task.settings)
            known = self._known_updates.get(task.task_id) if learner.is_stateless(task.settings) else None
            if known is not None:
                upload = self._upload(task.learner, known.payload_bytes)
                metrics = {**known.metrics, "upload": upload}
                self._updates[task.task_id] = replace(known, metrics=metrics, downlink_bytes=model_bytes)
            if task.settings.update_thresholds is not None:
                steps //= task.settings.epochs
                epochs = learner.train_epochs(task.task_id, task.model, task.settings)
                self._cycles[task.task_id] = _Cycle(epochs, steps, known.steps // steps if known else None)
            elif known is None:
                self._untrained[task.task_id] = task
            busy = steps / profile.speed
            if self._drops_out(task):
                # frozen: part of the bytes ("when")
                dropped_at = started_at + busy * training.seeded_uniform(self._seed, "when", task.task_id)
                self._push(dropped_at, "drop_out", task.task_id)
            elif task.task_id in self._cycles:
                self._push(started_at + busy, "epoch", task.task_id)
            else:
                self._push(started_at + busy, "train", task.task_id)

    def _drops_out(self, task: TrainTask) -> bool:
        probability = self._profiles[task.learner].dropout_probability
        if not probability:
            return False
        # frozen: part of the bytes ("dropout")
        return training.seeded_uniform(self._seed, "dropout", task.task_id) < probability

    def _transfer_bytes(self, task: Task) -> int:
        """Return the bytes sent for a task to a virtual machine; trainer and evaluator have separate caches."""
        if task.delta_path is None:
            return task.model.nbytes
        return pack_model(task, self._version_caches[task.learner][isinstance(task, EvaluateTask)]).size

    def _accepts(self, task: TrainTask) -> bool:
        """Let a site of the virtual engine and its learner accept a task; return whether they did."""
        try:
            self._handler(task).begin(task)
        except AbatonError as error:
            self._refuse(task, error)
        return task.task_id not in self._refused

    def _handler(self, task: Task) -> TaskHandler:
        handler = self._handlers.get(task.learner)
        if handler is None:
            handler = self._handlers[task.learner] = TaskHandler(self._learners[task.learner], now=self.now)
        return handler

    def _refuse(self, task: Task, error: AbatonError) -> None:
        _raise_if_settings_error(error)
        failure_code(error)
        self._refused.add(task.task_id)

    def _with_steps(self, task: Task) -> Task:
        """Return a task with the number of batches in its time budget on the virtual clock, or that it took before."""
        if isinstance(task, EvaluateTask) or not task.settings.time_budget_seconds or task.settings.steps:
            return task
        known = self._known_updates.get(task.task_id)
        # A product such as 0.3 x 10 may be just below the exact integer.
        batches = math.floor(task.settings.time_budget_seconds * self._profiles[task.learner].speed + 1e-9)
        steps = max(1, batches) if known is None else known.steps
        return replace(task, settings=replace(task.settings, steps=steps))

    def set_timer(self, name: str, timestamp: float) -> None:
        """Request a `TimerFired` event at a time of the virtual clock."""
        self._push(timestamp, "timer", name)

    def cancel(self, task_id: str) -> None:
        """Drop a task of the virtual engine without an event."""
        self._drop(task_id)

    def close(self) -> None:
        """End the threads and processes that trained for the virtual engine."""
        self._trainer.close()

    def _drop(self, task_id: str) -> None:
        for entries in (self._tasks, self._untrained, self._cycles, self._updates, self._sizes):
            entries.pop(task_id, None)
        self._refused.discard(task_id)

    def broadcast_progress(self, committed_steps: int) -> None:
        """Set the number of committed steps, which learners of the virtual engine read at once."""
        self._committed_steps = committed_steps

    def events(self) -> Sequence[Event]:
        """Simulate until the next event on the virtual clock and return it."""
        while self._heap:
            self._now, _, action, name = heapq.heappop(self._heap)
            event = self._simulate(action, name)
            if event is not None:
                return (event,)
        return ()

    def _simulate(self, action: str, name: str) -> Event | None:
        if action == "join":
            learner, group = self._learners[name], self._profiles[name].group
            return LearnerJoined(self._now, name, learner.declared_examples, group, learner.labels)
        if action == "leave":
            return LearnerLeft(self._now, name)
        if action == "timer":
            return TimerFired(self._now, name)
        task = self._tasks.get(name)
        if task is None or self._profiles[task.learner].leaves_at <= self._now:
            self._drop(name)
            return None  # cancelled, or its learner has left
        if action in ("epoch", "train"):
            assert isinstance(task, TrainTask)
            self._work(task)
            if name not in self._refused:
                return None
        update, is_refused, size = self._updates.get(name), name in self._refused, self._sizes[name]
        self._drop(name)
        if action == "drop_out":
            return TaskFailed(self._now, task.learner, name, DROPPED_OUT)
        if action == "evaluate":
            return self._evaluate(task, size)
        if is_refused:
            return TaskFailed(self._now, task.learner, name, REFUSED)
        assert update is not None
        return _received_at(update, self._now)

    def _evaluate(self, task: Task, size: int) -> Event:
        try:
            reply = self._handler(task).run(task)
        except AbatonError as error:
            _raise_if_settings_error(error)
            return TaskFailed(self._now, task.learner, task.task_id, failure_code(error))
        return EvaluationReceived(self._now, task.learner, task.task_id, tuple(reply.header["counts"]), size)

    def _work(self, task: TrainTask) -> None:
        """Train in the virtual engine, and send or continue; a learner that fails is recorded as refused."""
        try:
            if task.task_id in self._cycles:
                self._run_epoch(task, self._cycles[task.task_id])
                return
            self._train(task)
        except AbatonError as error:
            self._refuse(task, error)
        if task.task_id not in self._refused:
            self._send(task)

    def _run_epoch(self, task: TrainTask, cycle: _Cycle) -> None:
        """Simulate one epoch of a learner that decides itself when to send (Metis, section V)."""
        if not self._continues(task, cycle):
            self._send(task)
        else:
            self._push(self._now + cycle.steps / self._profiles[task.learner].speed, "epoch", task.task_id)

    def _continues(self, task: TrainTask, cycle: _Cycle) -> bool:
        """Train an epoch on the virtual clock; return whether another follows, as often as before in a replay."""
        if cycle.known_epochs is not None:
            cycle.known_epochs -= 1
            return cycle.known_epochs > 0
        epoch = next(cycle.epochs)
        cycle.losses.append(epoch.validation_loss)
        if not should_end_cycle(task.settings, cycle.losses, epoch, self._committed_steps):
            return True
        learner = self._learners[task.learner]
        before = learner.local_state
        update = learner.send(task.task_id, task.version, task.model, epoch.trained)
        self._updates[task.task_id] = self._update_event(task, update, before)
        return False

    def _train(self, task: TrainTask) -> None:
        """Train a task with other simulated ones, whose updates do not depend on when they are computed."""
        if task.task_id in self._updates or task.task_id in self._refused:
            return
        waiting = islice(self._untrained.values(), _MAX_PARALLEL_TASKS)
        batch = {other.learner: other for other in waiting} | {task.learner: task}
        jobs = [
            TrainingJob(job.learner, job.task_id, job.version, job.model, job.settings)
            for job in batch.values()
        ]
        before = {name: self._learners[name].local_state for name in batch}
        updates: Sequence[LearnerUpdate | None]
        try:
            updates = self._trainer.train(jobs)
        except ParallelTrainingError as error:
            for failure in error.failures.values():
                _raise_if_settings_error(failure)
                failure_code(failure)
            updates = error.updates
        for other, update in zip(batch.values(), updates, strict=True):
            self._untrained.pop(other.task_id, None)
            if update is None:
                self._refused.add(other.task_id)
                continue
            try:
                self._updates[other.task_id] = self._update_event(other, update, before[other.learner])
            except AbatonError as error:
                self._refuse(other, error)

    def _update_event(
        self, task: TrainTask, update: LearnerUpdate, before: Mapping[str, Vector]
    ) -> UpdateReceived:
        """Return the virtual engine's event of an update that the learner's site has released."""
        handler = self._handler(task)
        reply = handler.finish(task, update_reply(handler.learner, task, update), before)
        digest = self._store_payload(reply.payload)
        size = len(reply.payload)
        upload = self._upload(task.learner, size)
        sizes = size, self._sizes[task.task_id]
        return to_event(self._now, task, ReplyHeader.from_header(reply.header), digest, sizes, upload=upload)

    def _send(self, task: TrainTask) -> None:
        self._push(self._now + self._updates[task.task_id].metrics["upload"], "receive", task.task_id)

    def _upload(self, learner: str, size: int) -> float:
        """Return the simulated upload time of an update in seconds."""
        profile = self._profiles[learner]
        return profile.latency + size / profile.bandwidth

    def _push(self, timestamp: float, action: str, name: str) -> None:
        heapq.heappush(self._heap, (timestamp, self._sequence, action, name))
        self._sequence += 1


def _received_at(update: UpdateReceived, timestamp: float) -> UpdateReceived:
    """Return an update with its virtual time of arrival; written out for speed, as it runs for every update."""
    return UpdateReceived(
        timestamp, update.learner, update.task, update.payload, update.payload_bytes, update.steps, update.examples,
        update.metrics, update.counts, update.cohort, update.downlink_bytes, update.signature,
    )  # fmt: skip


def _raise_if_settings_error(error: AbatonError) -> None:
    """End the simulation with a settings error, which would fail every task alike."""
    if isinstance(error, SettingsError):
        raise error
