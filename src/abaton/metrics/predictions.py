"""How good predictions are: counts that add up over sites, accuracy, and the area under the ROC curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.metrics.counts import Counts


@dataclass(frozen=True, slots=True)
class Score:
    """How good a model is on some examples: the mean loss and the predictions."""

    loss: float
    predictions: NDArray[Any]


_MOST = 1e30  # a loss that is not a number, or endless, is told as this: a journal holds numbers only


def label_counts(labels: NDArray[Any]) -> Counts:
    """How many examples there are of each class; nothing for values.

    >>> label_counts(np.array([0, 2, 2])), label_counts(np.array([0.5]))
    ((1, 0, 2), ())
    """
    if labels.dtype.kind not in "iu" or not labels.size or labels.min() < 0:
        return ()
    return tuple(int(n) for n in np.bincount(labels.reshape(-1)))


def is_timed(labels: NDArray[Any]) -> bool:
    """Whether labels are times: two columns, when, and whether it happened then.

    >>> is_timed(np.array([[0.5, 1.0]])), is_timed(np.array([0.5])), is_timed(np.array([[1, 2]]))
    (True, False, False)
    """
    return labels.ndim == 2 and labels.shape[1] == 2 and labels.dtype.kind == "f"


def count(predictions: NDArray[Any], labels: NDArray[Any], loss: float | None = None) -> Counts:
    """What an evaluator sends: counts for each class, sums of errors of values or of losses (see `control.score`).

    Args:
        predictions: chances of each class, values, or chances that it happens in time.
        labels: what is true.
        loss: the mean loss; if given, the counts for classes end with its sum (those for values hold it anyway, those
            for times are little else).

    >>> count(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), np.array([0, 1, 1]), loss=0.5)
    (1, 1, 1, 2, 2, 1, 1.5)
    """
    if is_timed(labels):
        return len(labels), float(len(labels) * (loss or 0.0) if abs(loss or 0.0) < _MOST else _MOST)
    if predictions.ndim == 1:
        wrong, values = predictions - labels, labels.astype(np.float64)
        sums = (len(labels), np.dot(wrong, wrong), values.sum(), np.dot(values, values))
        return tuple(float(value) for value in sums)
    classes = predictions.shape[1]
    if labels.min() < 0 or labels.max() >= classes:
        raise SettingsError(
            "a label is not one of the model's classes",
            where="labels",
            remedy=f"number the classes from 0 to {classes - 1}",
        )
    said = predictions.argmax(1)
    hits = np.bincount(labels[said == labels].reshape(-1), minlength=classes)
    actual = np.bincount(labels.reshape(-1), minlength=classes)
    counts = tuple(int(n) for n in (*hits, *actual, *np.bincount(said.reshape(-1), minlength=classes)))
    if loss is None:
        return counts
    return (*counts, float(labels.size * loss if abs(loss) < _MOST else _MOST))


def accuracy(chances: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of examples whose most likely class is the true one.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    return float((chances.argmax(1) == labels).mean())


def measures(score: Score, labels: NDArray[Any]) -> dict[str, float]:
    """How good predictions are: loss, and accuracy and AUROC of classes, or the root mean square error of values.

    Of times until something happens the loss alone: pairs of people are counted where people are told apart.

    >>> measures(Score(0.5, np.array([[0.9, 0.1], [0.4, 0.6]])), np.array([0, 1]))
    {'loss': 0.5, 'accuracy': 1.0, 'auroc': 1.0}
    """
    said = score.predictions
    if is_timed(labels):
        return {"loss": score.loss}
    if said.ndim == 1:
        return {"loss": score.loss, "rmse": float(np.sqrt(np.mean((said - labels) ** 2)))}
    made = {"loss": score.loss, "accuracy": accuracy(said, labels)}
    return {**made, "auroc": auroc(said[:, 1], labels)} if said.ndim == 2 and said.shape[1] == 2 else made


def auroc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """The chance that a random case scores above a random control, ties counted half; NaN with one class only.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    cases = labels.astype(bool)
    n1, n0 = int(cases.sum()), int((~cases).sum())
    if not n1 or not n0:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    return float((mean_rank[place][cases].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))
