"""A learner: one site's examples, trained on when asked, answered with an encoded update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from abaton.codecs import GaussianNoise, Key, Pipeline
from abaton.errors import LayoutError, SettingsError
from abaton.kernels import Vector
from abaton.learners.site_policy import ADMITS_ALL, SitePolicy
from abaton.metrics.counts import Counts
from abaton.metrics.predictions import count, label_counts
from abaton.models.base import Enough, Examples, Lesson, Model, Trained, last
from abaton.training import TrainSettings, round_key, sends


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


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A learner's part when several are trained together: where it starts, its examples, and all that is random."""

    start: Vector
    examples: Examples
    chance: np.random.Generator


@dataclass(frozen=True, slots=True)
class Watch:
    """What a learner can look at while it trains.

    Attributes:
        clock: the time in seconds, for a task with a time budget.
        committed: how many steps all learners together have committed, for one that decides itself when to send.
    """

    clock: Callable[[], float] | None = None
    committed: Callable[[], int] | None = None


ALONE = Watch()


def cycle_ends(settings: TrainSettings, losses: Sequence[float], epoch: Epoch, committed: int) -> bool:
    """Whether a learner that decides itself sends after this epoch (Metis, section V; `control.adaptive`)."""
    assert settings.adaptive is not None
    stale = committed - settings.committed + epoch.trained.steps > settings.staleness_limit
    return stale or epoch.number >= settings.epochs or sends(losses, settings.adaptive)


class _Blank(ISeedSequence):
    """Seeds a generator whose state is set anyway: mixing a seed would cost more than a small epoch's shuffle."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Zeros."""
        return np.zeros(n_words, dtype)


_BLANK = _Blank()


