"""Rebuilding rows from updates: what a research centre could learn of a site's people if it tried as hard as we can.

The centre knows the study document, the seed, the first model, the settings, every model that it sent and every update
that came back, and which columns are flags; of the rows it knows nothing. Three ways are tried on logistic models:

* `rebuild`: whoever knows in which order rows were trained on knows by how much each counts in each update. Rows are
  moved until training on them gives the same updates (a quasi-Newton search from the solution of the linear part).
* `singling_out`: models that are sure, and right, about all rows but one. They are made with the true rows at hand,
  which no centre has: what they give is a bound for every centre that makes up models to ask after one row.
* `determined`: how many rows are fixed by the updates for somebody who starts at the truth, to first order, and who
  does not know the order of the rows. No way of searching can find more.

A row counts as found if every measured column (scaled to a deviation of 1) is within 0.1, and every flag is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import parse
from abaton.kernels import Vector
from abaton.learners import Examples, Learner, Model
from abaton.models.sampling import epoch_order
from abaton.training import TrainSettings

Numbers = NDArray[np.float64]
Labels = NDArray[np.float64] | NDArray[np.int64]
Batches = list[NDArray[np.int64]]

WITHIN = 0.1
_ROUNDING = 1e-7  # of a 32-bit number near 1: how exactly an update can be read
_FEW = 30  # rows: the search is quick, and can be begun in several ways
_LARGEST = 8.0  # deviations that a guess may lie off the mean


@dataclass(frozen=True, slots=True)
class Overheard:
    """One update as the centre sees it, of a logistic model: by the difference of its two outputs, bias last.

    Attributes:
        start: Where training began.
        update: What came back.
        batches: In which batches the centre thinks that rows were trained on.
    """

    start: Numbers
    update: Numbers
    batches: Batches

    @classmethod
    def of(cls, start: Vector, update: Vector, batches: Batches) -> Overheard:
        """What is seen of a model and its update."""
        return cls(difference(start), difference(update) / 2, batches)


def difference(vector: Vector) -> Numbers:
    """The weights of the second class less those of the first, with the difference of their biases at the end.

    >>> difference(np.float32([1, 2, 5, 7, 0, 1])).tolist()
    [4.0, 5.0, 1.0]
    """
    weights, bias = vector[:-2].astype(np.float64).reshape(2, -1), vector[-2:].astype(np.float64)
    return np.append(weights[1] - weights[0], bias[1] - bias[0])


def with_difference(base: Vector, wanted: Numbers) -> Vector:
    """The model nearest to another one that has a difference.

    >>> difference(with_difference(np.float32([1, 2, 5, 7, 0, 1]), np.array([1.0, 1.0, 0.5]))).tolist()
    [1.0, 1.0, 0.5]
    """
    half = (wanted - difference(base)) / 2
    made = base.astype(np.float64)
    made[:-2] += np.concatenate([-half[:-1], half[:-1]])
    made[-2:] += (-half[-1], half[-1])
    return made.astype(np.float32)


def batches_of(name: str, model: Model, seed: int, task: str, rows: int, settings: TrainSettings) -> Batches:
    """The batches of a task as anybody can work them out who knows the run's seed, unless the site has a secret."""
    nobody = Examples(np.zeros((rows, 1), np.float32), np.zeros(rows, np.int64))
    seat = Learner(name, model, nobody, parse("raw"), seed).seat(task, model.layout.zeros(), settings)
    assert seat is not None
    seat.chance.bit_generator.random_raw()  # as training draws one number first
    return _cut([epoch_order(nobody.y, 0, seat.chance) for _ in range(settings.epochs)], settings.batch_size)


