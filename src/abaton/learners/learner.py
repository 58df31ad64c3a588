"""Learner: trains on one site's examples and returns encoded updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from abaton.codecs import CodecKey, CodecPipeline, GaussianNoise
from abaton.errors import LayoutError, SettingsError
from abaton.layout import Vector
from abaton.learners.site_policy import ALLOW_ALL, SitePolicy
from abaton.metrics.counts import Counts
from abaton.metrics.predictions import label_counts, validation_counts
from abaton.models.base import (
    Examples,
    Model,
    StopCondition,
    TrainingPlan,
    TrainingResult,
    concatenate_examples,
    last_epoch,
)
from abaton.training import TrainSettings, round_key, should_send


@dataclass(frozen=True, slots=True)
class LearnerUpdate:
    """Encoded change of the model, and counts.

    A learner whose codec adds noise for differential privacy sends no loss and no counts, since they have no noise.
    """

    payload: bytes
    steps: int
    loss: float | None
    counts: Counts = ()


@dataclass(frozen=True, slots=True, eq=False)
class EpochResult:
    """State of a task after an epoch.

    Attributes:
        number: Number of the epoch in the task, from 1.
        trained: The model after the epoch.
        validation_loss: Mean loss on the learner's validation set; NaN without one.
    """

    number: int
    trained: TrainingResult
    validation_loss: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSlot:
    """Start model, examples and random generator of a learner that is trained in a stack."""

    start: Vector
    examples: Examples
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class TrainingMonitor:
    """Values that a learner reads during training.

    Attributes:
        clock: Time in seconds, for a task with a time budget.
        committed_steps: Steps committed by all learners, for the adaptive update frequency.
    """

    clock: Callable[[], float] | None = None
    committed_steps: Callable[[], int] | None = None


NO_MONITOR = TrainingMonitor()


def should_end_cycle(
    settings: TrainSettings, losses: Sequence[float], epoch: EpochResult, committed: int
) -> bool:
    """Return whether a learner with adaptive update frequency sends after this epoch (Metis, section V)."""
    assert settings.update_thresholds is not None
    is_stale = committed - settings.committed_steps + epoch.trained.steps > settings.staleness_limit
    return is_stale or epoch.number >= settings.epochs or should_send(losses, settings.update_thresholds)


class _ZeroSeed(ISeedSequence):
    """Seed sequence of zeros for a generator whose state is set afterwards, since seeding is slow."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return zeros, the placeholder seed of a learner's random generator."""
        return np.zeros(n_words, dtype)


_ZERO_SEED = _ZeroSeed()


