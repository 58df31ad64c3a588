"""Driving a run: take what happened, write it down, ask the controller, do what it says.

What those who look on are told: which training was asked for, which update entered the mix, how stale it was.

The controller's decisions follow from the journal, so nothing here is needed to resume a run. They are written as
columns, so that a page with a hundred thousand events can be added up by the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abaton.codecs import Downlink, Key, Pipeline
from abaton.controller import (
    Arrived,
    Cancel,
    Commit,
    CommunityModel,
    Evaluate,
    Event,
    Failed,
    Instruction,
    Publish,
    Retire,
    Rules,
    Scored,
    State,
    Tick,
    Train,
    Wake,
    from_row,
    step,
    to_row,
)
from abaton.controller.aggregation import local_model
from abaton.controller.evaluator_selection import evaluation
from abaton.controller.state import from_plain, to_plain
from abaton.engines.base import Engine, EvaluateTask, Task, TrainTask, Way
from abaton.engines.checkpoint import Checkpoint, Checkpoints, Part, Saved
from abaton.engines.replay import Replayed, Resumed
from abaton.errors import StoreError
from abaton.kernels import Vector
from abaton.learners import Signed
from abaton.store import Journal, ModelRow
from abaton.training import round_key


class Onlooker:
    """Notes decisions in a journal.

    Args:
        journal: of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._began: dict[str, float] = {}

    def tell(self, event: Event, instructions: Sequence[Instruction]) -> None:
        """Note what the controller said at an event."""
        tasks: list[dict[str, Any]] = []
        commits: list[dict[str, Any]] = []
        for one in instructions:
            if isinstance(one, Commit):
                commits.append(self._commit(one, event.at))
            elif isinstance(one, Train):
                self._began[one.task] = event.at
                tasks.append(
                    {"learner": one.learner, "task": one.task, "version": one.version, "at": event.at}
                )
            elif isinstance(one, Cancel):
                self._began.pop(one.task, None)
        if isinstance(event, Failed):
            self._began.pop(event.task, None)
        if tasks or commits:
            self._journal.note(tasks, commits)

    def _commit(self, commit: Commit, at: float) -> dict[str, Any]:
        update = commit.update
        began = self._began.pop(update.task, None)
        if began is None:  # asked for before a checkpoint
            began = self._journal.began(update.task)
        return {
            "learner": update.learner,
            "task": update.task,
            "version": commit.version,
            "began": update.at if began is None else began,
            "arrived": update.at,
            "uploading": update.metrics.get("upload", 0.0),
            "at": at,
            "size": update.size,
            "steps": update.steps,
            "weight": commit.weight,
            "missed": commit.missed,
            "staleness": commit.staleness,
            "loss": update.metrics.get("loss"),
            "validation": commit.validation,
        }


Observer = Callable[[Vector], Mapping[str, float]]
Watcher = Callable[[State, Event], None]

