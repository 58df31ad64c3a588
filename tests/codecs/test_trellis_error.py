"""The error of the trellis quantiser is independent of the update for any decision rule, and has mean zero.

The statements are those of ``docs/trellis.md``. Tests also show that they detect what would break a statement: a
dither with another period than the code, or a decision that depends on the update.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from abaton.codecs import CodecKey, Tcdq
from abaton.kernels import trellis_fallback
from abaton.kernels.trellis_search import LANES, cosets
from abaton.layout import Layout, Tensor, TensorRole

STATES, STEPS, TIMES = 8, 16, 150
Rule = Callable[[np.ndarray], np.ndarray]


def viterbi(residues: np.ndarray) -> np.ndarray:
    """Choose the closest sequence."""
    path = np.empty(residues.size, np.uint8)
    trellis_fallback.search(residues, STATES, cosets(STATES), path)
    return path


def greedy(residues: np.ndarray) -> np.ndarray:
    """Choose the closer branch in each step, without looking ahead."""
    table, state, path = (
        cosets(STATES).astype(int),
        np.zeros(LANES, int),
        np.empty((STEPS, LANES), np.uint8),
    )
    for t, residue in enumerate(residues.reshape(STEPS, LANES).astype(int)):
        registers = np.stack([state, state + STATES])
        distance = np.abs((residue - 64 * table[registers] + 128) % 256 - 128)
        register = registers[distance.argmin(axis=0), np.arange(LANES)]
        path[t], state = table[register], register >> 1
    return path.ravel()


def careless(residues: np.ndarray) -> np.ndarray:
    """Choose always the first branch: the worst rule, and still unbiased."""
    return np.zeros(residues.size, np.uint8)


def errors(x: np.ndarray, rule: Rule, period: float, seed: int, *, signs: bool = False) -> np.ndarray:
    """Return errors λ - y, or σ·(λ - y) with random signs, of the values x, for many random dithers."""
    rng, results = np.random.default_rng(seed), []
    for _ in range(TIMES):
        dither = rng.uniform(0, period, (STEPS, LANES))
        sign = rng.choice([-1, 1], (STEPS, LANES)) if signs else np.ones((STEPS, LANES))
        y = sign * x[:, None] + dither
        grid = np.floor(64 * y).astype(int)
        path = rule((grid % 256).astype(np.int16).ravel()).reshape(STEPS, LANES).astype(int)
        point = 4 * ((grid - 64 * path + 128) // 256) + path
        results.append(sign * (point - y))
    return np.concatenate(results, axis=1)


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of first, second and neighbours' moments of two samples, in standard errors."""
    differences = []
    for statistic in (
        lambda e: e,
        lambda e: e**2,
        lambda e: e**4,
        lambda e: e[1:] * e[:-1],
        lambda e: e[1:] ** 2 * e[:-1] ** 2,
    ):
        a, b = statistic(one), statistic(other)
        error = np.sqrt(a.var(axis=1) / a.shape[1] + b.var(axis=1) / b.shape[1])
        differences.append(np.max(np.abs(a.mean(axis=1) - b.mean(axis=1)) / np.maximum(error, 1e-12)))
    return float(max(differences))


UPDATES = {
    "constant": np.full(STEPS, 0.5),
    "alternating": np.arange(STEPS) % 2 * 1.0,
    "normal": np.random.default_rng(5).standard_normal(STEPS),
    "large": np.random.default_rng(6).standard_normal(STEPS) * 1000,
}


@pytest.mark.parametrize("rule", [viterbi, greedy, careless])
@pytest.mark.parametrize("name", UPDATES)
def test_errors_have_the_same_distribution_for_every_update(rule, name):
    nothing = errors(np.zeros(STEPS), rule, 4, 1)
    assert largest_difference(nothing, errors(UPDATES[name], rule, 4, 2)) < 5


@pytest.mark.parametrize("rule", [viterbi, greedy])
@pytest.mark.parametrize("period", [1, 3])
def test_a_dither_of_another_period_is_detected(rule, period):
    """These moments do not show a period of 2: its errors differ by less than three standard errors."""
    nothing = errors(np.zeros(STEPS), rule, period, 1)
    assert largest_difference(nothing, errors(UPDATES["normal"], rule, period, 2)) > 10


def test_a_decision_that_depends_on_the_update_is_detected():
    """A rule that sees the value before it is dithered has a different error for a zero update."""

    def knowing(x: np.ndarray) -> Rule:
        return viterbi if np.abs(x).max() > 0 else careless

    nothing = errors(np.zeros(STEPS), knowing(np.zeros(STEPS)), 4, 1)
    assert largest_difference(nothing, errors(UPDATES["normal"], knowing(UPDATES["normal"]), 4, 2)) > 20


@pytest.mark.parametrize("rule", [viterbi, greedy, careless])
def test_errors_have_mean_zero_in_every_step(rule):
    sample = errors(UPDATES["normal"], rule, 4, 3, signs=True)
    assert np.max(np.abs(sample.mean(axis=1)) / np.sqrt(sample.var(axis=1) / sample.shape[1])) < 4.5


def spread(kind: str, size: int) -> np.ndarray:
    """Return an update that is hard for quantisers."""
    update = np.zeros(size, np.float32)
    match kind:
        case "sparse":
            update[:3] = 1, 0.5, 0.25
        case "constant":
            update[:] = 1
        case "normal":
            update[:] = np.random.default_rng(0).standard_normal(size)
        case "hadamard":  # a row of the matrix: the rotation without its signs would make one spike
            update[:] = np.where(np.bitwise_count(np.arange(size) & 0b1010101010) % 2, -1, 1)
    return update


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "constant", "normal", "hadamard"])
@pytest.mark.parametrize(("bits", "states"), [(0.3, 64), (1, 64), (1, 256), (4, 8)])
def test_the_mean_over_many_keys_is_the_update(bits, states, kind):
    size, times = 1024, 10_000
    update, codec = spread(kind, size), Tcdq(bits, states)
    layout = Layout([Tensor("weight", (size,), TensorRole.DENSE)])
    mean, squares = np.zeros(size), np.zeros(size)
    for i in range(times):
        key = CodecKey(i.to_bytes(4, "little"), "north")
        error = codec.decode(codec.encode(update, layout, key), layout, key).astype(np.float64) - update
        mean += error / times
        squares += error**2 / times
    # The squared norm of the mean error, in expected ones, is 1 ± 0.044 for 1,024 independent coordinates, and varies
    # more where a part of the steps is sent. A bias of 0.4 % of the update at 1 bit would make it 1.4.
    assert times * (mean @ mean) / squares.sum() == pytest.approx(1, abs=0.2)
    gain = (mean @ update) / np.sqrt((squares * update.astype(np.float64) ** 2).sum() / times)
    assert abs(gain) < 3.5
    assert np.max(np.abs(mean) / np.sqrt(squares / times)) < 4.6
