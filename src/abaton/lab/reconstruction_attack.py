"""Reconstruction attacks on updates: rows of a site that a hostile research centre could recover.

The centre has the study document, the seed, the first model, the settings, every model that it sent, every update
that it received, and which columns are flags; it has no rows. Three attacks on logistic models:

* `reconstruct_rows`: with the order of rows, the weight of each row in each update is known. Rows are changed until
  training on them gives the same updates (a quasi-Newton search from the solution of the linear part).
* `singling_out_models`: models that classify all rows but one correctly and with confidence. They are built from the
  true rows, which no centre has: the result is a bound for every centre that crafts models to target one row.
* `count_determined`: how many rows the updates determine, to first order, starting at the true rows and without their
  order. No search can find more.

A row counts as reconstructed if every measured column (scaled to a standard deviation of 1) is within 0.1, and
every flag is correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import parse_codec
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.models import Examples, Model
from abaton.models.sampling import epoch_order
from abaton.training import TrainSettings

Floats = NDArray[np.float64]
Labels = NDArray[np.float64] | NDArray[np.int64]
Batches = list[NDArray[np.int64]]

TOLERANCE = 0.1
_ROUNDING = 1e-7  # relative precision of float32, which limits how exactly an update can be read
_MAX_SMALL_ROWS = 30  # up to this number of rows the search is fast and is started several times
_MAX_VALUE = 8.0  # limit of a reconstructed value, in standard deviations from the mean


@dataclass(frozen=True, slots=True)
class ObservedUpdate:
    """Update of a logistic model as received by the centre: the difference of its two outputs, bias last.

    Attributes:
        start: the model before training.
        update: the received update.
        batches: the batches that the centre assumes.
    """

    start: Floats
    update: Floats
    batches: Batches

    @classmethod
    def of(cls, start: Vector, update: Vector, batches: Batches) -> ObservedUpdate:
        """Return the update of a model as a reconstruction attack observes it."""
        return cls(class_difference(start), class_difference(update) / 2, batches)


def class_difference(vector: Vector) -> Floats:
    """Return the attacked model's weights of the second class minus those of the first, with the biases last.

    >>> class_difference(np.float32([1, 2, 5, 7, 0, 1])).tolist()
    [4.0, 5.0, 1.0]
    """
    weights, bias = vector[:-2].astype(np.float64).reshape(2, -1), vector[-2:].astype(np.float64)
    return np.append(weights[1] - weights[0], bias[1] - bias[0])


def with_class_difference(base: Vector, target: Floats) -> Vector:
    """Return the model closest to another one with a class difference that the attacker chooses.

    >>> class_difference(with_class_difference(np.float32([1, 2, 5, 7, 0, 1]), np.array([1.0, 1.0, 0.5]))).tolist()
    [1.0, 1.0, 0.5]
    """
    half = (target - class_difference(base)) / 2
    model = base.astype(np.float64)
    model[:-2] += np.concatenate([-half[:-1], half[:-1]])
    model[-2:] += (-half[-1], half[-1])
    return model.astype(np.float32)


def batches_from_seed(
    name: str, model: Model, seed: int, task: str, rows: int, settings: TrainSettings
) -> Batches:
    """Return the batches of a task that an attacker derives from the seed, unless the site has a secret order."""
    empty_examples = Examples(np.zeros((rows, 1), np.float32), np.zeros(rows, np.int64))
    slot = Learner(name, model, empty_examples, parse_codec("raw"), seed).training_slot(
        task, model.layout.zeros(), settings
    )
    assert slot is not None
    slot.rng.bit_generator.random_raw()  # training draws one value first, too
    return _split_batches(
        [epoch_order(empty_examples.y, 0, slot.rng) for _ in range(settings.epochs)], settings.batch_size
    )


def reconstruct_rows(
    observed: Sequence[ObservedUpdate], rows: int, settings: TrainSettings, iterations: int = 12
) -> Floats:
    """Reconstruct the rows whose training gives the observed updates as closely as possible.

    The search starts from the first-order solution of all updates; for few rows also from that of the first ones.
    """
    exact = sum(len(update.update) for update in observed) * (10 * _ROUNDING) ** 2
    best_rows, smallest_error = np.zeros((rows, len(observed[0].start) - 1)), np.inf
    start_counts = (rows + 2, 3 * rows // 2 + 2, 2 * rows) if rows <= _MAX_SMALL_ROWS else ()
    for count in (*start_counts, len(observed)):
        x, error = _search(
            observed, *_linear_solution(observed[:count], rows, settings), settings, iterations
        )
        if error < smallest_error:
            best_rows, smallest_error = x, error
        if smallest_error < exact:
            break
    return best_rows


def _search(
    observed: Sequence[ObservedUpdate], x: Floats, y: Floats, settings: TrainSettings, iterations: int
) -> tuple[Floats, float]:
    """Run the Levenberg-Marquardt search of the reconstruction attack."""
    damping, smallest_error = 1e-3, _squared_error(observed, x, y, settings)
    for _ in range(iterations):
        full = _with_bias(x)
        residual = np.concatenate(
            [update.update - _simulate_update(update, full, y, settings) for update in observed]
        )
        jacobian = np.hstack(
            [_sensitivity(update.start, full, y, update.batches, settings) for update in observed]
        )
        square, gradient = jacobian @ jacobian.T, jacobian @ residual
        while damping < 1e3:
            ridge = damping * np.trace(square) / len(square) * np.eye(len(square))
            step = np.linalg.solve(square + ridge, gradient).reshape(len(x), -1)
            tried = np.clip(x + step[:, :-1], -_MAX_VALUE, _MAX_VALUE), np.clip(y + step[:, -1], -0.5, 1.5)
            if (error := _squared_error(observed, *tried, settings)) < smallest_error:
                (x, y), smallest_error, damping = tried, error, damping / 30
                break
            damping *= 10
        else:
            break
    return x, smallest_error


def _linear_solution(
    observed: Sequence[ObservedUpdate], rows: int, settings: TrainSettings
) -> tuple[Floats, Floats]:
    """Return reconstructed rows and labels from the linear part only, solved alternately."""
    columns = len(observed[0].start) - 1
    counts = np.array([_row_weights(update.batches, rows, settings) for update in observed])
    starts, updates = (
        np.array([update.start for update in observed]),
        np.array([update.update for update in observed]),
    )
    x, y = np.zeros((rows, columns)), np.full(rows, 0.5)
    best, smallest_error = (x, y), np.inf
    for _ in range(20):
        residual = updates - np.array(
            [_simulate_update(update, _with_bias(x), y, settings) for update in observed]
        )
        if (error := float((residual**2).sum())) < smallest_error and x.any():
            best, smallest_error = (x, y), error
        probabilities = _probability(_with_bias(x) @ starts.T).T
        y = np.clip(y + _solve_ridge(counts, residual[:, -1]), -0.5, 1.5)
        x = np.clip(x - _solve_ridge(counts * (probabilities - y), residual[:, :-1]), -_MAX_VALUE, _MAX_VALUE)
    return best


def _squared_error(
    observed: Sequence[ObservedUpdate], x: Floats, y: Floats, settings: TrainSettings
) -> float:
    full = _with_bias(x)
    return float(
        sum(((update.update - _simulate_update(update, full, y, settings)) ** 2).sum() for update in observed)
    )


def singling_out_models(x: Floats, y: Labels, confidence: float) -> Iterator[Floats]:
    """Yield an attacker's model for each row that classifies only this row wrongly, where one exists.

    Args:
        x: The true rows.
        y: Their labels.
        confidence: Distance of the closest other row from even odds, in logits.
    """
    for row in range(len(y)):
        targets = y.astype(np.float64)
        targets[row] = 1 - targets[row]
        separating = _separating_weights(_with_bias(x), targets)
        if separating is not None:
            yield separating * confidence


def read_from_gradient(update: Floats) -> Floats:
    """Reconstruct the row of an update that depends on one row only: each weight's change over the bias's.

    >>> read_from_gradient(np.array([0.5, -0.25, 0.25])).tolist()
    [[2.0, -1.0]]
    """
    return (update[:-1] / (update[-1] or 1.0)).reshape(1, -1)


def count_determined(
    x: Floats, y: Labels, starts: Sequence[Floats], settings: TrainSettings, *, orders: int = 40
) -> int:
    """Return the number of rows that an attacker could determine to within 0.1 without the order of the rows.

    The prior is the standard deviation of each column. The order is sampled repeatedly: the variation of updates
    over orders is the noise, and the mean derivative by each value is the signal.
    """
    rng, rows, columns = np.random.default_rng(0), *x.shape
    full = _with_bias(x)
    precision = np.diag(np.tile(1 / np.append(np.maximum(x.std(0), 1e-3), 0.5) ** 2, rows))
    for start in starts:
        sampled_orders = [
            _split_batches([rng.permutation(rows) for _ in range(settings.epochs)], settings.batch_size)
            for _ in range(orders)
        ]
        trained = np.array(
            [
                _simulate_update(ObservedUpdate(start, start, order), full, y, settings)
                for order in sampled_orders
            ]
        )
        noise = np.atleast_2d(np.cov(trained.T)) + _ROUNDING**2 * np.eye(columns + 1)
        sensitivity = np.mean(
            [_sensitivity(start, full, y, order, settings) for order in sampled_orders[:2]], axis=0
        )
        values, vectors = np.linalg.eigh(noise)
        signal = sensitivity @ (vectors / np.sqrt(np.maximum(values, _ROUNDING**2)))
        precision += signal @ signal.T
    posterior_std = np.sqrt(np.diag(np.linalg.inv(precision))).reshape(rows, -1)[:, :-1]
    return int((posterior_std <= TOLERANCE).all(1).sum())


def random_guesses(
    means: Floats, deviations: Floats, flags: NDArray[np.bool_], rows: int, rng: np.random.Generator
) -> Floats:
    """Return random rows to compare an attack with, sampled from the sums that every site releases."""
    sampled = rng.normal(means, deviations, (rows, len(means)))
    return np.where(flags, rng.random((rows, len(means))) < means, sampled)


def count_reconstructed(x: Floats, reconstructed: Floats, flags: NDArray[np.bool_]) -> int:
    """Return the number of reconstructed rows; each reconstruction matches at most one row.

    >>> x, reconstructed = np.array([[0.0, 1], [1, 0]]), np.array([[0.05, 0.8], [0.02, 0.9], [3, 0]])
    >>> count_reconstructed(x, reconstructed, np.array([False, True]))
    1
    """
    if not len(reconstructed):
        return 0
    rounded = np.where(flags, np.rint(reconstructed), reconstructed)
    neighbours = [
        np.flatnonzero(
            ((np.abs(reconstructed - row) <= TOLERANCE) | (np.abs(rounded - row) <= TOLERANCE)).all(1)
        )
        for row in x
    ]
    taken: dict[int, int] = {}

    def assign(row: int, tried: set[int]) -> bool:
        for guess in map(int, neighbours[row]):
            if guess not in tried:
                tried.add(guess)
                if guess not in taken or assign(taken[guess], tried):
                    taken[guess] = row
                    return True
        return False

    return sum(assign(row, set()) for row in range(len(x)))


def _with_bias(x: Floats) -> Floats:
    return np.hstack([x, np.ones((len(x), 1))])


def _probability(logits: Floats) -> Floats:
    probability: Floats = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return probability


def _split_batches(orders: Sequence[NDArray[np.int64]], size: int) -> Batches:
    return [order[i : i + size] for order in orders for i in range(0, len(order), size)]


def _row_weights(batches: Batches, rows: int, settings: TrainSettings) -> Floats:
    """Return the first-order weight of each row's gradient in an attacked update; momentum favours early batches."""
    momentum, row_weights = settings.momentum, np.zeros(rows)
    for remaining, batch in zip(range(len(batches), 0, -1), batches, strict=True):
        row_weights[batch] += settings.learning_rate * (1 - momentum**remaining) / (1 - momentum) / len(batch)
    return row_weights


