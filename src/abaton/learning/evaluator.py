"""An evaluator: scores others' models on one site's validation set, as counts that add up over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.learning.model import Examples, Model
from abaton.vectors import Vector

Confusion = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """How good a model is on some examples; tallies of several sites add up.

    Attributes:
        count: how many labels were compared.
        loss: the loss summed over them.
        confusion: how often class `row` was taken for class `column`; empty for values.
        squared_error, total, squares: sums of `(ŷ − y)²`, `y` and `y²` for values; 0 for classes.

    >>> a = tally(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]), loss=0.5)
    >>> (a + a).confusion.tolist(), (a + a).loss
    ([[2, 2], [0, 0]], 2.0)
    """

    count: int
    loss: float
    confusion: Confusion = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    squared_error: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.count + other.count,
            self.loss + other.loss,
            self.confusion + other.confusion,
            self.squared_error + other.squared_error,
            self.total + other.total,
            self.squares + other.squares,
        )


def tally(predictions: NDArray[Any], labels: NDArray[Any], *, loss: float) -> Tally:
    """Compare predictions with labels: chances per class (rows, classes, …) or values (rows), and their mean loss."""
    count = labels.size
    if predictions.ndim == 1:
        said, true = predictions.astype(np.float64), labels.astype(np.float64).reshape(-1)
        wrong = said - true
        return Tally(
            count,
            loss * count,
            squared_error=float(wrong @ wrong),
            total=float(true.sum()),
            squares=float(true @ true),
        )
    classes = predictions.shape[1]
    true = labels.astype(np.int64)
    if true.min() < 0 or true.max() >= classes:
        raise SettingsError(
            "a label is not one of the model's classes",
            where="labels",
            remedy=f"number the classes from 0 to {classes - 1}",
        )
    pairs = (true * classes + predictions.argmax(1)).reshape(-1)
    confusion = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes).astype(np.int64)
    return Tally(count, loss * count, confusion)


class Evaluator:
    """Scores models on one site's validation set.

    Args:
        name: the site's learner, named in errors.
        model: how a vector becomes predictions.
        examples: the validation set; it is never trained on.
        workers: how many models are scored at the same time, where the model allows it.
    """

    def __init__(self, name: str, model: Model, examples: Examples, *, workers: int = 1) -> None:
        if not len(examples):
            raise SettingsError(
                f"evaluator '{name}' has no examples",
                remedy="give the site more examples, or a larger share for validation",
            )
        self.name, self.model, self.examples = name, model, examples
        self._workers = workers if model.way(examples) == "threads" else 1

    def score(self, models: Sequence[Vector], local: Mapping[str, Vector] | None = None) -> list[Tally]:
        """The tally of each model, in order; a model's tally does not depend on the others."""

        def one(vector: Vector) -> Tally:
            made = self.model.score(vector, self.examples, local)
            return tally(made.predictions, self.examples.y, loss=made.loss)

        if self._workers == 1 or len(models) < 2:
            return [one(vector) for vector in models]
        with ThreadPoolExecutor(self._workers, "abaton-evaluator") as threads:
            return list(threads.map(one, models))