_RUN = "run"  # the part of a checkpoint that the driver itself knows


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: why it ended.
        version: the last version of the community model, and its digest.
        seconds: how long it took by the engine's clock.
        updates: how many updates arrived, and how many bytes they were.
        evaluations: how many times a model was sent to an evaluator.
        bytes_down: how many bytes of models were sent for every update and every score that arrived.
        shortened: how many updates reached too far and were shortened (`control.reach`).
    """

    reason: str
    version: int
    digest: str
    seconds: float
    updates: int
    bytes_up: int
    evaluations: int
    bytes_down: int
    shortened: int = 0


class Driver:
    """Carries what happens from an engine to the controller, and what the controller says back to the engine.

    Args:
        rules: what the controller goes by.
        community: the model that the updates are mixed into.
        engine: what carries tasks, events and time.
        journal: where every event is written first, with its payload; one that holds events is replayed.
        observe: scores each published version; its numbers are stored with the version.
        checkpoints: where to write, now and then, what a resumed run goes on from; for engines in real time.
        downlink: how versions travel to learners; what they are then sent is each version, also here.

    Attributes:
        parts: what a checkpoint holds besides what the driver knows, by name.
    """

    def __init__(
        self,
        rules: Rules,
        community: CommunityModel,
        engine: Engine,
        journal: Journal,
        observe: Observer | None = None,
        checkpoints: Checkpoints | None = None,
        downlink: Pipeline | None = None,
    ) -> None:
        self.rules, self.community, self.engine = rules, community, engine
        self.journal, self.observe, self.checkpoints = journal, observe, checkpoints
        self.parts: dict[str, Part] = {"mix": community}
        self.state = State()
        self._digest, self._updates, self._bytes_up, self._evaluations = "", 0, 0, 0
        self._bytes_down = 0
        self._down = None if downlink is None else Downlink(downlink, community.layout, community.vector)
        if self._down is not None:
            self.parts["downlink"] = self._down
        self._starts: dict[str, tuple[Train, Vector]] = {}
        self._timers: dict[str, float] = {}
        self._restored = False
        self._sent: dict[str, Vector] = {}
        self._onlooker = Onlooker(journal)

    def run(self, watch: Watcher | None = None) -> Outcome:
        """Run to the end; `watch` hears of every event."""
        if not self._restored:
            self._publish(0)
        while self.state.stopped is None:
            happened = self.engine.events()
            if not happened:
                self.state = self.state._replace(stopped="nothing more can happen")
            for event in happened:
                self._handle(event)
                if watch:
                    watch(self.state, event)
            self._offer_checkpoint()
        self.journal.flush()
        return Outcome(
            self.state.stopped,
            self.state.version,
            self._digest,
            self.engine.now(),
            self._updates,
            self._bytes_up,
            self._evaluations,
            self._bytes_down,
            self.community.reach.shortened,
        )

    @property
    def newest(self) -> Vector:
        """The newest version, as everybody holds it."""
        return self.community.vector if self._down is None else self._down.model

    def go_on(self, made: Checkpoint | None = None) -> None:
        """Tell the journal's events first, all or those after a checkpoint, and then go on with what has no answer.

        Raises:
            StoreError: The checkpoint is not one of this journal, or not one that can be gone on from. The driver is
                of no use then.
        """
        journal, resumed = self.journal, Resumed()
        told = journal.skip(made.events, made.mark) if made else journal.skip()
        if made is not None:
            try:
                resumed = self._restore(made)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise StoreError("the checkpoint does not hold what this run needs") from error
        self.engine = Replayed(self.engine, (from_row(*row) for row in told), resumed)

    def _restore(self, made: Checkpoint) -> Resumed:
        """Take over what a checkpoint holds; what was open then."""
        if made.parts.keys() != {_RUN, *self.parts}:
            raise ValueError("parts")
        for name, part in self.parts.items():
            part.load(made.parts[name])
        about, starts = made.parts[_RUN]
        self.state = from_plain(about["state"])
        self._digest, self._updates, self._bytes_up, self._evaluations, self._bytes_down = about["counts"]
        self._timers = dict(about["timers"])
        vectors = {int(version): starts[version] for version in starts}
        vectors[self.state.version] = self.newest
        for train in map(from_plain, about["trains"]):
            self._starts[train.task] = (train, vectors[train.version])
        self.journal.take_up(self.state.version, self._digest)
        self.engine.tell(self.state.committed)
        self._restored = True
        return Resumed(about["at"], tuple(self._open_tasks()), self._timers)

    def _open_tasks(self) -> Iterator[Task]:
        for task, begun in self._starts.items():
            if task in self.state.open:
                yield self._training(*begun)
        for task, made in self.state.scoring.items():
            for evaluator in sorted(made.waiting):
                yield self._evaluating(evaluation(task, evaluator), evaluator, task, made.update)

    def _offer_checkpoint(self) -> None:
        journal = self.journal
        if self.checkpoints is not None and journal.length >= journal.known and self.state.stopped is None:
            self.checkpoints.offer(journal.length, self._checkpoint)

    def _checkpoint(self) -> Checkpoint:
        self.journal.flush()
        parts = {name: part.save() for name, part in self.parts.items()}
        return Checkpoint(self.journal.length, self.journal.mark(), {_RUN: self._save(), **parts})

    def _save(self) -> Saved:
        """What the driver itself knows: the controller's state, counts, timers, and what tasks started from."""
        about = {
            "at": self.engine.now(),
            "state": to_plain(self.state),
            "counts": [self._digest, self._updates, self._bytes_up, self._evaluations, self._bytes_down],
            "timers": self._timers,
            "trains": [to_plain(train) for train, _ in self._starts.values()],
        }
        newest = self.state.version
        starts = {str(t.version): start for t, start in self._starts.values() if t.version != newest}
        return about, starts

    def _training(self, train: Train, start: Vector) -> TrainTask:
        way = None if self._down is None else Way(train.version, start, self._down.lately)
        return TrainTask(train.task, train.learner, train.version, start, train.settings, way)

    def _evaluating(self, key: str, evaluator: str, task: str, update: Arrived) -> EvaluateTask:
        model, way, (train, start) = self._model(task, update), None, self._starts[task]
        if self._down is not None:
            payload = self.journal.payloads.get(update.payload)
            way = Way(train.version, start, self._down.lately, update.learner, payload)
        signed = Signed(update.learner, train.version, update.signature) if update.signature else None
        return EvaluateTask(key, evaluator, model, way, signed)

    def _handle(self, event: Event) -> None:
        self.journal.append(*to_row(event))
        if isinstance(event, Arrived):
            self._updates += 1
            self._bytes_up += event.size
        if isinstance(event, Arrived | Scored):
            self._bytes_down += event.down
        before = self.state
        self.state, instructions = step(self.rules, self.state, event)
        self._onlooker.tell(event, instructions)
        self._act(instructions, event)
        if isinstance(event, Tick):
            self._timers.pop(event.name, None)
        if isinstance(event, Failed) and event.task in before.open:
            self._starts.pop(event.task, None)
        if self.state.committed != before.committed:
            self.engine.tell(self.state.committed)

    def _act(self, instructions: Iterable[Instruction], event: Event) -> None:
        tasks: list[Task] = []
        for instruction in instructions:
            match instruction:
                case Train(task):
                    self._starts[task] = (instruction, self.newest)
                    tasks.append(self._training(instruction, self.newest))
                case Evaluate(task, learner, model):
                    assert isinstance(event, Arrived)
                    self._evaluations += 1
                    tasks.append(self._evaluating(task, learner, model, event))
                case Commit(update, version, weight):
                    _, start = self._starts.pop(update.task)
                    self._sent.pop(update.task, None)
                    key = self._key(version, update.learner)
                    self.community.commit(weight, start, self.journal.payloads.get(update.payload), key)
                case Publish(version):
                    self._send_down(self.community.publish())
                    self._publish(version)
                case Retire(learner):
                    self.community.retire(learner)
                case Wake(name, at):
                    self._timers[name] = at
                    self.engine.set_timer(name, at)
                case Cancel(task):
                    self._starts.pop(task, None)
                    self._sent.pop(task, None)
                    self.engine.cancel(task)
        if tasks and self.engine.real:
            self.journal.flush()
        self.engine.submit(tasks)

    def _model(self, task: str, event: Arrived) -> Vector:
        """The model that a learner sent, made once for all its evaluators."""
        if task not in self._sent:
            train, start = self._starts[task]
            payload = self.journal.payloads.get(event.payload)
            key = self._key(train.version, event.learner)
            self._sent[task] = local_model(self.community.codec, self.community.layout, start, payload, key)
        return self._sent[task]

    def _key(self, version: int, learner: str) -> Key:
        return Key(round_key(self.rules.seed, version), learner)

    def _send_down(self, mix: Vector) -> None:
        """Make of a mix what everybody will hold of it."""
        if self._down is not None:
            self._down.publish(mix, lambda version: round_key(self.rules.seed, version))

    def _publish(self, version: int) -> None:
        vector = self.newest
        self._digest = self.journal.keep_model(version, vector, self.community.layout.digest)
        if not self.journal.is_published(version, self._digest):
            metrics = dict(self.observe(vector)) if self.observe else {}
            if self.rules.privacy is not None:
                metrics["epsilon"] = self.rules.privacy.spent(self.state)
            row = ModelRow(version, self.engine.now(), self._digest, metrics)
            self.journal.publish(row, updates=self._updates, size=self._bytes_up)
