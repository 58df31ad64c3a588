"""Run loop: append each event to the journal, call the controller, execute its instructions.

`ActivityRecorder` writes tasks and commits as plain columns in the transaction of their events, so that pages read sums
from the database instead of replaying the journal. They are not needed to resume a run. Wall-clock time is stored there
and not in the journal, whose bits must be reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abaton.codecs import CodecKey, CodecPipeline, Downlink
from abaton.controller import (
    CancelTask,
    Commit,
    CommunityModel,
    ControllerState,
    EvaluationReceived,
    Event,
    Instruction,
    PublishVersion,
    RemoveLearner,
    SetTimer,
    StartEvaluation,
    StartTraining,
    Strategy,
    TaskFailed,
    TimerFired,
    UpdateReceived,
    event_from_row,
    event_to_row,
    transition,
)
from abaton.controller.aggregation import local_model
from abaton.controller.evaluator_selection import evaluation_id
from abaton.controller.state import from_json_value, to_json_value
from abaton.engines.base import DeltaPath, Engine, EvaluateTask, Task, TrainTask
from abaton.engines.checkpoint import Checkpoint, Checkpointed, Checkpoints, SavedState
from abaton.engines.replay import ReplayedEngine, ResumePoint
from abaton.errors import StoreError
from abaton.layout import Vector
from abaton.learners import SignedModel
from abaton.store import Journal, ModelRow
from abaton.training import round_key


class ActivityRecorder:
    """Recorder of the controller's decisions in a journal.

    Args:
        journal: the journal of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._started_at: dict[str, float] = {}

    def record(self, event: Event, instructions: Sequence[Instruction]) -> None:
        """Record the controller's instructions for an event as activity in the runner's journal."""
        tasks: list[dict[str, Any]] = []
        commits: list[dict[str, Any]] = []
        for instruction in instructions:
            if isinstance(instruction, Commit):
                commits.append(self._commit(instruction, event.timestamp))
            elif isinstance(instruction, StartTraining):
                self._started_at[instruction.task] = event.timestamp
                tasks.append(
                    {
                        "learner": instruction.learner,
                        "task": instruction.task,
                        "version": instruction.version,
                        "timestamp": event.timestamp,
                    }
                )
            elif isinstance(instruction, CancelTask):
                self._started_at.pop(instruction.task, None)
        if isinstance(event, TaskFailed):
            self._started_at.pop(event.task, None)
        if tasks or commits:
            self._journal.record_activity(tasks, commits)

    def _commit(self, commit: Commit, timestamp: float) -> dict[str, Any]:
        update = commit.update
        started_at = self._started_at.pop(update.task, None)
        if started_at is None:  # requested before a checkpoint
            started_at = self._journal.task_started_at(update.task)
        return {
            "learner": update.learner,
            "task": update.task,
            "version": commit.version,
            "started_at": update.timestamp if started_at is None else started_at,
            "received_at": update.timestamp,
            "upload_seconds": update.metrics.get("upload", 0.0),
            "timestamp": timestamp,
            "payload_bytes": update.payload_bytes,
            "steps": update.steps,
            "weight": commit.weight,
            "versions_missed": commit.versions_missed,
            "staleness": commit.staleness,
            "loss": update.metrics.get("loss"),
            "validation": commit.validation,
        }


Observer = Callable[[Vector], Mapping[str, float]]
Watcher = Callable[[ControllerState, Event], None]