def _simulate_update(observed: ObservedUpdate, full: Floats, y: Labels, settings: TrainSettings) -> Floats:
    """Return the update that training on reconstructed rows gives."""
    model, velocity = observed.start.copy(), np.zeros_like(observed.start)
    for batch in observed.batches:
        rows = full[batch]
        velocity = settings.momentum * velocity + rows.T @ (_probability(rows @ model) - y[batch]) / len(
            batch
        )
        model = model - 2 * settings.learning_rate * velocity  # both outputs change
    return (model - observed.start) / 2


def _sensitivity(start: Floats, full: Floats, y: Labels, batches: Batches, settings: TrainSettings) -> Floats:
    """Return the derivative of an attacked update by each value of each row, and by its label."""
    rows, size = full.shape
    model, velocity = start.copy(), np.zeros(size)
    model_change, velocity_change = np.zeros((rows * size, size)), np.zeros((rows * size, size))
    diagonal = np.arange(size - 1)
    for batch in batches:
        batch_rows, batch_size = full[batch], len(batch)
        probability = _probability(batch_rows @ model)
        variance, residual = probability * (1 - probability), probability - y[batch]
        change = model_change @ ((batch_rows.T * variance) @ batch_rows / batch_size)
        by_row = change.reshape(rows, size, size)
        by_row[batch, :-1] += (
            variance[:, None, None] * model[None, :-1, None] * batch_rows[:, None, :]
        ) / batch_size
        by_row[batch[:, None], diagonal, diagonal] += residual[:, None] / batch_size
        by_row[batch, -1] -= batch_rows / batch_size
        velocity_change = settings.momentum * velocity_change + change
        model_change = model_change - 2 * settings.learning_rate * velocity_change
        velocity = settings.momentum * velocity + batch_rows.T @ residual / batch_size
        model = model - 2 * settings.learning_rate * velocity
    return model_change / 2


def _solve_ridge(weights: Floats, observations: Floats) -> Floats:
    """Return the attack's ridge solution for values whose weighted sums give the observations."""
    square = weights.T @ weights
    ridge = 1e-9 * np.trace(square) / len(square) * np.eye(len(square))
    solution: Floats = np.linalg.solve(square + ridge, weights.T @ observations)
    return solution


def _separating_weights(full: Floats, y: Floats) -> Floats | None:
    """Return an attacker's weights that classify every row correctly by at least one logit; None if not found."""
    model, sign = np.zeros(full.shape[1]), 2 * y - 1
    for _ in range(60):
        probability = _probability(full @ model)
        gradient = (full.T * (probability * (1 - probability))) @ full + 1e-6 * np.eye(len(model))
        model = model - np.linalg.solve(gradient, full.T @ (probability - y) + 1e-6 * model)
        margin = float((sign * (full @ model)).min())
        if margin > 1:
            scaled: Floats = model / margin
            return scaled
    return None
