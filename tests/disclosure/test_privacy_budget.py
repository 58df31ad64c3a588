"""Check the meaning of a privacy budget against dp-accounting and against exact convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from abaton.disclosure.privacy_budget import attacker_success, budget_epsilon


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_epsilon_agrees_with_dp_accounting(rho, delta):
    dp_accounting = pytest.importorskip("dp_accounting")
    accountant = dp_accounting.rdp.RdpAccountant(orders=1 + np.logspace(-2, 4, 4000))
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    assert budget_epsilon(rho, delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)
    # Never below the exact value for a continuous Gaussian, and never above the older conversion.
    exact = dp_accounting.get_epsilon_gaussian((1 / (2 * rho)) ** 0.5, delta)
    assert exact <= budget_epsilon(rho, delta) <= rho + 2 * (rho * np.log(1 / delta)) ** 0.5


def test_no_budget_means_no_loss():
    assert budget_epsilon(0.0) == 0.0
    assert attacker_success(0.0).membership == 0.5


@pytest.mark.parametrize(
    ("rho", "expected"),
    [(0.5, (0.69, 0.76, 0.60)), (1, (0.76, 0.84, 0.64)), (2, (0.84, 0.92, 0.69)), (3, (0.89, 0.96, 0.73))],
)
def test_success_has_the_published_values(rho, expected):
    success = attacker_success(rho)
    shown = tuple(round(p, 2) for p in (success.membership, success.group, success.membership_alone))
    assert shown == expected


@pytest.mark.parametrize(("sd", "tables"), [(3.0, 18), (3.0, 1), (5.0, 50)])
def test_success_is_that_of_the_best_rule_for_discrete_noise(sd, tables):
    """The sum of the answers is sufficient; compare its exact distributions with and without the subject."""
    reach = int(9 * sd)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sd**2))
    single = weights / weights.sum()
    total = np.ones(1)
    for _ in range(tables):
        total = np.convolve(total, single)
    shifted = np.concatenate([np.zeros(tables), total])
    distance = np.abs(np.concatenate([total, np.zeros(tables)]) - shifted).sum() / 2
    assert attacker_success(tables / (2 * sd**2)).membership == pytest.approx((1 + distance) / 2, abs=0.002)


def test_success_of_a_change_of_group_by_simulation():
    """An attacker who knows all others weighs both cells: 18 tables at sigma 3."""
    random = np.random.default_rng(1)
    in_first = random.normal(0, 3, (20000, 18, 2))
    in_first[..., 0] += 1
    score = (in_first[..., 0] - in_first[..., 1]).sum(1)
    assert (score > 0).mean() == pytest.approx(attacker_success(1).group, abs=0.01)
    assert attacker_success(1).group == pytest.approx(stats.norm.cdf(1.0))
