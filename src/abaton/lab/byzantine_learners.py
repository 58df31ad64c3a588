"""Byzantine learners: attacks with flipped labels, or with noise instead of an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from abaton.errors import SettingsError
from abaton.lab.partition import LearnerSplit
from abaton.layout import Vector
from abaton.metrics.predictions import ModelScore
from abaton.models import Examples, Model, TrainingPlan, TrainingResult
from abaton.models.base import ParallelMode
from abaton.training import TrainSettings

KINDS = ("flipped", "noise")


def apply_attack(kind: str, split: LearnerSplit, model: Model, classes: int) -> tuple[LearnerSplit, Model]:
    """Return the data and model of a Byzantine learner.

    `flipped`: every label is replaced by the next class, in training and in validation data, so that the learner
    also evaluates other models with wrong labels. `noise`: the learner sends standard normal values as its model.
    """
    if kind == "flipped":
        return LearnerSplit(_flip(split.train, classes), _flip(split.validation, classes)), model
    if kind == "noise":
        return split, NoiseModel(model)
    raise SettingsError(f"there is no attack '{kind}'", remedy=f"use one of {', '.join(KINDS)}")


class NoiseModel(Model):
    """Model whose training returns random values; scoring is that of the wrapped model.

    >>> from abaton.models import logistic, train_model
    >>> data = Examples(np.eye(2, dtype=np.float32), np.array([0, 1]))
    >>> noise = NoiseModel(logistic(features=2))
    >>> sent = train_model(noise, noise.initial(0), data, TrainSettings(), np.random.default_rng(0))
    >>> sent.steps, sent.vector.shape
    (1, (6,))
    """

    def __init__(self, model: Model) -> None:
        self._model, self.layout = model, model.layout

    @property
    def description(self) -> str:
        """Text of the Byzantine noise model in a run manifest."""
        return "noise"

    @property
    def is_stateful(self) -> bool:
        """Whether the model that a Byzantine learner wraps is stateful."""
        return self._model.is_stateful

    def initial(self, seed: int) -> Vector:
        """Return the initial model of a Byzantine learner, that of the wrapped model."""
        return self._model.initial(seed)

    def parallel_mode(self, data: Examples) -> ParallelMode:
        """Return the parallel mode of a Byzantine learner, that of the wrapped model."""
        return self._model.parallel_mode(data)

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """Return the number of batches that a Byzantine learner reports, that of the wrapped model."""
        return self._model.steps(examples, settings)

    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Yield a Byzantine learner's random weights after every epoch of the wrapped model."""
        for trained in self._model.epochs(vector, data, plan):
            yield replace(trained, vector=plan.rng.standard_normal(self.layout.size, dtype=np.float32))

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Score as a Byzantine learner, with the wrapped model."""
        return self._model.score(vector, data, local)


def _flip(data: Examples, classes: int) -> Examples:
    return Examples(data.x, (data.y + 1) % classes)
