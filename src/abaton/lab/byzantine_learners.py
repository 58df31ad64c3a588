"""Learners that harm: one whose labels are wrong, and one that sends noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from abaton.errors import SettingsError
from abaton.kernels import Vector
from abaton.lab.partition import Split
from abaton.learners import Examples, Lesson, Model, Trained
from abaton.metrics.predictions import Score
from abaton.models.base import Way
from abaton.training import TrainSettings

KINDS = ("flipped", "noise")


def poisoned(kind: str, split: Split, model: Model, classes: int) -> tuple[Split, Model]:
    """A learner's data and model after it has gone bad.

    `flipped`: every label is the next class instead, in training and in validation: the learner is honest, its records
    are wrong, and it judges others by them, too. `noise`: it sends standard normal numbers as its model.
    """
    if kind == "flipped":
        return Split(_flip(split.train, classes), _flip(split.validation, classes)), model
    if kind == "noise":
        return split, Noise(model)
    raise SettingsError(f"there is no bad learner '{kind}'", remedy=f"use one of {', '.join(KINDS)}")


class Noise(Model):
    """A model whose training gives random numbers; everything else is as it should be.

    >>> from abaton.learners import logistic, train_model
    >>> data = Examples(np.eye(2, dtype=np.float32), np.array([0, 1]))
    >>> noise = Noise(logistic(features=2))
    >>> sent = train_model(noise, noise.initial(0), data, TrainSettings(), np.random.default_rng(0))
    >>> sent.steps, sent.vector.shape
    (1, (6,))
    """

    def __init__(self, model: Model) -> None:
        self._model, self.layout = model, model.layout

    @property
    def remembers(self) -> bool:
        """As the honest model does."""
        return self._model.remembers

    def initial(self, seed: int) -> Vector:
        """The model before any training."""
        return self._model.initial(seed)

    def way(self, data: Examples) -> Way:
        """As the honest model is trained."""
        return self._model.way(data)

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """As many batches as training takes."""
        return self._model.steps(examples, settings)

    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Random weights after every epoch; there are as many as an honest learner would have taken."""
        for trained in self._model.epochs(vector, data, lesson):
            yield replace(trained, vector=lesson.shuffle.standard_normal(self.layout.size, dtype=np.float32))

    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Predict as the honest model does."""
        return self._model.score(vector, data, local)


def _flip(data: Examples, classes: int) -> Examples:
    return Examples(data.x, (data.y + 1) % classes)