class Learner:
    """Training component of one site.

    All randomness derives from the run's seed, the learner's name and the task (and from the site's secret if
    `has_secret_order`), so a task always gives the same update. State that must stay at the site (error feedback,
    personal layers, optimiser state) is stored in this object for one run; `reset_state` removes it. It changes only
    when an update is sent, so an abandoned training leaves no trace.

    Args:
        name: Name of the site.
        model: The model.
        examples: Training examples.
        codec: Codec of the updates.
        seed: Seed of the run.
        validation: Validation examples, on which models are scored.
        secret: Secret from which the noise for differential privacy is derived; the controller does not have it.
        max_batch_size: Largest batch that the site allows.

    Attributes:
        has_secret_order: Whether the order of rows also depends on the secret. Study learners shuffle with a site
            secret, because a centre that knows the order can solve for single rows from repeated updates.
        policy: Policy of the site, which the engine applies to requests and replies.
        downlink: Codec of the downlink, if it is compressed.
    """

    has_secret_order = False

    def __init__(
        self,
        name: str,
        model: Model,
        examples: Examples,
        codec: CodecPipeline,
        seed: int,
        validation: Examples | None = None,
        *,
        secret: bytes = b"",
        max_batch_size: int | None = None,
    ) -> None:
        self.name, self.model, self.examples, self.codec, self.seed = name, model, examples, codec, seed
        self.validation, self.secret, self.max_batch_size = validation, secret, max_batch_size
        self.policy: SitePolicy = ALLOW_ALL
        self.downlink: CodecPipeline | None = None
        self.reset_state()

    @classmethod
    def remote_class(cls) -> type[Learner]:
        """Return the class that performs this learner's tasks on a cluster, which has arrays only."""
        return Learner

    def reset_state(self) -> None:
        """Remove the learner's state of earlier tasks; called at the start of a run."""
        self._transform_state = self.codec.initial_state(self.model.layout)
        self._local: dict[str, Vector] = {}
        self.cohort = ""

    def on_task_start(self, timestamp: float, version: int | None = None) -> None:
        """Prepare the learner for a task; one with consents checks them here and sets its cohort.

        Args:
            timestamp: Time by the engine's clock.
            version: Version of the community model from which training starts; None for an evaluation.

        Raises:
            RefusedError: Too few subjects remain.
        """

    def is_stateless(self, settings: TrainSettings) -> bool:
        """Return whether the learner's result depends on the task only, not on earlier tasks."""
        is_stateful = (
            self._transform_state or self._local or self.model.is_stateful or settings.keep_optimiser_state
        )
        return not is_stateful

    @property
    def adds_dp_noise(self) -> bool:
        """Whether the learner's codec adds noise for differential privacy; values without it are not released."""
        return any(transform.name == GaussianNoise.name for transform in self.codec.transforms)

    @property
    def local_state(self) -> dict[str, Vector]:
        """Learner's state that stays at the site between tasks, by name, and must survive a crash of the site."""
        codec = {f"codec/{name}": values for name, values in self._transform_state.items()}
        return codec | {f"model/{name}": values for name, values in self._local.items()}

    def restore(self, state: Mapping[str, Vector]) -> None:
        """Restore the learner's state from `local_state`."""
        owners: dict[str, dict[str, Vector]] = {"codec": {}, "model": {}}
        for name, values in state.items():
            owner, _, key = name.partition("/")
            owners[owner][key] = values
        self._transform_state, self._local = owners["codec"], owners["model"]

    def apply_limits(self, settings: TrainSettings) -> TrainSettings:
        """Return the learner's training settings with a batch size that the site allows."""
        if self.max_batch_size is None or settings.batch_size <= self.max_batch_size:
            return settings
        return replace(settings, batch_size=self.max_batch_size)

    def steps(self, settings: TrainSettings) -> int:
        """Return the number of batches of a learner's task."""
        return self.model.steps(self.size(settings), self.apply_limits(settings))

    def size(self, settings: TrainSettings) -> int:
        """Return the number of examples that the learner uses for a task."""
        validation = self.validation if settings.use_validation_data else None
        return len(self.examples) + (0 if validation is None else len(validation))

    def effective_examples(self, model: Vector, settings: TrainSettings) -> float:
        """Return a learner's effective number of examples in an update: those without error contribute little.

        It is the squared sum of the errors over the sum of squared errors: the number of examples if all errors are
        equal, 1 if a single example has an error.
        """
        data = self._data(settings)
        predictions = self.model.score(model, data, self._local).predictions
        if data.y.ndim > 1:  # several labels per example: no single one can dominate
            return float(len(data))
        fitted = predictions[np.arange(len(data)), data.y] if predictions.ndim == 2 else predictions
        errors = np.abs(
            (1.0 if predictions.ndim == 2 else np.asarray(data.y, np.float64)) - fitted.astype(np.float64)
        )
        squared_sum = float(errors @ errors)
        return float(errors.sum()) ** 2 / squared_sum if squared_sum else float(len(data))

    @property
    def declared_examples(self) -> int:
        """Number of training examples that the learner reports when it joins."""
        return len(self.examples)

    @property
    def labels(self) -> Counts:
        """Learner's validation examples per class; empty without a validation set, for regression, or with noise."""
        return () if self.validation is None or self.adds_dp_noise else label_counts(self.validation.y)

    @property
    def evaluation_steps(self) -> float:
        """Cost of a learner's evaluation in training batches: a forward pass costs a third of a training step."""
        return 0.0 if self.validation is None else len(self.validation) / 96

    def evaluate(self, model: Vector) -> Counts:
        """Return a model's validation counts on the learner's validation set, which add up over learners."""
        if self.validation is None or not len(self.validation):
            return ()
        score = self.model.score(model, self.validation, self._local)
        return validation_counts(score.predictions, self.validation.y, score.loss)

    def train(
        self,
        task: str,
        version: int,
        start: Vector,
        settings: TrainSettings,
        monitor: TrainingMonitor = NO_MONITOR,
    ) -> LearnerUpdate:
        """Train the learner from a version of the community model and return the encoded change."""
        settings = self.apply_limits(settings)
        if settings.update_thresholds is not None and not settings.steps:
            return self._train_adaptively(task, version, start, settings, monitor)
        epochs = self._epochs(task, start, settings, self._stop_condition(settings, monitor))
        return self.send(
            task, version, start, last_epoch(epochs, settings), with_counts=not settings.use_validation_data
        )

    def training_slot(self, task: str, start: Vector, settings: TrainSettings) -> TrainingSlot | None:
        """Return the learner's slot in a stack; None if its task cannot be stacked.

        A task can be stacked if it has a fixed number of epochs and leaves no state for the next task.
        """
        is_interrupted = (
            settings.steps or settings.time_budget_seconds or settings.update_thresholds is not None
        )
        has_state = settings.keep_optimiser_state or self.model.is_stateful
        if (
            is_interrupted
            or has_state
            or settings.use_validation_data
            or type(self).train is not Learner.train
        ):
            return None
        self.model.layout.check(start, label="the model")
        return TrainingSlot(start, self.examples, self._generator(task))

    def _train_adaptively(
        self, task: str, version: int, start: Vector, settings: TrainSettings, monitor: TrainingMonitor
    ) -> LearnerUpdate:
        losses: list[float] = []
        for epoch in self.train_epochs(task, start, settings):
            losses.append(epoch.validation_loss)
            committed_steps = (
                monitor.committed_steps() if monitor.committed_steps else settings.committed_steps
            )
            if should_end_cycle(settings, losses, epoch, committed_steps):
                break
        return self.send(task, version, start, epoch.trained)

    def _stop_condition(self, settings: TrainSettings, monitor: TrainingMonitor) -> StopCondition | None:
        """Return the learner's stop condition of a time budget, or None without one."""
        clock = monitor.clock
        if settings.steps or not settings.time_budget_seconds:
            return None
        if clock is None:
            raise SettingsError(
                f"learner '{self.name}' has a time budget but no clock",
                where="training.time_budget_seconds",
                remedy="use an engine with a clock, or set training.steps",
            )
        end = clock() + settings.time_budget_seconds
        return lambda: clock() >= end

    def train_epochs(self, task: str, start: Vector, settings: TrainSettings) -> Iterator[EpochResult]:
        """Train the learner epoch by epoch and yield each result; the caller stops and passes the last to `send`.

        Epochs of several learners may be interleaved. `settings.epochs` epochs and `send` are equal to `train`.
        """
        for number, trained in enumerate(self._epochs(task, start, self.apply_limits(settings)), 1):
            loss = float("nan")
            if self.validation is not None:
                loss = self.model.score(trained.vector, self.validation, trained.local).loss
            yield EpochResult(number, trained, loss)

    def send(
        self, task: str, version: int, start: Vector, trained: TrainingResult, *, with_counts: bool = True
    ) -> LearnerUpdate:
        """Return the learner's encoded change since training started, and store the state that stays at the site."""
        layout, update = self.model.layout, trained.vector - start
        key = CodecKey(round_key(self.seed, version), self.name, self._task_secret(task))
        try:
            payload, transform_state = self.codec.encode(update, layout, key, self._transform_state)
        except LayoutError:
            layout.check(
                update, label=f"the update of learner '{self.name}'"
            )  # adds the learner's name, which codecs do not have
            raise
        self._transform_state, self._local = transform_state, dict(trained.local)
        if self.adds_dp_noise:
            return LearnerUpdate(payload, trained.steps, None)
        counts = self.evaluate(trained.vector) if with_counts else ()
        return LearnerUpdate(payload, trained.steps, trained.loss, counts)

    def _epochs(
        self, task: str, start: Vector, settings: TrainSettings, should_stop: StopCondition | None = None
    ) -> Iterator[TrainingResult]:
        if not len(self.examples):
            raise SettingsError(
                f"learner '{self.name}' has no examples",
                remedy="check the site's cohort with 'abaton site check', or exclude the learner",
            )
        data, rng = self._data(settings), self._generator(task)
        return self.model.epochs(start, data, TrainingPlan(settings, rng, self._local, should_stop))

    def _data(self, settings: TrainSettings) -> Examples:
        validation = self.validation
        if not settings.use_validation_data or validation is None:
            return self.examples
        return concatenate_examples([self.examples, validation])

    def _task_secret(self, task: str) -> bytes:
        """Return a learner's secret per task: two updates from the same version must not have the same noise."""
        if not self.secret:
            return b""
        text = len(self.secret).to_bytes(4, "little") + self.secret + task.encode()
        # frozen: part of the bytes
        return hashlib.blake2b(text, digest_size=32, person=b"abaton-task-1").digest()

    def _generator(self, task: str) -> np.random.Generator:
        """Return the random generator of a task, derived from the run's seed, the learner's name and the task."""
        # frozen: part of the bytes
        label = f"learner\x1f{self.seed}\x1f{self.name}\x1f{task}".encode()
        label += self._task_secret(task) if self.has_secret_order else b""
        digest = hashlib.blake2b(label, digest_size=32).digest()
        state, stream = int.from_bytes(digest[:16], "little"), int.from_bytes(digest[16:], "little") | 1
        bit_generator = np.random.PCG64(_ZERO_SEED)  # type: ignore[arg-type]  # accepts any seed sequence
        bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": stream},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return np.random.Generator(bit_generator)
