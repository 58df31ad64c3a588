"""What evaluators count, and how good a model is by it.

An evaluator sends sums that can be added over all evaluators, never an example. For classes: how many of each class
were right, how many there were, and how often each class was predicted (three numbers a class: the diagonal and the
margins of the confusion matrix, which is all that the measures here need), and the sum of their losses. For values: how
many, the sum of squared errors, the sum of the values and of their squares. For times until something happens: how
many, and the sum of their losses, which are minus the logarithm of the chance that a model gave to what was seen.

By the same losses a `driven` learning rate comes down when the distributed validation loss does not (Metis, future
work). A round's loss is the mean over all models that evaluators scored; in asynchronous pacing so many commits as
there are learners count as a round. When it has not come below its best for `period` rounds, the rate of every task
given out from then on is multiplied by `decay` once more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest
from typing import TypeAlias

Counts: TypeAlias = tuple[float, ...]
"""What an evaluator counted, in a form that adds up over evaluators (see `control.score`)."""


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


def likelihood(counts: Counts) -> float:
    """For times: the chance that a model gave to what was seen of a person, by the mean of its logarithm.

    >>> likelihood((2, 0.0)), likelihood((0, 0.0))
    (1.0, 0.0)
    """
    number, loss = counts
    return math.exp(-loss / number) if number else 0.0


def losses(counts: Counts) -> tuple[float, float]:
    """On how many examples evaluators found which summed loss; 0 examples if they did not say.

    >>> losses((1, 1, 2, 1, 1, 2, 0.9)), losses((4, 2.0, 8.0, 18.0)), losses((1, 1, 2, 1, 1, 2))
    ((3.0, 0.9), (4.0, 2.0), (0.0, 0.0))
    """
    if len(counts) in (len(VALUE_SUMS), len(TIME_SUMS)):
        return float(counts[0]), float(counts[1])
    if len(counts) % 3 != 1:
        return 0.0, 0.0
    return float(sum(_parts(counts)[1])), float(counts[-1])


def total(counts: Counts) -> float:
    """On how many examples counts rest.

    >>> total((1, 1, 2, 1, 1, 2)), total((4, 2.0, 8.0, 18.0)), total(())
    (3, 4, 0)
    """
    if not counts:
        return 0
    summed = len(counts) in (len(VALUE_SUMS), len(TIME_SUMS))
    return counts[0] if summed else sum(_parts(counts)[1])


def sound(counts: Counts, declared: Counts = ()) -> bool:
    """Whether an evaluator can have counted this: whole, not negative, consistent, not more than it declared.

    No counts are sound: they are those of an evaluator that abstains.

    >>> sound((1, 1, 2, 1, 1, 2, 0.9)), sound((2, 1, 1, 2, 2, 1)), sound((1e15, 0, 1e15, 0, 1e15, 0), (9, 4))
    (True, False, False)
    """
    if not counts:
        return True
    if len(counts) == len(VALUE_SUMS):
        return _sound_sums(counts)
    if len(counts) == len(TIME_SUMS):
        return _whole(counts[0]) and 0 <= counts[1] < math.inf
    classes, rest = divmod(len(counts), 3)
    if classes < 2 or rest > 1 or not all(map(_whole, counts[: 3 * classes])):
        return False
    right, actual, predicted = _parts(counts)
    fits = all(hit <= min(true, said) for hit, true, said in zip(right, actual, predicted, strict=True))
    within = not declared or (
        len(declared) <= classes
        and all(true <= most for true, most in zip_longest(actual, declared, fillvalue=0))
    )
    return fits and within and sum(actual) == sum(predicted) and (not rest or 0 <= counts[-1] < math.inf)


def _whole(count: float) -> bool:
    return 0 <= count <= _EXACT and float(count).is_integer()


def _sound_sums(counts: Counts) -> bool:
    """Sums of errors and values: by Cauchy and Schwarz the square of a sum is at most so many times the squares."""
    number, errors, values, squares = counts
    positive = 0 <= errors < math.inf and 0 <= squares < math.inf and abs(values) < math.inf
    return (
        _whole(number)
        and positive
        and abs(values) <= math.sqrt(number) * math.sqrt(squares) * (1 + 1e-6) + 1e-6
    )


def combined(heard: Sequence[Counts]) -> Counts:
    """The counts of several evaluators together, none of whom counts for more than twice all the others.

    Counts of another form than most are left out: whoever sends them cannot spoil what the others say. With two there
    is no majority: of two forms the first counts, which is that of the model's own learner if it says something, and
    of one form both count as they are.

    >>> combined([(4, 1, 5, 2, 5, 2), (1, 1, 2, 1, 2, 1), (30, 10, 30, 10, 30, 10)])
    (20.0, 7.0, 22.0, 8.0, 22.0, 8.0)
    """
    told = [counts for counts in heard if counts]
    if not told:
        return ()
    ((form, _),) = Counter(map(len, told)).most_common(1)
    kept = [counts for counts in told if len(counts) == form]
    sizes = [total(counts) for counts in kept]
    largest = max(range(len(kept)), key=sizes.__getitem__)
    most = _SAY * (sum(sizes) - sizes[largest])
    if len(kept) > 2 and sizes[largest] > most:
        kept[largest] = tuple(count * most / sizes[largest] for count in kept[largest])
    return reduce(add, kept)


_EXACT = 2**53
_SAY = 2  # how many times all the others together one evaluator may count
VALUE_SUMS = ("number", "squared errors", "sum", "sum of squares")
VALUE_MEASURES = ("closeness", "r_squared")
TIME_SUMS = ("number", "losses")
TIME_MEASURES = ("likelihood",)

MEASURES: Mapping[str, Callable[[Counts], float]] = {
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
    "accuracy": accuracy,
    "geometric_mean": geometric_mean,
    "mcc": mcc,
    "closeness": closeness,
    "r_squared": r_squared,
    "likelihood": likelihood,
}


def task_of(measure: str) -> str:
    """What a measure judges: `classes`, a `value`, or the `time` until something happens.

    >>> task_of("mcc"), task_of("closeness"), task_of("likelihood")
    ('classes', 'value', 'time')
    """
    return "value" if measure in VALUE_MEASURES else "time" if measure in TIME_MEASURES else "classes"


def fits(measure: str, counts: Counts) -> bool:
    """Whether counts have the form that a measure is made of; nothing has every form.

    >>> fits("mcc", (1, 1, 2, 1, 1, 2)), fits("closeness", (1, 1, 2, 1, 1, 2)), fits("mcc", (9, 0.5))
    (True, False, False)
    """
    forms = {"value": len(VALUE_SUMS), "time": len(TIME_SUMS)}
    form = forms.get(task_of(measure))
    return not counts or (len(counts) not in forms.values() if form is None else len(counts) == form)


def _parts(counts: Counts) -> tuple[Counts, Counts, Counts]:
    classes = len(counts) // 3
    return counts[:classes], counts[classes : 2 * classes], counts[2 * classes : 3 * classes]


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How the distributed validation loss has come along.

    Attributes:
        models: how many models of the present round have been scored.
        examples, total: on how many examples, and the sum of their losses.
        best: the lowest loss of a round so far.
        stalls: how many rounds in a row did not come below it.
        decays: how often the rate has come down.
    """

    models: int = 0
    examples: float = 0.0
    total: float = 0.0
    best: float = float("inf")
    stalls: int = 0
    decays: int = 0


def hear(progress: Progress, scores: Iterable[Counts]) -> Progress:
    """Add what evaluators said of models that were committed; what tells no loss changes nothing."""
    for counts in scores:
        examples, total = losses(counts)
        if examples:
            progress = replace(
                progress,
                models=progress.models + 1,
                examples=progress.examples + examples,
                total=progress.total + total,
            )
    return progress


def judge(progress: Progress, period: int) -> Progress:
    """Close a round: remember its loss if it is the best, or let the rate come down after too many that were not.

    >>> worse = judge(judge(hear(Progress(), [(1, 1, 2, 1, 1, 2, 0.9)]), 1), 1)
    >>> (worse.best, worse.decays)
    (0.3, 0)
    >>> judge(hear(worse, [(1, 1, 2, 1, 1, 2, 1.2)]), 1).decays
    1
    """
    if not progress.models:
        return progress
    loss = progress.total / progress.examples
    fresh = Progress(best=min(loss, progress.best), decays=progress.decays)
    if loss < progress.best:
        return fresh
    if progress.stalls + 1 < period:
        return replace(fresh, stalls=progress.stalls + 1)
    return replace(fresh, decays=progress.decays + 1)
