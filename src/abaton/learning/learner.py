"""A learner: one site's examples, trained on when asked, answered with an encoded update."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from abaton.codecs import Key, Pipeline
from abaton.control.draw import round_key
from abaton.control.messages import Counts, TrainSettings
from abaton.learning.metrics import count
from abaton.learning.model import Examples, Model
from abaton.vectors import Vector


@dataclass(frozen=True, slots=True)
class Update:
    """What a learner sends: the encoded change of the model, and a few counts."""

    payload: bytes
    steps: int
    loss: float
    score: Counts = ()


class Learner:
    """Trains on one site's examples.

    Everything random comes from the run's seed, the learner's name and the task, so the same task always gives the same
    update. What must stay at the site (the codec's memory, running statistics) stays in this object.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        examples: Examples,
        codec: Pipeline,
        seed: int,
        validation: Examples | None = None,
    ) -> None:
        self.name, self.model, self.examples, self.codec, self.seed = name, model, examples, codec, seed
        self.validation = validation
        self._memory = codec.start(model.layout)
        self._local: dict[str, Vector] = {}

    @property
    def forgetful(self) -> bool:
        """Whether a task's answer depends on the task alone, not on the tasks before it."""
        return not self._memory and not self._local

    def steps(self, settings: TrainSettings) -> int:
        """How many batches a task takes."""
        return self.model.steps(len(self.examples), settings)

    @property
    def evaluation_steps(self) -> float:
        """What an evaluation costs, in training batches: a forward pass of the validation set is a third of a batch."""
        return 0.0 if self.validation is None else len(self.validation) / 96

    def evaluate(self, model: Vector) -> Counts:
        """Score a model on the learner's validation set, as counts that add up over learners."""
        if self.validation is None:
            return ()
        predictions = self.model.score(model, self.validation, self._local).predictions
        return count(predictions, self.validation.y)

    def train(self, task: str, version: int, start: Vector, settings: TrainSettings) -> Update:
        """Train from a version of the community model and encode what changed."""
        shuffle = self._generator(task)
        trained = self.model.train(start, self.examples, settings, shuffle, self._local)
        layout = self.model.layout
        change = layout.check(trained.vector - start, whose=f"the update of learner '{self.name}'")
        key = Key(round_key(self.seed, version), self.name)
        payload, self._memory = self.codec.encode(change, layout, key, self._memory)
        self._local = dict(trained.local)
        return Update(payload, trained.steps, trained.loss, self.evaluate(trained.vector))

    def _generator(self, task: str) -> np.random.Generator:
        text = f"learner\x1f{self.seed}\x1f{self.name}\x1f{task}".encode()
        key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))
