"""A model as the rest of Abaton sees it: a layout, an initial vector, training and scoring on one site's examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.kernels import Layout, Vector
from abaton.metrics.predictions import Score
from abaton.models.sampling import Order, epoch_order, stretches
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and labels of one site, row by row.

    >>> len(Examples(np.zeros((3, 2), np.float32), np.array([0, 1, 0])))
    3
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise SettingsError(
                f"there are {len(self.x)} inputs but {len(self.y)} labels",
                remedy="give each row exactly one label",
            )

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave: the new model, and what stays at the site.

    Attributes:
        vector: the trained model; the model it started from is unchanged.
        steps: how many batches were applied.
        loss: mean training loss of the last epoch.
        local: tensors that never leave the site (running statistics of normalisation layers, a kept momentum).
    """

    vector: Vector
    steps: int
    loss: float
    local: Mapping[str, Vector] = field(default_factory=dict)


Enough = Callable[[], bool]
"""Asked after every batch: whether training ends there."""

Way = Literal["threads", "processes", "here"]
"""How many learners with a model may train at once: beside each other, in processes, or one after the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """How a model is trained in one task.

    Attributes:
        settings: epochs, batches, learning rate and the rest.
        shuffle: where everything random comes from.
        local: what stayed at the site from the task before.
        enough: asked after every batch whether training ends there, if there is a time budget.
    """

    settings: TrainSettings
    shuffle: np.random.Generator
    local: Mapping[str, Vector] = field(default_factory=dict)
    enough: Enough | None = None

    def epochs(self, data: Examples) -> Iterator[Iterator[Order]]:
        """Epoch by epoch the batches to train on, each as the places of its rows; the last one ends where it should.

        >>> lesson = Lesson(TrainSettings(batch_size=2, steps=3), np.random.default_rng(0))
        >>> data = Examples(np.zeros((4, 1), np.float32), np.zeros(4, np.int64))
        >>> [[len(rows) for rows in batches] for batches in lesson.epochs(data)]
        [[2, 2], [2]]
        """
        require_examples(data)
        done, over = 0, False

        def batches() -> Iterator[Order]:
            nonlocal done, over
            order = epoch_order(data.y, self.settings.window, self.shuffle)
            for rows in stretches(order, self.settings, done, asked=True):
                yield rows
                done += 1
                if over := self.enough is not None and self.enough():
                    return

        while not over and (not self.settings.steps or done < self.settings.steps):
            yield batches()


class Model(Protocol):
    """Something that can be trained from a flat vector and scored.

    A model of your own inherits from this and has a layout, an initial vector, training and scoring. It runs wherever
    learners do: `local` starts processes from this one, Ray takes it along.
    """

    layout: Layout
    """Which part of the vector is which tensor."""

    @property
    def remembers(self) -> bool:
        """Whether something of the model stays at a site from task to task."""
        return False

    @abstractmethod
    def initial(self, seed: int) -> Vector:
        """The model before any training; the same seed gives the same model."""

    def way(self, data: Examples) -> Way:
        """How learners with such examples may be trained at the same time."""
        return "here"

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """How many batches training on so many examples takes."""
        return batches(examples, settings)

    @abstractmethod
    def epochs(self, vector: Vector, data: Examples, lesson: Lesson) -> Iterator[Trained]:
        """Train epoch by epoch, for as long as the caller asks for the next one.

        The lesson says by which settings, in which order, and where training ends: after `settings.steps`, or once
        `enough` says so after a batch, the epoch ends there and is the last one. The same number of batches gives the
        same model either way; `lesson.epochs` gives just those.
        """

    @abstractmethod
    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> Score:
        """Predict a site's examples: probabilities per class, or values for a regression."""


def batches(examples: int, settings: TrainSettings) -> int:
    """How many batches so many examples give in all epochs, unless the settings say it.

    >>> batches(33, TrainSettings(epochs=2, batch_size=16)), batches(33, TrainSettings(steps=5))
    (6, 5)
    """
    return settings.steps or settings.epochs * -(-examples // settings.batch_size)


def train_model(
    model: Model,
    vector: Vector,
    data: Examples,
    settings: TrainSettings,
    shuffle: np.random.Generator,
    local: Mapping[str, Vector] | None = None,
) -> Trained:
    """Train a model on a site's examples for as long as the settings say."""
    return last(model.epochs(vector, data, Lesson(settings, shuffle, local or {})), settings)


def last(epochs: Iterator[Trained], settings: TrainSettings) -> Trained:
    """The last epoch of a task: where it ends by itself, or after as many epochs as the settings say."""
    ends_itself = settings.steps or settings.budget
    *_, trained = islice(epochs, None if ends_itself else settings.epochs)
    return trained


def require_examples(data: Examples) -> None:
    """Refuse to train or score on nothing."""
    if len(data) == 0:
        raise SettingsError(
            "there are no examples", remedy="check the site's cohort with 'abaton site check'"
        )
