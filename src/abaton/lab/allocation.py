"""How many examples of each class each learner gets: exactly the sizes and classes that were asked for, or not at all.

The order is that of the original experiments: classes are filled from the smallest learner upwards, and what is left of
each class goes to the largest. Where that leaves a learner short, examples are exchanged along augmenting paths
(Ford and Fulkerson), which finds a filling whenever the chosen classes allow one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.lab.skew import ClassForm, Counts

Rows = NDArray[np.int64]

_STARTS = 4  # ways of choosing classes at first, for each of the floors
_REPAIRS = 40  # how often a choice is improved before another one is tried
# A class that a learner holds should be more than a token: of what an even split would give, at least this share,
# or, where the data does not allow it, less, and at last a single example.
_FLOORS = (0.5, 0.25, 0.1, 0.0)


def fill(amounts: Counts, form: ClassForm, supply: Counts, rng: np.random.Generator) -> Counts:
    """Counts [learner, class] from the learners' sizes, the class distribution and the examples of each class."""
    if form.alpha is not None:
        return fill_drawn(amounts, form.alpha, supply, rng)
    if not form.held:
        return fill_alike(amounts, supply)
    most = np.cumsum(np.sort(supply)[::-1])
    for k, held in enumerate(form.held):
        where = f"learner {k + 1} of {len(amounts)}"
        if amounts[k] < held:
            raise SettingsError(
                f"{amounts[k]} examples are too few to hold {held} classes",
                where=where,
                remedy="give it fewer classes, or use fewer learners or more data",
            )
        if most[held - 1] < amounts[k]:
            raise SettingsError(
                f"no {held} classes of the data have the {amounts[k]} examples it should hold",
                where=where,
                remedy="give the largest learners more classes, like Non-IID(8x1,4x1,3x8), or use fewer rows",
            )
    counts = fill_held(amounts, form.held, supply, rng)
    if counts is None:
        raise SettingsError(
            f"found no way to deal {amounts.sum()} of {supply.sum()} rows as {form}",
            where="partition",
            remedy="give the largest learners more classes, or use fewer rows",
        )
    return counts


def fill_held(
    sizes: Counts, held: tuple[int, ...], supply: Counts, rng: np.random.Generator
) -> Counts | None:
    """Counts [learner, class] where learner k holds exactly `held[k]` classes; None if no way was found."""
    for floor in _FLOORS:
        for start in range(_STARTS):
            holds = _choose(sizes, held, supply, rng, start)
            for _ in range(_REPAIRS):
                least = _least(sizes, holds, supply, floor)
                spare = supply - least.sum(0)
                if spare.min() < 0:
                    stuck = np.flatnonzero(holds[:, spare.argmin()])
                else:
                    counts, stuck = _fill(sizes, holds, least, supply, supply.astype(np.float64))
                    spare = supply - counts.sum(0)
                if not len(stuck):
                    return counts
                if not _swap(holds, stuck, spare, rng):
                    break
    return None


def fill_alike(sizes: Counts, supply: Counts) -> Counts:
    """Counts where every learner has the classes in the proportion of the whole.

    Every learner holds every class, as far as its size and the number of examples of the class allow it.
    """
    able = sizes >= len(supply)
    least = np.outer(able, supply >= able.sum()).astype(np.int64)
    counts, _ = _fill(sizes, np.ones(least.shape, dtype=bool), least, supply, None)
    return counts


def fill_drawn(sizes: Counts, alpha: float, supply: Counts, rng: np.random.Generator) -> Counts:
    """Counts where every learner's classes are drawn from a Dirichlet law around the proportions of the whole.

    A class that is used up is replaced by what the learner drew next most of, and at last by whatever is there.
    """
    counts = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    left = supply.copy()
    for k in range(len(sizes) - 1, -1, -1):
        drawn = rng.dirichlet(np.maximum(alpha * len(supply) * supply / supply.sum(), 1e-6))
        got = spread(int(sizes[k]), drawn, left)
        got += spread(int(sizes[k] - got.sum()), np.ones(len(supply)), left - got)
        counts[k] = got
        left -= got
    return counts


def spread(amount: int, weights: NDArray[np.float64], room: Counts) -> Counts:
    """Whole numbers in proportion to weights, none above its room; as much of the amount as there is room for.

    >>> spread(10, np.array([1.0, 1.0, 1.0]), np.array([1, 9, 9])).tolist()
    [1, 5, 4]
    """
    ideal = np.zeros(len(room))
    while True:
        share = np.where(room - ideal > 1e-9, weights, 0.0)
        need = amount - ideal.sum()
        if need <= 1e-6 or not share.any():
            break
        ideal += np.minimum(need * (share / share.sum()), room - ideal)
    got = np.floor(ideal + 1e-9).astype(np.int64)
    # What rounding down left over: to the largest remainders, then to where most is left.
    left = round(ideal.sum()) - int(got.sum())
    order = np.lexsort((got - room, np.round(got - ideal, 9)))
    got[order[:left]] += 1
    return got


