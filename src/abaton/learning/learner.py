"""A learner: one site's examples, trained on when asked, answered with an encoded update."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from abaton.codecs import GaussianNoise, Key, Pipeline
from abaton.control.draw import round_key
from abaton.control.messages import Counts, TrainSettings
from abaton.errors import SettingsError
from abaton.learning.metrics import count
from abaton.learning.model import Examples, Model, Trained
from abaton.vectors import Vector


@dataclass(frozen=True, slots=True)
class Update:
    """What a learner sends: the encoded change of the model, and a few counts.

    A learner whose codec adds noise for privacy sends no loss and no score: they would carry none.
    """

    payload: bytes
    steps: int
    loss: float | None
    score: Counts = ()


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """How far a learner's training has come.

    Attributes:
        number: how many epochs of the task are done.
        trained: the model so far; training goes on from it if the next epoch is asked for.
        validation_loss: mean loss on the learner's validation set; not a number if it has none.
    """

    number: int
    trained: Trained
    validation_loss: float


class Learner:
    """Trains on one site's examples.

    Everything random comes from the run's seed, the learner's name and the task, so the same task always gives the same
    update. The secret, which the controller never sees, feeds the noise for privacy. What must stay at the site (the
    codec's memory, running statistics, a kept momentum) stays in this object.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        examples: Examples,
        codec: Pipeline,
        seed: int,
        validation: Examples | None = None,
        secret: bytes = b"",
    ) -> None:
        self.name, self.model, self.examples, self.codec, self.seed = name, model, examples, codec, seed
        self.validation, self._secret = validation, secret
        self._memory = codec.start(model.layout)
        self._local: dict[str, Vector] = {}

    def forgets(self, settings: TrainSettings) -> bool:
        """Whether a task's answer depends on the task alone, not on the tasks before it."""
        kept = self._memory or self._local or self.model.remembers or settings.keep_momentum
        return not kept

    @property
    def kept(self) -> dict[str, Vector]:
        """Everything that stays at the site from task to task, by name: what must survive a crash of the site."""
        codec = {f"codec/{name}": values for name, values in self._memory.items()}
        return codec | {f"model/{name}": values for name, values in self._local.items()}

    def restore(self, kept: Mapping[str, Vector]) -> None:
        """Take back what `kept` gave."""
        parts: dict[str, dict[str, Vector]] = {"codec": {}, "model": {}}
        for name, values in kept.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = values
        self._memory, self._local = parts["codec"], parts["model"]

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
        *_, trained = islice(self._epochs(task, start, settings), settings.epochs)
        return self.send(task, version, start, trained)

    def train_epochs(self, task: str, start: Vector, settings: TrainSettings) -> Iterator[Epoch]:
        """Train epoch by epoch for as long as the caller asks for the next one; `send` what it stops at.

        Several learners' epochs may be taken in turns. To take `settings.epochs` of them and send the last is `train`.
        """
        for number, trained in enumerate(self._epochs(task, start, settings), 1):
            loss = float("nan")
            if self.validation is not None:
                loss = self.model.score(trained.vector, self.validation, trained.local).loss
            yield Epoch(number, trained, loss)

    def send(self, task: str, version: int, start: Vector, trained: Trained) -> Update:
        """Encode what training has changed since the version it started from, and keep what stays at the site."""
        layout = self.model.layout
        change = layout.check(trained.vector - start, whose=f"the update of learner '{self.name}'")
        key = Key(round_key(self.seed, version), self.name, self._task_secret(task))
        payload, memory = self.codec.encode(change, layout, key, self._memory)
        self._memory, self._local = memory, dict(trained.local)
        if any(step.name == GaussianNoise.name for step in self.codec.steps):
            return Update(payload, trained.steps, None)
        return Update(payload, trained.steps, trained.loss, self.evaluate(trained.vector))

    def _epochs(self, task: str, start: Vector, settings: TrainSettings) -> Iterator[Trained]:
        if not len(self.examples):
            raise SettingsError(
                f"learner '{self.name}' has no examples",
                remedy="check the site's cohort with 'abaton site check', or leave the learner out",
            )
        return self.model.epochs(start, self.examples, settings, self._generator(task), self._local)

    def _task_secret(self, task: str) -> bytes:
        """A secret for each task: two updates from the same version must not carry the same noise."""
        if not self._secret:
            return b""
        text = len(self._secret).to_bytes(4, "little") + self._secret + task.encode()
        return hashlib.blake2b(text, digest_size=32, person=b"abaton-task-1").digest()

    def _generator(self, task: str) -> np.random.Generator:
        text = f"learner\x1f{self.seed}\x1f{self.name}\x1f{task}".encode()
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
        return np.random.Generator(np.random.PCG64(seed))
