"""Allocation of examples: exact counts per learner and class for the requested sizes and label skew.

The order is that of the original experiments: classes are allocated from the smallest learner upwards, and the
remainder of each class goes to the largest. Where a learner stays short, examples are exchanged along augmenting
paths (Ford and Fulkerson), which find an allocation whenever the selected classes allow one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.lab.skew import Counts, LabelSkew

Rows = NDArray[np.int64]

_STARTS = 4  # initial class selections for each minimum fraction
_REPAIRS = 40  # improvements of a selection before the next one is tried
# Minimum count of a class at a learner, as a fraction of its count under proportional allocation. The fractions are
# tried in order; the last one requires a single example.
_MIN_FRACTIONS = (0.5, 0.25, 0.1, 0.0)


def allocate_classes(amounts: Counts, form: LabelSkew, supply: Counts, rng: np.random.Generator) -> Counts:
    """Allocate counts [learner, class] for the learners' sizes, the label skew and the examples of each class."""
    if form.alpha is not None:
        return fill_dirichlet(amounts, form.alpha, supply, rng)
    if not form.class_counts:
        return fill_alike(amounts, supply)
    largest_supply = np.cumsum(np.sort(supply)[::-1])
    for k, class_count in enumerate(form.class_counts):
        where = f"learner {k + 1} of {len(amounts)}"
        if amounts[k] < class_count:
            raise SettingsError(
                f"{amounts[k]} examples are too few for {class_count} classes",
                where=where,
                remedy="give it fewer classes, or use fewer learners or more data",
            )
        if largest_supply[class_count - 1] < amounts[k]:
            raise SettingsError(
                f"no {class_count} classes of the data have the {amounts[k]} examples that this learner needs",
                where=where,
                remedy="give the largest learners more classes, like Non-IID(8x1,4x1,3x8), or use fewer rows",
            )
    counts = fill_class_counts(amounts, form.class_counts, supply, rng)
    if counts is None:
        raise SettingsError(
            f"no allocation of {amounts.sum()} of {supply.sum()} rows as {form} was found",
            where="partition",
            remedy="give the largest learners more classes, or use fewer rows",
        )
    return counts


def fill_class_counts(
    sizes: Counts, class_counts: tuple[int, ...], supply: Counts, rng: np.random.Generator
) -> Counts | None:
    """Allocate counts so that learner k has exactly `class_counts[k]` classes; return None if none was found."""
    for min_fraction in _MIN_FRACTIONS:
        for start in range(_STARTS):
            has_class = _select_classes(sizes, class_counts, supply, rng, start)
            for _ in range(_REPAIRS):
                minimum = _minimum_counts(sizes, has_class, supply, min_fraction)
                spare = supply - minimum.sum(0)
                if spare.min() < 0:
                    stuck = np.flatnonzero(has_class[:, spare.argmin()])
                else:
                    counts, stuck = _fill(sizes, has_class, minimum, supply, supply.astype(np.float64))
                    spare = supply - counts.sum(0)
                if not len(stuck):
                    return counts
                if not _swap_class(has_class, stuck, spare, rng):
                    break
    return None


def fill_alike(sizes: Counts, supply: Counts) -> Counts:
    """Allocate counts so that every learner has the class proportions of the data set.

    Every learner has every class, as far as its size and the number of examples of the class allow it.
    """
    able = sizes >= len(supply)
    minimum = np.outer(able, supply >= able.sum()).astype(np.int64)
    counts, _ = _fill(sizes, np.ones(minimum.shape, dtype=bool), minimum, supply, None)
    return counts


def fill_dirichlet(sizes: Counts, alpha: float, supply: Counts, rng: np.random.Generator) -> Counts:
    """Allocate counts sampled from a Dirichlet distribution around the class proportions of the data set.

    A class without remaining examples is replaced by the learner's next largest class, and finally by any class
    with examples.
    """
    counts = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    remaining = supply.copy()
    for k in range(len(sizes) - 1, -1, -1):
        fractions = rng.dirichlet(np.maximum(alpha * len(supply) * supply / supply.sum(), 1e-6))
        assigned = allocate_proportionally(int(sizes[k]), fractions, remaining)
        assigned += allocate_proportionally(
            int(sizes[k] - assigned.sum()), np.ones(len(supply)), remaining - assigned
        )
        counts[k] = assigned
        remaining -= assigned
    return counts


def allocate_proportionally(amount: int, weights: NDArray[np.float64], capacities: Counts) -> Counts:
    """Allocate an amount in proportion to weights, as integers within the capacities.

    The result sums to the amount, or to the total capacity of the entries with a weight if that is smaller.

    >>> allocate_proportionally(10, np.array([1.0, 1.0, 1.0]), np.array([1, 9, 9])).tolist()
    [1, 5, 4]
    """
    ideal = np.zeros(len(capacities))
    while True:
        open_weights = np.where(capacities - ideal > 1e-9, weights, 0.0)
        missing = amount - ideal.sum()
        if missing <= 1e-6 or not open_weights.any():
            break
        ideal += np.minimum(missing * (open_weights / open_weights.sum()), capacities - ideal)
    allocated = np.floor(ideal + 1e-9).astype(np.int64)
    # The remainder goes to the largest fractional parts, then to the largest remaining capacities.
    remainder = round(ideal.sum()) - int(allocated.sum())
    order = np.lexsort((allocated - capacities, np.round(allocated - ideal, 9)))
    allocated[order[:remainder]] += 1
    return allocated


