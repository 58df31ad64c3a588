"""Validation counts of evaluators, which add up over evaluators, and the metrics computed from them.

Classification: correct, actual and predicted examples of each class (the diagonal and the margins of the confusion
matrix), then the sum of losses, which adds up like the counts. Regression: number, sum of squared errors, sum of the
values and of their squares. Survival: number and sum of losses, the negative log likelihoods. A loss that is not a
number is reported as 10^30, because the journal stores finite numbers only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import TypeAlias

Counts: TypeAlias = tuple[float, ...]
"""Validation counts of an evaluator, in the form of this module's description."""


def add_counts(one: Counts, other: Counts) -> Counts:
    """Return the sum of the validation counts of two evaluators.

    >>> add_counts((1, 2), (3, 4))
    (4, 6)
    """
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def from_confusion(matrix: Sequence[Sequence[int]]) -> Counts:
    """Return the validation counts of a confusion matrix: rows are true classes, columns predicted classes.

    >>> from_confusion([[5, 1], [2, 4]])
    (5, 4, 6, 6, 7, 5)
    """
    classes = range(len(matrix))
    correct = [matrix[i][i] for i in classes]
    actual = [sum(matrix[i]) for i in classes]
    predicted = [sum(matrix[i][j] for i in classes) for j in classes]
    return (*correct, *actual, *predicted)


def micro_f1(counts: Counts) -> float:
    """Return the F1 score over all classes from validation counts (Metis, Eq. 3); with one label it is accuracy."""
    correct, actual, predicted = _split_classes(counts)
    true_positives = sum(correct)
    return _ratio(2 * true_positives, sum(actual) + sum(predicted))


def macro_f1(counts: Counts) -> float:
    """Return the unweighted mean of the F1 scores of the classes that occur, from validation counts."""
    scores = [
        _ratio(2 * correct, true + predicted)
        for correct, true, predicted in zip(*_split_classes(counts), strict=True)
        if true + predicted
    ]
    return _ratio(sum(scores), len(scores))


def accuracy(counts: Counts) -> float:
    """Return the fraction of correct predictions from validation counts."""
    correct, actual, _ = _split_classes(counts)
    return _ratio(sum(correct), sum(actual))


def geometric_mean(counts: Counts) -> float:
    """Return the geometric mean of the recalls of the classes, from validation counts; 0 if one is 0."""
    correct, actual, _ = _split_classes(counts)
    recalls = [
        class_correct / class_actual
        for class_correct, class_actual in zip(correct, actual, strict=True)
        if class_actual
    ]
    return math.prod(recalls) ** (1 / len(recalls)) if recalls else 0.0


def mcc(counts: Counts) -> float:
    """Return Matthews' correlation coefficient from validation counts, at least 0 so that no weight is negative."""
    correct, actual, predicted = _split_classes(counts)
    total = sum(actual)
    covariance = sum(correct) * total - sum(t * p for t, p in zip(actual, predicted, strict=True))
    squared_scale = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(t * t for t in actual))
    return max(0.0, covariance / math.sqrt(squared_scale)) if squared_scale > 0 else 0.0


def inverse_mse_score(counts: Counts) -> float:
    """Return 1 / (1 + mean squared error) of a regression, from validation counts."""
    count, squared_errors, _, _ = counts
    return _ratio(1.0, 1.0 + squared_errors / count) if count else 0.0


def r_squared(counts: Counts) -> float:
    """Return the explained variance of a regression, at least 0, from validation counts."""
    count, squared_errors, total, squared_sum = counts
    variation = squared_sum - total * total / count if count else 0.0
    return max(0.0, 1.0 - squared_errors / variation) if variation > 0 else 0.0


def likelihood(counts: Counts) -> float:
    """Return the geometric mean likelihood of the follow-up in a survival model, from validation counts.

    >>> likelihood((2, 0.0)), likelihood((0, 0.0))
    (1.0, 0.0)
    """
    count, loss = counts
    return math.exp(-loss / count) if count else 0.0