def _choose(
    sizes: Counts, held: tuple[int, ...], supply: Counts, rng: np.random.Generator, start: int
) -> NDArray[np.bool_]:
    """Each learner takes the classes of which most is left; the starts differ in who chooses first, and by what."""
    holds = np.zeros((len(sizes), len(supply)), dtype=bool)
    left = supply.astype(np.float64)
    scale = supply.astype(np.float64) if start < 2 else np.ones(len(supply))
    upwards = range(len(sizes) - 1, -1, -1)
    for k in reversed(upwards) if start % 2 else upwards:
        order = np.lexsort((rng.random(len(supply)), -left / scale))
        mine = order[: held[k]]
        holds[k, mine] = True
        left[mine] -= sizes[k] * supply[mine] / supply[mine].sum()
    return holds


def _least(sizes: Counts, holds: NDArray[np.bool_], supply: Counts, floor: float) -> Counts:
    claims = holds * supply
    even = floor * sizes[:, None] * claims / claims.sum(1, keepdims=True)
    return np.where(holds, np.maximum(even.astype(np.int64), 1), 0)


def _swap(holds: NDArray[np.bool_], stuck: Rows, spare: Counts, rng: np.random.Generator) -> bool:
    """One of the learners that compete for too little takes a class of which something is left instead."""
    for k in rng.permutation(stuck):
        others = np.where(holds[k], 0, spare)
        new = int(others.argmax())
        if others[new] > 0:
            # It gives up the class that it can spare best: the one that most others hold, too.
            crowd = np.where(holds[k] & (spare <= 0), holds.sum(0) + rng.random(len(spare)), 0)
            holds[k, int(crowd.argmax()) if crowd.any() else int(rng.choice(np.flatnonzero(holds[k])))] = (
                False
            )
            holds[k, new] = True
            return True
    return False


def _fill(
    sizes: Counts,
    holds: NDArray[np.bool_],
    least: Counts,
    supply: Counts,
    weights: NDArray[np.float64] | None,
) -> tuple[Counts, Rows]:
    """Counts, and the learners among whom one stays short however they exchange; none of them if all is well."""
    counts = least.copy()
    left = supply - counts.sum(0)
    for k in range(len(sizes) - 1, -1, -1):
        # Without fixed weights the learner follows what is left, which keeps the proportions of the whole.
        claim = left.astype(np.float64) if weights is None else weights
        got = spread(int(sizes[k] - counts[k].sum()), np.where(holds[k], claim, 0.0), left)
        counts[k] += got
        left -= got
    for short in np.flatnonzero(counts.sum(1) < sizes).tolist():
        while counts[short].sum() < sizes[short]:
            stuck = _exchange(short, sizes, holds, least, counts, left)
            if len(stuck):
                return counts, stuck
    return counts, np.empty(0, dtype=np.int64)


def _exchange(
    short: int, sizes: Counts, holds: NDArray[np.bool_], least: Counts, counts: Counts, left: Counts
) -> Rows:
    """Give a learner more by one augmenting path: it takes from a class, whose holder takes from another, ...

    Without such a path the result names the learners that share what the short one could take from.
    """
    learners, classes = holds.shape
    taker = np.full(classes, -1)  # the learner that would take from this class
    giver = np.full(learners, -1)  # the class that this learner would give from
    seen = np.zeros(learners, dtype=bool)
    seen[short] = True
    queue = [short]
    for k in queue:
        new = np.flatnonzero(holds[k] & (taker < 0))
        taker[new] = k
        rich = new[left[new] > 0]
        if len(rich):
            _shift(int(rich[np.argmax(left[rich])]), short, sizes, taker, giver, least, counts, left)
            return np.empty(0, dtype=np.int64)
        for j in new.tolist():
            givers = np.flatnonzero((counts[:, j] > least[:, j]) & ~seen)
            seen[givers] = True
            giver[givers] = j
            queue += givers.tolist()
    return np.flatnonzero(seen)


def _shift(
    end: int,
    short: int,
    sizes: Counts,
    taker: NDArray[np.int64],
    giver: NDArray[np.int64],
    least: Counts,
    counts: Counts,
    left: Counts,
) -> None:
    path: list[tuple[int, int]] = []  # (learner, the class it takes from), from the end to the short learner
    amount = min(int(sizes[short] - counts[short].sum()), int(left[end]))
    j = end
    while True:
        k = int(taker[j])
        path.append((k, j))
        if k == short:
            break
        j = int(giver[k])
        amount = min(amount, int(counts[k, j] - least[k, j]))
    left[end] -= amount
    for k, j in path:
        counts[k, j] += amount
        if k != short:
            counts[k, int(giver[k])] -= amount