def _select_classes(
    sizes: Counts, class_counts: tuple[int, ...], supply: Counts, rng: np.random.Generator, start: int
) -> NDArray[np.bool_]:
    """Select the classes to allocate to each learner by remaining examples; starts differ in order and scaling."""
    has_class = np.zeros((len(sizes), len(supply)), dtype=bool)
    remaining = supply.astype(np.float64)
    scale = supply.astype(np.float64) if start < 2 else np.ones(len(supply))
    upwards = range(len(sizes) - 1, -1, -1)
    for k in reversed(upwards) if start % 2 else upwards:
        order = np.lexsort((rng.random(len(supply)), -remaining / scale))
        classes_of_learner = order[: class_counts[k]]
        has_class[k, classes_of_learner] = True
        remaining[classes_of_learner] -= (
            sizes[k] * supply[classes_of_learner] / supply[classes_of_learner].sum()
        )
    return has_class


def _minimum_counts(
    sizes: Counts, has_class: NDArray[np.bool_], supply: Counts, min_fraction: float
) -> Counts:
    class_supply = has_class * supply
    proportional = min_fraction * sizes[:, None] * class_supply / class_supply.sum(1, keepdims=True)
    return np.where(has_class, np.maximum(proportional.astype(np.int64), 1), 0)


def _swap_class(has_class: NDArray[np.bool_], stuck: Rows, spare: Counts, rng: np.random.Generator) -> bool:
    """Replace an allocated class of a stuck learner by one with remaining examples; return whether it did."""
    for k in rng.permutation(stuck):
        candidates = np.where(has_class[k], 0, spare)
        new_class = int(candidates.argmax())
        if candidates[new_class] > 0:
            # The learner loses the exhausted class that most learners have.
            popularity = np.where(has_class[k] & (spare <= 0), has_class.sum(0) + rng.random(len(spare)), 0)
            exhausted = popularity.argmax() if popularity.any() else rng.choice(np.flatnonzero(has_class[k]))
            has_class[k, int(exhausted)] = False
            has_class[k, new_class] = True
            return True
    return False


def _fill(
    sizes: Counts,
    has_class: NDArray[np.bool_],
    minimum: Counts,
    supply: Counts,
    weights: NDArray[np.float64] | None,
) -> tuple[Counts, Rows]:
    """Fill an allocation; return the counts, and the learners that compete for too few examples."""
    counts = minimum.copy()
    remaining = supply - counts.sum(0)
    for k in range(len(sizes) - 1, -1, -1):
        # Without weights, remaining examples are used, which keeps the class proportions of the data set.
        class_weights = remaining.astype(np.float64) if weights is None else weights
        added = allocate_proportionally(
            int(sizes[k] - counts[k].sum()), np.where(has_class[k], class_weights, 0.0), remaining
        )
        counts[k] += added
        remaining -= added
    for short in np.flatnonzero(counts.sum(1) < sizes).tolist():
        while counts[short].sum() < sizes[short]:
            stuck = _exchange(short, sizes, has_class, minimum, counts, remaining)
            if len(stuck):
                return counts, stuck
    return counts, np.empty(0, dtype=np.int64)


def _exchange(
    short: int,
    sizes: Counts,
    has_class: NDArray[np.bool_],
    minimum: Counts,
    counts: Counts,
    remaining: Counts,
) -> Rows:
    """Allocate more examples to a learner along one augmenting path.

    Without such a path, return the learners that share the classes of the short one.
    """
    learners, classes = has_class.shape
    taker = np.full(classes, -1)  # learner that takes from each class
    giver = np.full(learners, -1)  # class that each learner gives from
    visited = np.zeros(learners, dtype=bool)
    visited[short] = True
    queue = [short]
    for k in queue:
        reachable = np.flatnonzero(has_class[k] & (taker < 0))
        taker[reachable] = k
        available = reachable[remaining[reachable] > 0]
        if len(available):
            _shift(
                int(available[np.argmax(remaining[available])]),
                short,
                sizes,
                taker,
                giver,
                minimum,
                counts,
                remaining,
            )
            return np.empty(0, dtype=np.int64)
        for j in reachable.tolist():
            givers = np.flatnonzero((counts[:, j] > minimum[:, j]) & ~visited)
            visited[givers] = True
            giver[givers] = j
            queue += givers.tolist()
    return np.flatnonzero(visited)


def _shift(
    end: int,
    short: int,
    sizes: Counts,
    taker: NDArray[np.int64],
    giver: NDArray[np.int64],
    minimum: Counts,
    counts: Counts,
    remaining: Counts,
) -> None:
    path: list[
        tuple[int, int]
    ] = []  # (learner, class it takes from), from the last class to the short learner
    amount = min(int(sizes[short] - counts[short].sum()), int(remaining[end]))
    j = end
    while True:
        k = int(taker[j])
        path.append((k, j))
        if k == short:
            break
        j = int(giver[k])
        amount = min(amount, int(counts[k, j] - minimum[k, j]))
    remaining[end] -= amount
    for k, j in path:
        counts[k, j] += amount
        if k != short:
            counts[k, int(giver[k])] -= amount
