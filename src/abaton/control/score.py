"""What evaluators count, and how good a model is by it.

An evaluator sends sums that can be added over all evaluators, never an example. For classes: how many of each class
were right, how many there were, and how often each class was predicted (three numbers a class: the diagonal and the
margins of the confusion matrix, which is all that the measures here need), and the sum of their losses. For values: how
many, the sum of squared errors, the sum of the values and of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from abaton.control.messages import Counts


def add(one: Counts, other: Counts) -> Counts:
    """The counts of two evaluators together.

    >>> add((1, 2), (3, 4))
    (4, 6)
    """
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def from_confusion(matrix: Sequence[Sequence[int]]) -> Counts:
    """The counts of a confusion matrix with a row for each true class and a column for each predicted one.

    >>> from_confusion([[5, 1], [2, 4]])
    (5, 4, 6, 6, 7, 5)
    """
    classes = range(len(matrix))
    right = [matrix[i][i] for i in classes]
    actual = [sum(matrix[i]) for i in classes]
    predicted = [sum(matrix[i][j] for i in classes) for j in classes]
    return (*right, *actual, *predicted)


def micro_f1(counts: Counts) -> float:
    """F1 over all classes together (Metis, Eq. 3); with one label for each example it equals accuracy."""
    right, actual, predicted = _parts(counts)
    hits = sum(right)
    return _ratio(2 * hits, sum(actual) + sum(predicted))


def macro_f1(counts: Counts) -> float:
    """The mean of the classes' F1: every class counts the same, however rare; absent classes do not count."""
    scores = [
        _ratio(2 * hit, true + said) for hit, true, said in zip(*_parts(counts), strict=True) if true + said
    ]
    return _ratio(sum(scores), len(scores))


def accuracy(counts: Counts) -> float:
    """The share of examples that were right."""
    right, actual, _ = _parts(counts)
    return _ratio(sum(right), sum(actual))


def geometric_mean(counts: Counts) -> float:
    """The geometric mean of the share found of each class; 0 as soon as one class is never found."""
    right, actual, _ = _parts(counts)
    found = [hit / true for hit, true in zip(right, actual, strict=True) if true]
    return math.prod(found) ** (1 / len(found)) if found else 0.0


def mcc(counts: Counts) -> float:
    """Matthews' correlation for any number of classes; no better than chance is 0, so that no weight is negative."""
    right, actual, predicted = _parts(counts)
    total = sum(actual)
    above = sum(right) * total - sum(t * p for t, p in zip(actual, predicted, strict=True))
    below = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(t * t for t in actual))
    return max(0.0, above / math.sqrt(below)) if below > 0 else 0.0


def closeness(counts: Counts) -> float:
    """For values: 1 / (1 + mean squared error)."""
    number, squared_errors, _, _ = counts
    return _ratio(1.0, 1.0 + squared_errors / number) if number else 0.0


def r_squared(counts: Counts) -> float:
    """For values: the share of the variance that is explained; worse than the mean counts as 0."""
    number, squared_errors, total, squares = counts
    spread = squares - total * total / number if number else 0.0
    return max(0.0, 1.0 - squared_errors / spread) if spread > 0 else 0.0


def losses(counts: Counts) -> tuple[float, float]:
    """On how many examples evaluators found which summed loss; 0 examples if they did not say.

    >>> losses((1, 1, 2, 1, 1, 2, 0.9)), losses((4, 2.0, 8.0, 18.0)), losses((1, 1, 2, 1, 1, 2))
    ((3.0, 0.9), (4.0, 2.0), (0.0, 0.0))
    """
    if len(counts) % 3 != 1:
        return 0.0, 0.0
    if len(counts) == len(VALUE_SUMS):
        return float(counts[0]), float(counts[1])
    return float(sum(_parts(counts)[1])), float(counts[-1])


VALUE_SUMS = ("number", "squared errors", "sum", "sum of squares")
VALUE_MEASURES = ("closeness", "r_squared")

MEASURES: Mapping[str, Callable[[Counts], float]] = {
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
    "accuracy": accuracy,
    "geometric_mean": geometric_mean,
    "mcc": mcc,
    "closeness": closeness,
    "r_squared": r_squared,
}


def _parts(counts: Counts) -> tuple[Counts, Counts, Counts]:
    classes = len(counts) // 3
    return counts[:classes], counts[classes : 2 * classes], counts[2 * classes : 3 * classes]


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