def rebuild(heard: Sequence[Overheard], rows: int, settings: TrainSettings, turns: int = 12) -> Numbers:
    """Rows that, trained on, give the updates that were overheard, as nearly as the search comes to them.

    It begins from what all updates say to first order; for few rows also from what the first ones say.
    """
    exact = sum(len(each.update) for each in heard) * (10 * _ROUNDING) ** 2
    found, least = np.zeros((rows, len(heard[0].start) - 1)), np.inf
    begun = (rows + 2, 3 * rows // 2 + 2, 2 * rows) if rows <= _FEW else ()
    for many in (*begun, len(heard)):
        x, missed = _searched(heard, *_first_guess(heard[:many], rows, settings), settings, turns)
        if missed < least:
            found, least = x, missed
        if least < exact:
            break
    return found


def _searched(
    heard: Sequence[Overheard], x: Numbers, y: Numbers, settings: TrainSettings, turns: int
) -> tuple[Numbers, float]:
    """Levenberg's and Marquardt's search: steps are shorter the worse they turn out."""
    damping, least = 1e-3, _missed(heard, x, y, settings)
    for _ in range(turns):
        full = _biased(x)
        wrong = np.concatenate([each.update - _trained(each, full, y, settings) for each in heard])
        answers = np.hstack([_sensitivity(each.start, full, y, each.batches, settings) for each in heard])
        square, slope = answers @ answers.T, answers @ wrong
        while damping < 1e3:
            ridge = damping * np.trace(square) / len(square) * np.eye(len(square))
            step = np.linalg.solve(square + ridge, slope).reshape(len(x), -1)
            tried = np.clip(x + step[:, :-1], -_LARGEST, _LARGEST), np.clip(y + step[:, -1], -0.5, 1.5)
            if (missed := _missed(heard, *tried, settings)) < least:
                (x, y), least, damping = tried, missed, damping / 30
                break
            damping *= 10
        else:
            break
    return x, least


def _first_guess(heard: Sequence[Overheard], rows: int, settings: TrainSettings) -> tuple[Numbers, Numbers]:
    """Rows and labels by the linear part alone, turn by turn: a row's gradient counts as often as it was trained on."""
    columns = len(heard[0].start) - 1
    counts = np.array([_counts(each.batches, rows, settings) for each in heard])
    starts, updates = np.array([each.start for each in heard]), np.array([each.update for each in heard])
    x, y = np.zeros((rows, columns)), np.full(rows, 0.5)
    best, least = (x, y), np.inf
    for _ in range(20):
        wrong = updates - np.array([_trained(each, _biased(x), y, settings) for each in heard])
        if (missed := float((wrong**2).sum())) < least and x.any():
            best, least = (x, y), missed
        chances = _chance(_biased(x) @ starts.T).T
        y = np.clip(y + _solved(counts, wrong[:, -1]), -0.5, 1.5)  # labels answer to the bias's changes
        x = np.clip(x - _solved(counts * (chances - y), wrong[:, :-1]), -_LARGEST, _LARGEST)
    return best


def _missed(heard: Sequence[Overheard], x: Numbers, y: Numbers, settings: TrainSettings) -> float:
    full = _biased(x)
    return float(sum(((each.update - _trained(each, full, y, settings)) ** 2).sum() for each in heard))


def singling_out(x: Numbers, y: Labels, sharp: float) -> Iterator[Numbers]:
    """For each row a model that is right about every other one and wrong about this one, as far as there is one.

    Args:
        x: The true rows.
        y: Their labels.
        sharp: How sure it is: the chance of the nearest other row is that many logits from even.
    """
    for row in range(len(y)):
        asked = y.astype(np.float64)
        asked[row] = 1 - asked[row]
        found = _separating(_biased(x), asked)
        if found is not None:
            yield found * sharp


def read_off(update: Numbers) -> Numbers:
    """The row of an update that rests on one row alone: every weight's change over the bias's.

    >>> read_off(np.array([0.5, -0.25, 0.25])).tolist()
    [[2.0, -1.0]]
    """
    return (update[:-1] / (update[-1] or 1.0)).reshape(1, -1)


def determined(
    x: Numbers, y: Labels, starts: Sequence[Numbers], settings: TrainSettings, *, orders: int = 40
) -> int:
    """How many rows updates fix to within 0.1 for somebody who knows all but them, and not the order of the rows.

    What is known before is how far each column spreads. The order is drawn again and again: how much updates vary by
    it is the noise, and how they answer to a change of each value, in the mean over orders, is the signal.
    """
    rng, rows, columns = np.random.default_rng(0), *x.shape
    full = _biased(x)
    known = np.diag(np.tile(1 / np.append(np.maximum(x.std(0), 1e-3), 0.5) ** 2, rows))
    for start in starts:
        drawn = [
            _cut([rng.permutation(rows) for _ in range(settings.epochs)], settings.batch_size)
            for _ in range(orders)
        ]
        made = np.array([_trained(Overheard(start, start, each), full, y, settings) for each in drawn])
        noise = np.atleast_2d(np.cov(made.T)) + _ROUNDING**2 * np.eye(columns + 1)
        answer = np.mean([_sensitivity(start, full, y, each, settings) for each in drawn[:2]], axis=0)
        values, vectors = np.linalg.eigh(noise)
        signal = answer @ (vectors / np.sqrt(np.maximum(values, _ROUNDING**2)))
        known += signal @ signal.T
    left = np.sqrt(np.diag(np.linalg.inv(known))).reshape(rows, -1)[:, :-1]
    return int((left <= WITHIN).all(1).sum())


def guesses(
    means: Numbers, deviations: Numbers, flags: NDArray[np.bool_], rows: int, rng: np.random.Generator
) -> Numbers:
    """As many rows as there are, drawn from the sums that every site tells for scaling."""
    drawn = rng.normal(means, deviations, (rows, len(means)))
    return np.where(flags, rng.random((rows, len(means))) < means, drawn)


def matched(x: Numbers, found: Numbers, flags: NDArray[np.bool_]) -> int:
    """How many rows are found, each guess standing for one row at the most.

    >>> matched(np.array([[0.0, 1], [1, 0]]), np.array([[0.05, 0.8], [0.02, 0.9], [3, 0]]), np.array([False, True]))
    1
    """
    if not len(found):
        return 0
    said = np.where(flags, np.rint(found), found)
    near = [
        np.flatnonzero(((np.abs(found - row) <= WITHIN) | (np.abs(said - row) <= WITHIN)).all(1)) for row in x
    ]
    taken: dict[int, int] = {}

    def seat(row: int, tried: set[int]) -> bool:
        for guess in map(int, near[row]):
            if guess not in tried:
                tried.add(guess)
                if guess not in taken or seat(taken[guess], tried):
                    taken[guess] = row
                    return True
        return False

    return sum(seat(row, set()) for row in range(len(x)))


def _biased(x: Numbers) -> Numbers:
    return np.hstack([x, np.ones((len(x), 1))])


def _chance(logits: Numbers) -> Numbers:
    made: Numbers = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return made


def _cut(orders: Sequence[NDArray[np.int64]], size: int) -> Batches:
    return [order[i : i + size] for order in orders for i in range(0, len(order), size)]


def _counts(batches: Batches, rows: int, settings: TrainSettings) -> Numbers:
    """By how much each row's gradient counts in an update, to first order: by momentum early batches count for more."""
    kept, made = settings.momentum, np.zeros(rows)
    for left, batch in zip(range(len(batches), 0, -1), batches, strict=True):
        made[batch] += settings.learning_rate * (1 - kept**left) / (1 - kept) / len(batch)
    return made


def _trained(heard: Overheard, full: Numbers, y: Labels, settings: TrainSettings) -> Numbers:
    """The update that rows would give."""
    model, speed = heard.start.copy(), np.zeros_like(heard.start)
    for batch in heard.batches:
        rows = full[batch]
        speed = settings.momentum * speed + rows.T @ (_chance(rows @ model) - y[batch]) / len(batch)
        model = model - 2 * settings.learning_rate * speed  # both outputs move, against each other
    return (model - heard.start) / 2


def _sensitivity(
    start: Numbers, full: Numbers, y: Labels, batches: Batches, settings: TrainSettings
) -> Numbers:
    """How an update answers to a change of each value of each row, and of its label: those by numbers of the model."""
    rows, size = full.shape
    model, speed = start.copy(), np.zeros(size)
    moved, sped = np.zeros((rows * size, size)), np.zeros((rows * size, size))
    each = np.arange(size - 1)
    for batch in batches:
        seen, many = full[batch], len(batch)
        chance = _chance(seen @ model)
        slope, wrong = chance * (1 - chance), chance - y[batch]
        change = moved @ ((seen.T * slope) @ seen / many)
        by_row = change.reshape(rows, size, size)
        by_row[batch, :-1] += (slope[:, None, None] * model[None, :-1, None] * seen[:, None, :]) / many
        by_row[batch[:, None], each, each] += wrong[:, None] / many
        by_row[batch, -1] -= seen / many
        sped = settings.momentum * sped + change
        moved = moved - 2 * settings.learning_rate * sped
        speed = settings.momentum * speed + seen.T @ wrong / many
        model = model - 2 * settings.learning_rate * speed
    return moved / 2


def _solved(weights: Numbers, told: Numbers) -> Numbers:
    """The least values whose weighted sums, taken off, give what was told."""
    square = weights.T @ weights
    ridge = 1e-9 * np.trace(square) / len(square) * np.eye(len(square))
    made: Numbers = np.linalg.solve(square + ridge, weights.T @ told)
    return made


def _separating(full: Numbers, y: Numbers) -> Numbers | None:
    """Weights that are right about every row, by at least one logit; none if Newton's way finds none."""
    model, sign = np.zeros(full.shape[1]), 2 * y - 1
    for _ in range(60):
        chance = _chance(full @ model)
        slope = (full.T * (chance * (1 - chance))) @ full + 1e-6 * np.eye(len(model))
        model = model - np.linalg.solve(slope, full.T @ (chance - y) + 1e-6 * model)
        margin = float((sign * (full @ model)).min())
        if margin > 1:
            made: Numbers = model / margin
            return made
    return None