class Learner:
    """Trains on one site's examples.

    Everything random comes from the run's seed, the learner's name and the task (and the site's secret, where the order
    of its rows is its own), so the same task always gives the same update. What must stay at the site (the codec's
    memory, running statistics, a kept momentum) stays in this object, for one run: `forget` begins the next.

    Args:
        name: the site's name.
        model: what is trained.
        examples: what it is trained on.
        codec: how updates travel.
        seed: the run's.
        validation: what models are scored on.
        secret: what feeds the noise for privacy; the controller never sees it.
        batch: the largest batch that the site allows, if it limits it.

    Attributes:
        own_order: whether the order in which rows are trained on follows from the secret, too. Whoever knows the order
            knows by how much each row counts in an update: as many updates as rows are then equations enough for all.
        policy: what the learner's site does not do and does not let go of; asked by whatever carries its tasks.
        downlink: how versions of the community model travel to it, if they are compressed.
    """

    own_order = False

    def __init__(
        self,
        name: str,
        model: Model,
        examples: Examples,
        codec: Pipeline,
        seed: int,
        validation: Examples | None = None,
        *,
        secret: bytes = b"",
        batch: int | None = None,
    ) -> None:
        self.name, self.model, self.examples, self.codec, self.seed = name, model, examples, codec, seed
        self.validation, self.secret, self.batch = validation, secret, batch
        self.policy: SitePolicy = ADMITS_ALL
        self.downlink: Pipeline | None = None
        self.forget()

    @classmethod
    def elsewhere(cls) -> type[Learner]:
        """Which class of learners does a task of this one on a cluster, where there are numbers and nothing else."""
        return Learner

    def forget(self) -> None:
        """Keep nothing of earlier tasks: a run begins with learners that have sent nothing yet."""
        self._memory = self.codec.start(self.model.layout)
        self._local: dict[str, Vector] = {}
        self.cohort = ""

    def begin(self, at: float, version: int | None = None) -> None:
        """Hear that a task is taken up; a learner bound to consents asks here who is still in, and notes the cohort.

        Args:
            at: when, by the engine's clock.
            version: the version of the community model that training starts from; none for an evaluation.

        Raises:
            Refused: too few are left.
        """

    def forgets(self, settings: TrainSettings) -> bool:
        """Whether a task's answer depends on the task alone, not on the tasks before it."""
        kept = self._memory or self._local or self.model.remembers or settings.keep_momentum
        return not kept

    @property
    def private(self) -> bool:
        """Whether the codec adds noise for privacy: nothing that carries none is then told."""
        return any(step.name == GaussianNoise.name for step in self.codec.steps)

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

    def limited(self, settings: TrainSettings) -> TrainSettings:
        """The settings by which the learner trains: in batches that are not larger than the site allows."""
        if self.batch is None or settings.batch_size <= self.batch:
            return settings
        return replace(settings, batch_size=self.batch)

    def steps(self, settings: TrainSettings) -> int:
        """How many batches a task takes."""
        return self.model.steps(self.size(settings), self.limited(settings))

    def size(self, settings: TrainSettings) -> int:
        """How many examples a task is trained on."""
        held = self.validation if settings.complete else None
        return len(self.examples) + (0 if held is None else len(held))

    def resting(self, model: Vector, settings: TrainSettings) -> float:
        """On how many examples an update from a model rests: those that it gets right weigh little in it.

        The square of the sum of what is wrong over the sum of its squares: as many as there are if all are equally
        wrong, one if a single one is.
        """
        data = self._data(settings)
        said = self.model.score(model, data, self._local).predictions
        if data.y.ndim > 1:  # several answers for an example: no single one can be made to stand out
            return float(len(data))
        known = said[np.arange(len(data)), data.y] if said.ndim == 2 else said
        wrong = np.abs((1.0 if said.ndim == 2 else np.asarray(data.y, np.float64)) - known.astype(np.float64))
        squares = float(wrong @ wrong)
        return float(wrong.sum()) ** 2 / squares if squares else float(len(data))

    @property
    def declared(self) -> int:
        """How many examples the learner says that it trains on when it joins."""
        return len(self.examples)

    @property
    def labels(self) -> Counts:
        """How many examples of each class the validation set holds; nothing if there is none, or labels are values."""
        return () if self.validation is None or self.private else label_counts(self.validation.y)

    @property
    def evaluation_steps(self) -> float:
        """What an evaluation costs, in training batches: a forward pass of the validation set is a third of a batch."""
        return 0.0 if self.validation is None else len(self.validation) / 96

    def evaluate(self, model: Vector) -> Counts:
        """Score a model on the learner's validation set, as counts that add up over learners."""
        if self.validation is None or not len(self.validation):
            return ()
        score = self.model.score(model, self.validation, self._local)
        return count(score.predictions, self.validation.y, score.loss)

    def train(
        self, task: str, version: int, start: Vector, settings: TrainSettings, watch: Watch = ALONE
    ) -> Update:
        """Train from a version of the community model and encode what changed."""
        settings = self.limited(settings)
        if settings.adaptive is not None and not settings.steps:
            return self._train_adaptively(task, version, start, settings, watch)
        epochs = self._epochs(task, start, settings, self._enough(settings, watch))
        return self.send(task, version, start, last(epochs, settings), scored=not settings.complete)

    def seat(self, task: str, start: Vector, settings: TrainSettings) -> Seat | None:
        """The learner's part when several are trained together; nothing if its task cannot be trained like that.

        It can if it is a plain number of epochs, with nothing asked in between and nothing kept for the next task.
        """
        asked = settings.steps or settings.budget or settings.adaptive is not None
        kept = settings.keep_momentum or self.model.remembers
        if asked or kept or settings.complete or type(self).train is not Learner.train:
            return None
        self.model.layout.check(start, whose="the model")
        return Seat(start, self.examples, self._generator(task))

    def _train_adaptively(
        self, task: str, version: int, start: Vector, settings: TrainSettings, watch: Watch
    ) -> Update:
        losses: list[float] = []
        for epoch in self.train_epochs(task, start, settings):
            losses.append(epoch.validation_loss)
            committed = watch.committed() if watch.committed else settings.committed
            if cycle_ends(settings, losses, epoch, committed):
                break
        return self.send(task, version, start, epoch.trained)

    def _enough(self, settings: TrainSettings, watch: Watch) -> Enough | None:
        """When a time budget is used up, by the clock that the learner may look at."""
        clock = watch.clock
        if settings.steps or not settings.budget:
            return None
        if clock is None:
            raise SettingsError(
                f"learner '{self.name}' has a time budget but no clock",
                where="training.budget",
                remedy="use an engine that gives one, or say how many steps",
            )
        end = clock() + settings.budget
        return lambda: clock() >= end

    def train_epochs(self, task: str, start: Vector, settings: TrainSettings) -> Iterator[Epoch]:
        """Train epoch by epoch for as long as the caller asks for the next one; `send` what it stops at.

        Several learners' epochs may be taken in turns. To take `settings.epochs` of them and send the last is `train`.
        """
        for number, trained in enumerate(self._epochs(task, start, self.limited(settings)), 1):
            loss = float("nan")
            if self.validation is not None:
                loss = self.model.score(trained.vector, self.validation, trained.local).loss
            yield Epoch(number, trained, loss)

    def send(
        self, task: str, version: int, start: Vector, trained: Trained, *, scored: bool = True
    ) -> Update:
        """Encode what training has changed since the version it started from, and keep what stays at the site."""
        layout, change = self.model.layout, trained.vector - start
        key = Key(round_key(self.seed, version), self.name, self._task_secret(task))
        try:
            payload, memory = self.codec.encode(change, layout, key, self._memory)
        except LayoutError:
            layout.check(
                change, whose=f"the update of learner '{self.name}'"
            )  # codecs do not know whose it is
            raise
        self._memory, self._local = memory, dict(trained.local)
        if self.private:
            return Update(payload, trained.steps, None)
        score = self.evaluate(trained.vector) if scored else ()
        return Update(payload, trained.steps, trained.loss, score)

    def _epochs(
        self, task: str, start: Vector, settings: TrainSettings, enough: Enough | None = None
    ) -> Iterator[Trained]:
        if not len(self.examples):
            raise SettingsError(
                f"learner '{self.name}' has no examples",
                remedy="check the site's cohort with 'abaton site check', or leave the learner out",
            )
        data, chance = self._data(settings), self._generator(task)
        return self.model.epochs(start, data, Lesson(settings, chance, self._local, enough))

    def _data(self, settings: TrainSettings) -> Examples:
        held = self.validation
        if not settings.complete or held is None:
            return self.examples
        x, y = (np.concatenate(both) for both in ((self.examples.x, held.x), (self.examples.y, held.y)))
        return Examples(x, y)

    def _task_secret(self, task: str) -> bytes:
        """A secret for each task: two updates from the same version must not carry the same noise."""
        if not self.secret:
            return b""
        text = len(self.secret).to_bytes(4, "little") + self.secret + task.encode()
        return hashlib.blake2b(text, digest_size=32, person=b"abaton-task-1").digest()

    def _generator(self, task: str) -> np.random.Generator:
        """Everything random in a task, from the run's seed, the learner's name and the task."""
        text = f"learner\x1f{self.seed}\x1f{self.name}\x1f{task}".encode()
        text += self._task_secret(task) if self.own_order else b""
        digest = hashlib.blake2b(text, digest_size=32).digest()
        state, stream = int.from_bytes(digest[:16], "little"), int.from_bytes(digest[16:], "little") | 1
        bits = np.random.PCG64(_BLANK)  # type: ignore[arg-type]  # which takes any such sequence
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": stream},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return np.random.Generator(bits)
