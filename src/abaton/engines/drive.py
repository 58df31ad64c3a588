"""Driving a run: take what happened, write it down, ask the controller, do what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from abaton.codecs import Key
from abaton.control import (
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
    State,
    Tick,
    Train,
    Wake,
    step,
    to_row,
)
from abaton.control.community import local_model
from abaton.control.draw import round_key
from abaton.control.scoring import evaluation
from abaton.control.snapshot import from_plain, to_plain
from abaton.engines.checkpoint import Checkpoint, Checkpoints
from abaton.engines.contract import Engine, EvaluateTask, Task, TrainTask
from abaton.engines.onlooker import Onlooker
from abaton.engines.replay import Resumed
from abaton.store import Journal, ModelRow
from abaton.vectors import Vector

Observer = Callable[[Vector], Mapping[str, float]]
Watcher = Callable[[State, Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: why it ended.
        version: the last version of the community model, and its digest.
        seconds: how long it took by the engine's clock.
        updates: how many updates arrived, and how many bytes they were.
        evaluations: how many times a model was sent to an evaluator.
    """

    reason: str
    version: int
    digest: str
    seconds: float
    updates: int
    bytes_up: int
    evaluations: int


class Driver:
    """Carries what happens from an engine to the controller, and what the controller says back to the engine.

    Args:
        rules: what the controller goes by.
        community: the model that the updates are mixed into.
        engine: what carries tasks, events and time.
        journal: where every event is written first, with its payload; one that holds events is lived through again.
        observe: scores each published version; its numbers are stored with the version.
        checkpoints: where to write, now and then, what a resumed run goes on from; for engines in real time.
    """

    def __init__(
        self,
        rules: Rules,
        community: CommunityModel,
        engine: Engine,
        journal: Journal,
        observe: Observer | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.rules, self.community, self.engine = rules, community, engine
        self.journal, self.observe, self.checkpoints = journal, observe, checkpoints
        self.state = State()
        self._digest, self._updates, self._bytes_up, self._evaluations = "", 0, 0, 0
        self._starts: dict[str, tuple[Train, Vector]] = {}
        self._timers: dict[str, float] = {}
        self._restored, self._saved = False, 0
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
            self._write_checkpoint()
        self.journal.flush()
        return Outcome(
            self.state.stopped,
            self.state.version,
            self._digest,
            self.engine.now(),
            self._updates,
            self._bytes_up,
            self._evaluations,
        )

    def restore(self, made: Checkpoint) -> Resumed:
        """Go on from a checkpoint; what was open then."""
        about, arrays = made.about, made.arrays
        self.state = from_plain(about["state"])
        self._digest, self._updates, self._bytes_up, self._evaluations = about["counts"]
        self._timers = dict(about["timers"])
        mix = {name[4:]: values for name, values in arrays.items() if name.startswith("mix/")}
        self.community.load((about["mix"], mix))
        for train in map(from_plain, about["trains"]):
            start = (
                self.community.vector
                if train.version == self.state.version
                else arrays[f"start/{train.version}"]
            )
            self._starts[train.task] = (train, start)
        self.engine.tell(self.state.committed)
        self._restored, self._saved = True, made.events
        return Resumed(about["at"], tuple(self._open_tasks()), self._timers)

    def _open_tasks(self) -> Iterator[Task]:
        for task in self.state.open:
            yield self._training(*self._starts[task])
        for task, made in self.state.scoring.items():
            for evaluator in sorted(made.waiting):
                yield EvaluateTask(evaluation(task, evaluator), evaluator, self._model(task, made.update))

    def _write_checkpoint(self) -> None:
        checkpoints, journal = self.checkpoints, self.journal
        if checkpoints is None or journal.length < journal.known:
            return
        if self.state.stopped is not None:
            checkpoints.remove()
        elif journal.length - self._saved >= checkpoints.every:
            journal.flush()
            checkpoints.write(self._snapshot())
            self._saved = journal.length

    def _snapshot(self) -> Checkpoint:
        mix, vectors = self.community.save()
        arrays = {f"mix/{name}": values for name, values in vectors.items()}
        for train, start in self._starts.values():
            if train.version != self.state.version:
                arrays[f"start/{train.version}"] = start
        about = {
            "at": self.engine.now(),
            "state": to_plain(self.state),
            "counts": [self._digest, self._updates, self._bytes_up, self._evaluations],
            "timers": self._timers,
            "trains": [to_plain(train) for train, _ in self._starts.values()],
            "mix": mix,
        }
        return Checkpoint(self.journal.length, about, arrays)

    @staticmethod
    def _training(train: Train, start: Vector) -> TrainTask:
        return TrainTask(train.task, train.learner, train.version, start, train.settings)

    def _handle(self, event: Event) -> None:
        self.journal.append(*to_row(event))
        if isinstance(event, Arrived):
            self._updates += 1
            self._bytes_up += event.size
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
                    self._starts[task] = (instruction, self.community.vector)
                    tasks.append(self._training(instruction, self.community.vector))
                case Evaluate(task, learner, model):
                    assert isinstance(event, Arrived)
                    self._evaluations += 1
                    tasks.append(EvaluateTask(task, learner, self._model(model, event)))
                case Commit(update, version, weight):
                    _, start = self._starts.pop(update.task)
                    self._sent.pop(update.task, None)
                    key = self._key(version, update.learner)
                    self.community.commit(weight, start, self.journal.payloads.get(update.payload), key)
                case Publish(version):
                    self.community.publish()
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

    def _publish(self, version: int) -> None:
        vector = self.community.vector
        self._digest = self.journal.keep_model(version, vector, self.community.layout.digest)
        if not self.journal.is_published(version, self._digest):
            metrics = dict(self.observe(vector)) if self.observe else {}
            if self.rules.privacy is not None:
                metrics["epsilon"] = self.rules.privacy.spent(self.state)
            row = ModelRow(version, self.engine.now(), self._digest, metrics)
            self.journal.publish(row, updates=self._updates, size=self._bytes_up)
