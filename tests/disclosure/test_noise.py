"""Check the keyed discrete Gaussian against the probabilities of its definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from abaton.disclosure.noise import KeyedStream, discrete_gaussian


def reference_probabilities(variance: float, reach: int) -> np.ndarray:
    """Return the normalised probabilities of -reach .. reach."""
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize(
    "variance", [Fraction(1, 4), Fraction(1), Fraction(9), Fraction(25), Fraction(173, 10)]
)
def test_draws_have_the_probabilities_of_the_definition(variance):
    draws = np.array([discrete_gaussian(KeyedStream(b"key", b"%d" % i), variance) for i in range(4000)])
    reach = int(6 * float(variance) ** 0.5) + 2
    expected = reference_probabilities(float(variance), reach) * len(draws)
    observed = np.array([(draws == n).sum() for n in range(-reach, reach + 1)])
    is_common = expected >= 5
    rest = [observed[~is_common].sum()], [expected[~is_common].sum()]
    f_obs = np.concatenate([observed[is_common], rest[0]])
    f_exp = np.concatenate([expected[is_common], rest[1]])
    keep = f_exp > 0.5
    assert stats.chisquare(f_obs[keep], f_exp[keep] * f_obs[keep].sum() / f_exp[keep].sum()).pvalue > 1e-4
    true_variance = float(
        (np.arange(-reach, reach + 1) ** 2 * reference_probabilities(float(variance), reach)).sum()
    )
    assert abs(draws.mean()) < 4 * (true_variance / len(draws)) ** 0.5
    assert draws.var() == pytest.approx(true_variance, rel=0.1)


def test_a_fine_grid_gives_the_normal_distribution():
    sd = 2**20
    draws = [discrete_gaussian(KeyedStream(b"fine", b"%d" % i), Fraction(sd) ** 2) / sd for i in range(2000)]
    assert stats.kstest(draws, "norm").pvalue > 1e-3


def test_the_same_key_gives_the_same_draw_and_another_key_another():
    draws = [discrete_gaussian(KeyedStream(b"key", b"cell"), Fraction(10**12)) for _ in range(3)]
    others = [
        discrete_gaussian(KeyedStream(key, label), Fraction(10**12))
        for key, label in ((b"k", b"cell"), (b"key", b"c"))
    ]
    assert len(set(draws)) == 1
    assert not set(draws) & set(others)


def test_a_negative_variance_is_refused_and_none_gives_no_noise():
    with pytest.raises(ValueError, match="negative"):
        discrete_gaussian(KeyedStream(b"key", b"cell"), Fraction(-1))
    assert discrete_gaussian(KeyedStream(b"key", b"cell"), Fraction(0)) == 0
