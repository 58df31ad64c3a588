"""Model interface: a layout, an initial vector, training and scoring on one site's examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.layout import Layout, Vector
from abaton.metrics.predictions import ModelScore
from abaton.models.sampling import Order, epoch_batches, epoch_order
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and labels of one site, row by row, and the weight of each row in a loss; None if all weights are 1.

    >>> len(Examples(np.zeros((3, 2), np.float32), np.array([0, 1, 0])))
    3
    """

    x: NDArray[Any]
    y: NDArray[Any]
    weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise SettingsError(
                f"there are {len(self.x)} inputs but {len(self.y)} labels",
                remedy="give each row one label",
            )
        weights = self.weights
        if weights is not None and not (
            weights.shape == (len(self.y),) and np.isfinite(weights).all() and (weights > 0).all()
        ):
            raise SettingsError(
                "the weights of the examples are not one positive number for each row",
                where="weights",
                remedy="give each row a weight above 0, or no weights",
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def relative_weights(self) -> NDArray[np.float64] | None:
        """Weights of the examples divided by their mean; None if all are 1."""
        return None if self.weights is None else self.weights / self.weights.mean()

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Examples:
        """Return some of the examples, with their weights."""
        return Examples(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])


def concatenate_examples(parts: Sequence[Examples]) -> Examples:
    """Return the examples of several parts, one after the other; a part without weights has weights of 1.

    >>> row = np.zeros((1, 2)), np.zeros(1)
    >>> concatenate_examples([Examples(*row), Examples(*row, np.array([2.0]))]).weights.tolist()
    [1.0, 2.0]
    """
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [np.ones(len(part)) if part.weights is None else part.weights for part in parts]
        )
    return Examples(
        np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]), weights
    )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Result of training: the trained model, and the state that stays at the site.

    Attributes:
        vector: The trained model; the start model is unchanged.
        steps: Number of batches.
        loss: Mean training loss of the last epoch.
        local: Tensors that never leave the site (personal layers, optimiser state).
    """

    vector: Vector
    steps: int
    loss: float
    local: Mapping[str, Vector] = field(default_factory=dict)


StopCondition = Callable[[], bool]
"""Called after every batch; returns whether training ends."""

ParallelMode = Literal["threads", "processes", "sequential"]
"""How learners with a model are trained on one machine."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPlan:
    """Settings and random generator of one training task.

    Attributes:
        settings: Epochs, batch size, learning rate and other settings.
        rng: Random generator of the task.
        local: State of the previous task that stayed at the site.
        should_stop: Called after every batch if there is a time budget; returns whether training ends.
    """

    settings: TrainSettings
    rng: np.random.Generator
    local: Mapping[str, Vector] = field(default_factory=dict)
    should_stop: StopCondition | None = None

    def epochs(self, data: Examples) -> Iterator[Iterator[Order]]:
        """Yield the batches of each epoch of a training plan as row indices, until the task ends.

        >>> plan = TrainingPlan(TrainSettings(batch_size=2, steps=3), np.random.default_rng(0))
        >>> data = Examples(np.zeros((4, 1), np.float32), np.zeros(4, np.int64))
        >>> [[len(rows) for rows in batches] for batches in plan.epochs(data)]
        [[2, 2], [2]]
        """
        require_examples(data)
        trained_batches, is_over = 0, False

        def batches() -> Iterator[Order]:
            nonlocal trained_batches, is_over
            order = epoch_order(data.y, self.settings.shuffle_window, self.rng)
            for rows in epoch_batches(order, self.settings, trained_batches, by_batch=True):
                yield rows
                trained_batches += 1
                if is_over := self.should_stop is not None and self.should_stop():
                    return

        while not is_over and (not self.settings.steps or trained_batches < self.settings.steps):
            yield batches()


class Model(Protocol):
    """Model that is trained from a flat vector and scored.

    A user-defined model inherits from this class and has a layout, an initial vector, training and scoring. It runs
    where the learners run: the `local` engine forks processes, Ray serialises the model.
    """

    layout: Layout
    """Mapping of tensors to slices of the vector."""

    @property
    def is_stateful(self) -> bool:
        """Whether a site stores state of the model between tasks (model interface)."""
        return False

    @abstractmethod
    def initial(self, seed: int) -> Vector:
        """Return the initial model (interface of all models); the same seed gives the same model."""

    def parallel_mode(self, data: Examples) -> ParallelMode:
        """Return how learners with this model and such examples are trained on one machine (interface)."""
        return "sequential"

    def steps(self, examples: int, settings: TrainSettings) -> int:
        """Return the number of batches of training on a number of examples (default of the model interface)."""
        return count_batches(examples, settings)

    @abstractmethod
    def epochs(self, vector: Vector, data: Examples, plan: TrainingPlan) -> Iterator[TrainingResult]:
        """Train epoch by epoch and yield the result of each (interface of all models).

        The loss is the mean over rows, weighted by the weights of the examples, if they have any.
        Training ends when the caller requests no further epoch, after `settings.steps`, or once `should_stop` returns
        True after a batch; the current epoch is then the last. The same number of batches gives the same model;
        `plan.epochs` yields exactly these batches.
        """

    @abstractmethod
    def score(self, vector: Vector, data: Examples, local: Mapping[str, Vector] | None = None) -> ModelScore:
        """Score a model on a site's examples (interface): the loss, and class probabilities or values."""


def count_batches(examples: int, settings: TrainSettings) -> int:
    """Return the number of batches that any model trains: `settings.steps`, or those of all epochs.

    >>> count_batches(33, TrainSettings(epochs=2, batch_size=16)), count_batches(33, TrainSettings(steps=5))
    (6, 5)
    """
    return settings.steps or settings.epochs * -(-examples // settings.batch_size)


def train_model(
    model: Model,
    vector: Vector,
    data: Examples,
    settings: TrainSettings,
    rng: np.random.Generator,
    local: Mapping[str, Vector] | None = None,
) -> TrainingResult:
    """Train any model on a site's examples by the settings and return the result."""
    return last_epoch(model.epochs(vector, data, TrainingPlan(settings, rng, local or {})), settings)


def last_epoch(epochs: Iterator[TrainingResult], settings: TrainSettings) -> TrainingResult:
    """Return a model's last epoch of a task: where the iterator ends, or after `settings.epochs` epochs."""
    ends_itself = settings.steps or settings.time_budget_seconds
    *_, trained = islice(epochs, None if ends_itself else settings.epochs)
    return trained


def require_examples(data: Examples) -> None:
    """Raise an error if there are no examples to train a model on."""
    if len(data) == 0:
        raise SettingsError(
            "there are no examples", remedy="check the site's cohort with 'abaton site check'"
        )