def summed_loss(counts: Counts) -> tuple[float, float]:
    """Return the examples of validation counts and their summed loss; 0 examples if the counts have no loss.

    >>> summed_loss((1, 1, 2, 1, 1, 2, 0.9)), summed_loss((4, 2.0, 8.0, 18.0)), summed_loss((1, 1, 2, 1, 1, 2))
    ((3.0, 0.9), (4.0, 2.0), (0.0, 0.0))
    """
    if len(counts) in (len(REGRESSION_SUMS), len(SURVIVAL_SUMS)):
        return float(counts[0]), float(counts[1])
    if len(counts) % 3 != 1:
        return 0.0, 0.0
    return float(sum(_split_classes(counts)[1])), float(counts[-1])


def relative_loss(counts: Counts, *, is_relative: bool = False) -> float | None:
    """Return L/H of a classifier from validation counts: its mean log loss relative to the entropy of the labels.

    H is the loss of a model that predicts the frequency of each class, so 1 is no better than that. If one class only
    was counted, H is the largest entropy, ln(classes).

    Args:
        counts: Sum of the evaluators' counts.
        is_relative: Whether the losses are relative already: a study's evaluators divide by the entropy of their own
            labels, because counts of a rare class are not released.

    >>> relative_loss((0, 2, 2, 2, 0, 4, 4 * math.log(2))), relative_loss((1, 1, 2, 1, 1, 2))
    (1.0, None)
    >>> relative_loss((9, 4, 10, 5, 10, 5, 12.0), is_relative=True)
    0.8
    """
    examples, losses = summed_loss(counts)
    labels = _split_classes(counts)[1]
    if not examples or len(labels) < 2:
        return None
    entropy = -sum(n / examples * math.log(n / examples) for n in labels if n)
    return losses / examples / (1.0 if is_relative else entropy or math.log(len(labels)))


def count_examples(counts: Counts) -> float:
    """Return the number of examples of validation counts.

    >>> count_examples((1, 1, 2, 1, 1, 2)), count_examples((4, 2.0, 8.0, 18.0)), count_examples(())
    (3, 4, 0)
    """
    if not counts:
        return 0
    is_sums = len(counts) in (len(REGRESSION_SUMS), len(SURVIVAL_SUMS))
    return counts[0] if is_sums else sum(_split_classes(counts)[1])


def is_plausible(counts: Counts, declared: Counts = ()) -> bool:
    """Return whether validation counts are integers, not negative, consistent, and within the declared ones.

    Empty counts are plausible: the evaluator abstains.

    >>> is_plausible((1, 1, 2, 1, 1, 2, 0.9)), is_plausible((2, 1, 1, 2, 2, 1))
    (True, False)
    >>> is_plausible((1e15, 0, 1e15, 0, 1e15, 0), (9, 4))
    False
    """
    if not counts:
        return True
    if len(counts) == len(REGRESSION_SUMS):
        return _are_sums_plausible(counts)
    if len(counts) == len(SURVIVAL_SUMS):
        return _is_count(counts[0]) and 0 <= counts[1] < math.inf
    classes, remainder = divmod(len(counts), 3)
    if classes < 2 or remainder > 1 or not all(map(_is_count, counts[: 3 * classes])):
        return False
    correct, actual, predicted = _split_classes(counts)
    is_consistent = all(
        class_correct <= min(class_actual, predicted_count)
        for class_correct, class_actual, predicted_count in zip(correct, actual, predicted, strict=True)
    )
    is_within_declared = not declared or (
        len(declared) <= classes
        and all(class_actual <= limit for class_actual, limit in zip_longest(actual, declared, fillvalue=0))
    )
    return (
        is_consistent
        and is_within_declared
        and sum(actual) == sum(predicted)
        and (not remainder or 0 <= counts[-1] < math.inf)
    )


def _is_count(count: float) -> bool:
    return 0 <= count <= _MAX_EXACT and float(count).is_integer()


def _are_sums_plausible(counts: Counts) -> bool:
    """Return whether validation counts of a regression are possible: by Cauchy-Schwarz (Σv)² ≤ n·Σv²."""
    count, errors, values, squared_sum = counts
    is_finite = 0 <= errors < math.inf and 0 <= squared_sum < math.inf and abs(values) < math.inf
    return (
        _is_count(count)
        and is_finite
        and abs(values) <= math.sqrt(count) * math.sqrt(squared_sum) * (1 + 1e-6) + 1e-6
    )


