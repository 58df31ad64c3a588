"""Validation counts and metrics of predictions with known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.metrics.counts import Counts


@dataclass(frozen=True, slots=True)
class ModelScore:
    """Mean loss and predictions of a model on examples."""

    loss: float
    predictions: NDArray[Any]


_MAX_LOSS = (
    1e30  # reported instead of a loss that is not finite, because the journal stores finite numbers only
)


def label_counts(labels: NDArray[Any]) -> Counts:
    """Return the number of examples of each class in the labels; empty for labels that are values.

    >>> label_counts(np.array([0, 2, 2])), label_counts(np.array([0.5]))
    ((1, 0, 2), ())
    """
    if labels.dtype.kind not in "iu" or not labels.size or labels.min() < 0:
        return ()
    return tuple(int(n) for n in np.bincount(labels.reshape(-1)))


def is_survival_label(labels: NDArray[Any]) -> bool:
    """Return whether labels are survival labels: two columns, time and event.

    >>> [is_survival_label(np.array(labels)) for labels in ([[0.5, 1.0]], [0.5], [[1, 2]])]
    [True, False, False]
    """
    return labels.ndim == 2 and labels.shape[1] == 2 and labels.dtype.kind == "f"


def validation_counts(predictions: NDArray[Any], labels: NDArray[Any], loss: float | None = None) -> Counts:
    """Return the validation counts of predictions: by class, sums of errors or of losses (`metrics.counts`).

    Args:
        predictions: Probabilities of each class, values, or event probabilities.
        labels: True labels.
        loss: Mean loss; if given, the counts of classes end with its sum.

    >>> validation_counts(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), np.array([0, 1, 1]), loss=0.5)
    (1, 1, 1, 2, 2, 1, 1.5)
    """
    if is_survival_label(labels):
        return len(labels), float(len(labels) * (loss or 0.0) if abs(loss or 0.0) < _MAX_LOSS else _MAX_LOSS)
    if predictions.ndim == 1:
        errors, values = predictions - labels, labels.astype(np.float64)
        sums = (len(labels), np.dot(errors, errors), values.sum(), np.dot(values, values))
        return tuple(float(value) for value in sums)
    classes = predictions.shape[1]
    if labels.min() < 0 or labels.max() >= classes:
        raise SettingsError(
            "a label is not one of the model's classes",
            where="labels",
            remedy=f"number the classes from 0 to {classes - 1}",
        )
    predicted = predictions.argmax(1)
    correct = np.bincount(labels[predicted == labels].reshape(-1), minlength=classes)
    actual = np.bincount(labels.reshape(-1), minlength=classes)
    counts = tuple(
        int(n) for n in (*correct, *actual, *np.bincount(predicted.reshape(-1), minlength=classes))
    )
    if loss is None:
        return counts
    return (*counts, float(labels.size * loss if abs(loss) < _MAX_LOSS else _MAX_LOSS))


def accuracy(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the fraction of predictions whose most probable class is the label.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    return float((probabilities.argmax(1) == labels).mean())


def score_metrics(score: ModelScore, labels: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of predictions: loss, and accuracy and AUROC of classes, or the RMSE of values.

    Survival models have the loss only; concordance needs pairs of subjects (see `metrics.survival`).

    >>> score_metrics(ModelScore(0.5, np.array([[0.9, 0.1], [0.4, 0.6]])), np.array([0, 1]))
    {'loss': 0.5, 'accuracy': 1.0, 'auroc': 1.0}
    """
    predictions = score.predictions
    if is_survival_label(labels):
        return {"loss": score.loss}
    if predictions.ndim == 1:
        return {"loss": score.loss, "rmse": float(np.sqrt(np.mean((predictions - labels) ** 2)))}
    metrics = {"loss": score.loss, "accuracy": accuracy(predictions, labels)}
    return (
        {**metrics, "auroc": auroc(predictions[:, 1], labels)}
        if predictions.ndim == 2 and predictions.shape[1] == 2
        else metrics
    )


def auroc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the AUROC of single predictions and labels: a case scores above a control, ties count one half.

    NaN with one class only.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    cases = labels.astype(bool)
    n1, n0 = int(cases.sum()), int((~cases).sum())
    if not n1 or not n0:
        return float("nan")
    _, rank_index, count = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    return float((mean_rank[rank_index][cases].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))
