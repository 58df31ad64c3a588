"""Driving a run: take what happened, write it down, ask the controller, do what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

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
    Train,
    Wake,
    step,
    to_row,
)
from abaton.control.community import local_model
from abaton.control.draw import round_key
from abaton.engines.contract import Engine, EvaluateTask, Task, TrainTask
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
    """

    reason: str
    version: int
    digest: str
    seconds: float
    updates: int
    bytes_up: int


class Driver:
    """Carries what happens from an engine to the controller, and what the controller says back to the engine.

    Args:
        rules: what the controller goes by.
        community: the model that the updates are mixed into.
        engine: what carries tasks, events and time.
        journal: where every event is written first, with its payload; one that holds events is lived through again.
        observe: scores each published version; its numbers are stored with the version.
    """

    def __init__(
        self,
        rules: Rules,
        community: CommunityModel,
        engine: Engine,
        journal: Journal,
        observe: Observer | None = None,
    ) -> None:
        self.rules, self.community, self.engine = rules, community, engine
        self.journal, self.observe = journal, observe
        self.state = State()
        self._digest, self._updates, self._bytes_up = "", 0, 0
        self._starts: dict[str, tuple[int, Vector]] = {}
        self._sent: dict[str, Vector] = {}

    def run(self, watch: Watcher | None = None) -> Outcome:
        """Run to the end; `watch` hears of every event."""
        self._publish(0)
        while self.state.stopped is None:
            happened = self.engine.events()
            if not happened:
                self.state = replace(self.state, stopped="nothing more can happen")
            for event in happened:
                self._handle(event)
                if watch:
                    watch(self.state, event)
        self.journal.flush()
        return Outcome(
            self.state.stopped,
            self.state.version,
            self._digest,
            self.engine.now(),
            self._updates,
            self._bytes_up,
        )

    def _handle(self, event: Event) -> None:
        self.journal.append(*to_row(event))
        if isinstance(event, Arrived):
            self._updates += 1
            self._bytes_up += event.size
        before = self.state
        self.state, instructions = step(self.rules, self.state, event)
        self._act(instructions, event)
        if isinstance(event, Failed) and event.task in before.open:
            self._starts.pop(event.task, None)
        if self.state.committed != before.committed:
            self.engine.tell(self.state.committed)

    def _act(self, instructions: Iterable[Instruction], event: Event) -> None:
        tasks: list[Task] = []
        for instruction in instructions:
            match instruction:
                case Train(task, learner, version, settings):
                    self._starts[task] = (version, self.community.vector)
                    tasks.append(TrainTask(task, learner, version, self.community.vector, settings))
                case Evaluate(task, learner, model):
                    assert isinstance(event, Arrived)
                    tasks.append(EvaluateTask(task, learner, self._model(model, event)))
                case Commit(learner, task, version, payload, weight):
                    _, start = self._starts.pop(task)
                    self._sent.pop(task, None)
                    key = self._key(version, learner)
                    self.community.commit(weight, start, self.journal.payloads.get(payload), key)
                case Publish(version):
                    self.community.publish()
                    self._publish(version)
                case Retire(learner):
                    self.community.retire(learner)
                case Wake(name, at):
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
            version, start = self._starts[task]
            payload = self.journal.payloads.get(event.payload)
            key = self._key(version, event.learner)
            self._sent[task] = local_model(self.community.codec, self.community.layout, start, payload, key)
        return self._sent[task]

    def _key(self, version: int, learner: str) -> Key:
        return Key(round_key(self.rules.seed, version), learner)

    def _publish(self, version: int) -> None:
        vector = self.community.vector
        self._digest = self.journal.store.vectors.put(vector, self.community.layout.digest)
        if not self.journal.is_published(version, self._digest):
            metrics = dict(self.observe(vector)) if self.observe else {}
            if self.rules.privacy is not None:
                metrics["epsilon"] = self.rules.privacy.spent(self.state)
            self.journal.publish(ModelRow(version, self.engine.now(), self._digest, metrics))