def combine_counts(evaluations: Sequence[Counts]) -> Counts:
    """Return the sum of several evaluators' validation counts (Metis, Eq. 3).

    >>> combine_counts([(4, 1, 5, 2, 5, 2), (), (30, 10, 30, 10, 30, 10)])
    (34, 11, 35, 12, 35, 12)
    """
    return reduce(add_counts, comparable_counts(evaluations), ())


def comparable_counts(evaluations: Sequence[Counts]) -> list[Counts]:
    """Return the validation counts that add up: counts of another length than most, and empty ones, are dropped.

    One evaluator then cannot spoil the result. Two evaluators have no majority: with different lengths the first counts
    are used, which are those of the model's own learner if it reports any.
    """
    reported = [counts for counts in evaluations if counts]
    if not reported:
        return []
    ((length, _),) = Counter(map(len, reported)).most_common(1)
    return [counts for counts in reported if len(counts) == length]


def cap_largest_counts(evaluations: Sequence[Counts]) -> tuple[list[Counts], bool]:
    """Limit the validation counts of the largest of three or more evaluators to twice the sum of the others.

    Returns:
        The comparable counts, and whether the largest were reduced.

    >>> cap_largest_counts([(4, 1, 5, 2, 5, 2), (1, 1, 2, 1, 2, 1), (30, 10, 30, 10, 30, 10)])
    ([(4, 1, 5, 2, 5, 2), (1, 1, 2, 1, 2, 1), (15.0, 5.0, 15.0, 5.0, 15.0, 5.0)], True)
    """
    capped = comparable_counts(evaluations)
    if len(capped) < 3:
        return capped, False
    sizes = [count_examples(counts) for counts in capped]
    largest = max(range(len(capped)), key=sizes.__getitem__)
    limit = _MAX_INFLUENCE * (sum(sizes) - sizes[largest])
    if sizes[largest] <= limit:
        return capped, False
    capped[largest] = tuple(count * limit / sizes[largest] for count in capped[largest])
    return capped, True


_MAX_EXACT = 2**53
_MAX_INFLUENCE = 2  # limit of one evaluator's examples, relative to the sum of the others
REGRESSION_SUMS = ("count", "squared errors", "sum", "sum of squares")
REGRESSION_METRICS = ("inverse_mse", "r_squared")
SURVIVAL_SUMS = ("count", "losses")
SURVIVAL_METRICS = ("likelihood",)

METRICS: Mapping[str, Callable[[Counts], float]] = {
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
    "accuracy": accuracy,
    "geometric_mean": geometric_mean,
    "mcc": mcc,
    "inverse_mse": inverse_mse_score,
    "r_squared": r_squared,
    "likelihood": likelihood,
}


def task_of(metric: str) -> str:
    """Return the task of a validation metric: `classification`, `regression` or `survival`.

    >>> task_of("mcc"), task_of("inverse_mse"), task_of("likelihood")
    ('classification', 'regression', 'survival')
    """
    return (
        "regression"
        if metric in REGRESSION_METRICS
        else "survival"
        if metric in SURVIVAL_METRICS
        else "classification"
    )


def fits_metric(metric: str, counts: Counts) -> bool:
    """Return whether validation counts have the length that a metric requires; empty counts fit every metric.

    >>> counts = (1, 1, 2, 1, 1, 2)
    >>> fits_metric("mcc", counts), fits_metric("inverse_mse", counts), fits_metric("mcc", (9, 0.5))
    (True, False, False)
    """
    lengths = {"regression": len(REGRESSION_SUMS), "survival": len(SURVIVAL_SUMS)}
    length = lengths.get(task_of(metric))
    return not counts or (len(counts) not in lengths.values() if length is None else len(counts) == length)


def _split_classes(counts: Counts) -> tuple[Counts, Counts, Counts]:
    classes = len(counts) // 3
    return counts[:classes], counts[classes : 2 * classes], counts[2 * classes : 3 * classes]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