_RUN = "run"  # the component of this loop in a checkpoint


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run.

    Attributes:
        reason: why it ended.
        version, digest: the last version of the community model, and its digest.
        seconds: the duration by the engine's clock.
        updates, bytes_up: the number of received updates, and their bytes.
        evaluations: how many times a model was sent to an evaluator.
        bytes_down: bytes of the models sent for all received updates and evaluations.
        robustness: the setting of the strategy; the next three are 0 unless it is `capped`.
        clipped_updates: the number of updates that were clipped to the norm bound.
        capped_updates: the number of updates whose examples were capped.
        capped_evaluations: the number of models of which one evaluator's counts were capped.
    """

    reason: str
    version: int
    digest: str
    seconds: float
    updates: int
    bytes_up: int
    evaluations: int
    bytes_down: int
    robustness: str = "none"
    clipped_updates: int = 0
    capped_updates: int = 0
    capped_evaluations: int = 0


class RunLoop:
    """Loop that passes events from an engine to the controller, and instructions back to the engine.

    Args:
        strategy: the settings of the controller.
        community: the community model that updates are committed to.
        engine: the engine that carries tasks and events.
        journal: the journal that every event is appended to first; events it has already are replayed.
        observe: evaluates each published version; its metrics are stored with the version.
        checkpoints: where checkpoints of real-time engines are written.
        downlink: the codec of versions sent to learners; the decoded version then is the version here too.

    Attributes:
        components: the components of a checkpoint besides the state of this loop, by name.
    """

    def __init__(
        self,
        strategy: Strategy,
        community: CommunityModel,
        engine: Engine,
        journal: Journal,
        observe: Observer | None = None,
        checkpoints: Checkpoints | None = None,
        downlink: CodecPipeline | None = None,
    ) -> None:
        self.strategy, self.community, self.engine = strategy, community, engine
        self.journal, self.observe, self.checkpoints = journal, observe, checkpoints
        self.components: dict[str, Checkpointed] = {"community_model": community}
        self.state = ControllerState()
        self._digest, self._updates, self._bytes_up, self._evaluations = "", 0, 0, 0
        self._bytes_down = 0
        self._downlink = None if downlink is None else Downlink(downlink, community.layout, community.vector)
        if self._downlink is not None:
            self.components["downlink"] = self._downlink
        self._starts: dict[str, tuple[StartTraining, Vector]] = {}
        self._timers: dict[str, float] = {}
        self._is_restored = False
        self._decoded_models: dict[str, Vector] = {}
        self._activity_recorder = ActivityRecorder(journal)

    def run(self, watch: Watcher | None = None) -> RunOutcome:
        """Run the loop between engine and controller to the end; `watch` is called for every event."""
        if not self._is_restored:
            self._publish(0)
        while self.state.stop_reason is None:
            events = self.engine.events()
            if not events:
                self.state = self.state._replace(stop_reason="no further event can occur")
            for event in events:
                self._handle(event)
                if watch:
                    watch(self.state, event)
            self._offer_checkpoint()
        self.journal.flush()
        return RunOutcome(
            self.state.stop_reason,
            self.state.version,
            self._digest,
            self.engine.now(),
            self._updates,
            self._bytes_up,
            self._evaluations,
            self._bytes_down,
            self.strategy.robustness,
            self.community.norm_bound.clipped_updates,
            self.state.capped_updates,
            self.state.capped_evaluations,
        )

    @property
    def latest(self) -> Vector:
        """Latest version of the community model in the run loop, as learners have it."""
        return self.community.vector if self._downlink is None else self._downlink.model

    def resume(self, checkpoint: Checkpoint | None = None) -> None:
        """Resume the run loop: replay the journal, all or after a checkpoint, and continue with the open tasks.

        Raises:
            StoreError: The checkpoint belongs to another journal or is incomplete. The run loop must then be discarded.
        """
        journal, resume_point = self.journal, ResumePoint()
        rows = journal.skip(checkpoint.events, checkpoint.last_event_digest) if checkpoint else journal.skip()
        if checkpoint is not None:
            try:
                resume_point = self._restore(checkpoint)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise StoreError("the checkpoint lacks state that this run needs") from error
        self.engine = ReplayedEngine(self.engine, (event_from_row(*row) for row in rows), resume_point)

    def _restore(self, checkpoint: Checkpoint) -> ResumePoint:
        """Restore the state of the run loop from a checkpoint; return the work that was open."""
        if checkpoint.components.keys() != {_RUN, *self.components}:
            raise ValueError("components")
        for name, component in self.components.items():
            component.load(checkpoint.components[name])
        values, starts = checkpoint.components[_RUN]
        self.state = from_json_value(values["state"])
        self._digest, self._updates, self._bytes_up, self._evaluations, self._bytes_down = values["counts"]
        self._timers = dict(values["timers"])
        vectors = {int(version): starts[version] for version in starts}
        vectors[self.state.version] = self.latest
        for train in map(from_json_value, values["open_trainings"]):
            self._starts[train.task] = (train, vectors[train.version])
        self.journal.resume_after(self.state.version, self._digest)
        self.engine.broadcast_progress(self.state.committed_steps)
        self._is_restored = True
        return ResumePoint(values["timestamp"], tuple(self._open_tasks()), self._timers)

    def _open_tasks(self) -> Iterator[Task]:
        for task, (train, start) in self._starts.items():
            if task in self.state.open_tasks:
                yield self._train_task(train, start)
        for task, contribution in self.state.awaiting_evaluation.items():
            for evaluator in sorted(contribution.pending_evaluators):
                yield self._evaluate_task(
                    evaluation_id(task, evaluator), evaluator, task, contribution.update
                )

    def _offer_checkpoint(self) -> None:
        journal = self.journal
        if (
            self.checkpoints is not None
            and journal.length >= journal.stored_events
            and self.state.stop_reason is None
        ):
            self.checkpoints.offer(journal.length, self._checkpoint)

    def _checkpoint(self) -> Checkpoint:
        self.journal.flush()
        components = {name: component.save() for name, component in self.components.items()}
        return Checkpoint(
            self.journal.length, self.journal.last_event_digest(), {_RUN: self._save(), **components}
        )

    def _save(self) -> SavedState:
        """Return the state of the run loop: the controller's state, counters, timers, and the start models of tasks."""
        values = {
            "timestamp": self.engine.now(),
            "state": to_json_value(self.state),
            "counts": [self._digest, self._updates, self._bytes_up, self._evaluations, self._bytes_down],
            "timers": self._timers,
            "open_trainings": [to_json_value(train) for train, _ in self._starts.values()],
        }
        version = self.state.version
        starts = {
            str(train.version): start for train, start in self._starts.values() if train.version != version
        }
        return values, starts

    def _train_task(self, train: StartTraining, start: Vector) -> TrainTask:
        delta_path = (
            None if self._downlink is None else DeltaPath(train.version, start, self._downlink.recent_deltas)
        )
        return TrainTask(train.task, train.learner, train.version, start, train.settings, delta_path)

    def _evaluate_task(self, task_id: str, evaluator: str, task: str, update: UpdateReceived) -> EvaluateTask:
        model, delta_path, (train, start) = self._model(task, update), None, self._starts[task]
        if self._downlink is not None:
            payload = self.journal.payloads.get(update.payload)
            delta_path = DeltaPath(
                train.version, start, self._downlink.recent_deltas, update.learner, payload
            )
        signed_model = (
            SignedModel(update.learner, train.version, update.signature) if update.signature else None
        )
        return EvaluateTask(task_id, evaluator, model, delta_path, signed_model)

    def _handle(self, event: Event) -> None:
        self.journal.append(*event_to_row(event))
        if isinstance(event, UpdateReceived):
            self._updates += 1
            self._bytes_up += event.payload_bytes
        if isinstance(event, UpdateReceived | EvaluationReceived):
            self._bytes_down += event.downlink_bytes
        before = self.state
        self.state, instructions = transition(self.strategy, self.state, event)
        self._activity_recorder.record(event, instructions)
        self._execute(instructions, event)
        if isinstance(event, TimerFired):
            self._timers.pop(event.name, None)
        if isinstance(event, TaskFailed) and event.task in before.open_tasks:
            self._starts.pop(event.task, None)
        if self.state.committed_steps != before.committed_steps:
            self.engine.broadcast_progress(self.state.committed_steps)

    def _execute(self, instructions: Iterable[Instruction], event: Event) -> None:
        tasks: list[Task] = []
        for instruction in instructions:
            match instruction:
                case StartTraining(task):
                    self._starts[task] = (instruction, self.latest)
                    tasks.append(self._train_task(instruction, self.latest))
                case StartEvaluation(task, learner, model):
                    assert isinstance(event, UpdateReceived)
                    self._evaluations += 1
                    tasks.append(self._evaluate_task(task, learner, model, event))
                case Commit(update, version, weight):
                    _, start = self._starts.pop(update.task)
                    self._decoded_models.pop(update.task, None)
                    key = self._codec_key(version, update.learner)
                    self.community.commit(weight, start, self.journal.payloads.get(update.payload), key)
                case PublishVersion(version):
                    self._encode_downlink(self.community.publish())
                    self._publish(version)
                case RemoveLearner(learner):
                    self.community.remove_learner(learner)
                case SetTimer(name, timestamp):
                    self._timers[name] = timestamp
                    self.engine.set_timer(name, timestamp)
                case CancelTask(task):
                    self._starts.pop(task, None)
                    self._decoded_models.pop(task, None)
                    self.engine.cancel(task)
        if tasks and self.engine.is_real_time:
            self.journal.flush()
        self.engine.submit(tasks)

    def _model(self, task: str, event: UpdateReceived) -> Vector:
        """Return the model that a learner sent to the run loop, decoded once for all its evaluators."""
        if task not in self._decoded_models:
            train, start = self._starts[task]
            payload = self.journal.payloads.get(event.payload)
            key = self._codec_key(train.version, event.learner)
            self._decoded_models[task] = local_model(
                self.community.codec, self.community.layout, start, payload, key
            )
        return self._decoded_models[task]

    def _codec_key(self, version: int, learner: str) -> CodecKey:
        return CodecKey(round_key(self.strategy.seed, version), learner)

    def _encode_downlink(self, aggregate: Vector) -> None:
        """Encode the run loop's new aggregate for the downlink."""
        if self._downlink is not None:
            self._downlink.publish(aggregate, lambda version: round_key(self.strategy.seed, version))

    def _publish(self, version: int) -> None:
        vector = self.latest
        self._digest = self.journal.store_model(version, vector, self.community.layout.digest)
        if not self.journal.is_published(version, self._digest):
            metrics = dict(self.observe(vector)) if self.observe else {}
            if self.strategy.privacy is not None:
                metrics["epsilon"] = self.strategy.privacy.spent(self.state)
            row = ModelRow(version, self.engine.now(), self._digest, metrics)
            self.journal.publish(row, updates=self._updates, size=self._bytes_up)
