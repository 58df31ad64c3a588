"""How good predictions are: accuracy and the area under the ROC curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def accuracy(chances: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of examples whose most likely class is the true one.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    return float((chances.argmax(1) == labels).mean())


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
