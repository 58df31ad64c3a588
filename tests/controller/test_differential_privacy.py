from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from immutables import Map

from abaton.codecs import parse_codec
from abaton.controller import (
    BUDGET_SPENT,
    AsynchronousScheduler,
    ControllerState,
    DifferentialPrivacy,
    LearnerJoined,
    PublishVersion,
    StalenessWeighting,
    StartTraining,
    StopRun,
    Strategy,
    SynchronousScheduler,
    TaskFailed,
    TrimmedMean,
    UpdateReceived,
    UpdateThresholds,
    ValidationWeighting,
    community_model,
    transition,
)
from abaton.controller.differential_privacy import (
    AccountedRound,
    epsilon_curve,
    epsilon_for_releases,
    epsilon_for_rounds,
    releases_within_budget,
)
from abaton.errors import AbatonError, SettingsError
from abaton.lab.privacy_planner import zcdp_bound
from abaton.layout import Layout, Tensor, TensorRole

DELTA = 1e-5


def test_one_release_is_the_analytic_gaussian_mechanism():
    """Balle and Wang 2018: delta = Phi(1/2s - es) - exp(e) Phi(-1/2s - es), checked the other way round."""
    normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))  # noqa: E731
    for noise_multiplier in (0.7, 1.0, 4.0):
        e = epsilon_for_releases(1, noise_multiplier, DELTA)
        delta_found = normal(0.5 / noise_multiplier - e * noise_multiplier) - math.exp(e) * normal(
            -0.5 / noise_multiplier - e * noise_multiplier
        )
        assert delta_found == pytest.approx(DELTA, rel=1e-6)
    assert epsilon_for_releases(1, 1.0, DELTA) == pytest.approx(4.3772, abs=1e-3)


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("releases", [1, 10, 100, 1000])
def test_releases_stay_below_the_zcdp_bound_and_above_half_of_it(noise_multiplier, releases):
    exact, bound = (
        epsilon_for_releases(releases, noise_multiplier, DELTA),
        zcdp_bound(releases, noise_multiplier, DELTA),
    )
    assert 0.5 * bound < exact < bound


def test_known_values_of_dp_sgd():
    """Poisson sampling: the often quoted q = 256 / 60,000, noise 1.1, 60 epochs gave 3.01 by an older bound."""
    rounds = 60 * 60_000 // 256
    ((_, spent),) = epsilon_curve(
        [rounds], noise_multiplier=1.1, delta=1e-5, sampling="poisson", sample_size=256, population=60_000
    )
    assert 2.4 < spent < 3.01


def test_the_curve_equals_the_accountant():
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 30)
    ((_, spent),) = epsilon_curve(
        [30], noise_multiplier=2.0, delta=DELTA, sampling="poisson", sample_size=1, population=10
    )
    assert spent == accountant.get_epsilon(DELTA)
    sampled_event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.0))
    accountant = dp.rdp.RdpAccountant([*range(2, 40)], dp.NeighboringRelation.REPLACE_ONE).compose(
        sampled_event, 30
    )
    ((_, spent),) = epsilon_curve(
        [30], noise_multiplier=2.0, delta=DELTA, sampling="fixed", sample_size=10, population=100
    )
    assert spent == pytest.approx(accountant.get_epsilon(DELTA), rel=0.01)


def test_sampling_amplifies_privacy_and_full_participation_does_not():
    alone = epsilon_for_rounds(frozenset([(AccountedRound(2.0, 10, 10), 20)]), DELTA)
    sampled = epsilon_for_rounds(frozenset([(AccountedRound(2.0, 2, 100), 20)]), DELTA)
    assert sampled < 0.5 * alone
    assert alone >= epsilon_for_releases(20, 2.0, DELTA)
    assert alone < zcdp_bound(20, 2.0, DELTA)


def test_different_kinds_of_rounds_add_up():
    one, other = AccountedRound(2.0, 5, 50), AccountedRound(3.0, 10, 50)
    single = [epsilon_for_rounds(frozenset([(accounted, 5)]), DELTA) for accounted in (one, other)]
    both = epsilon_for_rounds(frozenset([(one, 5), (other, 5)]), DELTA)
    assert max(single) < both < sum(single)
    assert epsilon_for_rounds(frozenset(), DELTA) == 0 == epsilon_for_releases(0, 1.0, DELTA)
    assert (
        epsilon_for_rounds(frozenset([(AccountedRound(0.0, 1, 2), 1)]), DELTA)
        == math.inf
        == epsilon_for_releases(1, 0.0, DELTA)
    )


@pytest.mark.parametrize(("epsilon", "noise_multiplier"), [(1.0, 5.0), (8.0, 1.0), (0.1, 1.0), (3.0, 100.0)])
def test_the_allowance_is_the_last_that_fits(epsilon, noise_multiplier):
    allowance = releases_within_budget(epsilon, noise_multiplier, DELTA)
    assert (
        epsilon_for_releases(allowance, noise_multiplier, DELTA)
        <= epsilon
        < epsilon_for_releases(allowance + 1, noise_multiplier, DELTA)
    )


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    epsilon_for_releases.cache_clear()
    releases_within_budget.cache_clear()
    with pytest.raises(AbatonError, match=r"pip install .*abaton\[dp\]"):
        Strategy(learners=2, rounds=5, privacy=DifferentialPrivacy(8.0, DELTA, 7.25))


def test_the_controller_does_not_import_the_accountant():
    import subprocess

    code = "import sys, abaton.controller, abaton.engines; assert 'dp_accounting' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("invalid", "key"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -3}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
        ({"adversary": "all"}, "adversary"),
    ],
)
def test_wrong_budgets_are_refused_with_their_key(invalid, key):
    with pytest.raises(SettingsError, match=f"privacy.{key} is"):
        DifferentialPrivacy(**{"epsilon": 8.0, "delta": DELTA, "noise_multiplier": 4.0, **invalid})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": (ValidationWeighting(),)}, "evaluators' counts"),
        ({"scheduler": AsynchronousScheduler(adaptive={"": UpdateThresholds()})}, "adaptive"),
        ({"privacy": DifferentialPrivacy(8.0, DELTA, 4.0, "readers")}, "have the same weight"),
        (
            {
                "privacy": DifferentialPrivacy(8.0, DELTA, 4.0, "readers"),
                "weighting": (StalenessWeighting("constant"),),
                "robust_aggregation": TrimmedMean(0.1),
            },
            "have the same weight",
        ),
        ({"privacy": DifferentialPrivacy(0.01, DELTA, 0.5)}, "less than one update"),
    ],
)
def test_strategies_that_a_budget_does_not_cover_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        Strategy(**{"learners": 4, "rounds": 5, "privacy": DifferentialPrivacy(8.0, DELTA, 4.0), **settings})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("raw", "does not clip and add noise"),
        ("clip(norm=1) | raw", "does not clip"),
        ("gaussian_noise(std=9) | clip(norm=1) | raw", "directly after clipping"),
        ("clip(norm=2) | gaussian_noise(std=4) | raw", "std / norm is 2, but"),
    ],
)
def test_a_codec_with_less_noise_than_accounted_is_refused(spec, message):
    layout = Layout([Tensor("weight", (4,), TensorRole.DENSE)])
    strategy = Strategy(learners=2, rounds=5, privacy=DifferentialPrivacy(8.0, DELTA, 4.0))
    with pytest.raises(SettingsError, match=message):
        community_model(strategy, layout, parse_codec(spec), layout.zeros())
    community_model(
        strategy, layout, parse_codec("clip(norm=2) | gaussian_noise(std=8) | raw"), layout.zeros()
    )
    layout.check(np.zeros(4, np.float32))


def run_to_end(strategy: Strategy, *, fails=lambda task: False) -> tuple[ControllerState, list, list]:
    """Reply to every task at once and in order; return the last state, all instructions and all states."""
    state, instructions_given, states = ControllerState(), [], []
    waiting: list = [LearnerJoined(0.0, f"l{i:02}", 10) for i in range(strategy.learners)]
    while waiting and len(instructions_given) < 10_000:
        event = waiting.pop(0)
        state, instructions = transition(strategy, state, event)
        instructions_given += instructions
        states.append(state)
        for request in instructions:
            if isinstance(request, StartTraining):
                answer = (
                    TaskFailed(1.0, request.learner, request.task, "dropped out")
                    if fails(request.task)
                    else UpdateReceived(1.0, request.learner, request.task, "digest", 4, 1, 10)
                )
                waiting.append(answer)
    return state, instructions_given, states


PRIVACY = DifferentialPrivacy(8.0, DELTA, 6.0)


@pytest.mark.parametrize("scheduler", [SynchronousScheduler(), AsynchronousScheduler()])
def test_a_run_stops_before_it_would_overspend(scheduler):
    strategy = Strategy(learners=3, rounds=10_000, scheduler=scheduler, privacy=PRIVACY)
    state, instructions_given, _ = run_to_end(strategy)
    assert state.stop_reason == BUDGET_SPENT
    assert instructions_given[-1] == StopRun(BUDGET_SPENT)
    request = {
        n: sum(isinstance(i, StartTraining) and i.learner == n for i in instructions_given)
        for n in ("l00", "l01", "l02")
    }
    assert set(request.values()) == {PRIVACY.allowance}
    assert PRIVACY.spent(state) <= 8.0 < epsilon_for_releases(PRIVACY.allowance + 1, 3.0, DELTA)


def test_failed_tasks_count_as_spent():
    strategy = Strategy(learners=2, rounds=10_000, scheduler=AsynchronousScheduler(), privacy=PRIVACY)
    state, instructions_given, _ = run_to_end(strategy, fails=lambda task: int(task.split(".")[0]) % 3 == 0)
    assert state.stop_reason == BUDGET_SPENT
    assert dict(state.releases) == dict.fromkeys(("l00", "l01"), PRIVACY.allowance)
    assert sum(isinstance(i, PublishVersion) for i in instructions_given) < 2 * PRIVACY.allowance


def test_sampled_learners_each_have_their_own_budget():
    strategy = Strategy(
        learners=10, rounds=10_000, scheduler=SynchronousScheduler(participants=3), privacy=PRIVACY
    )
    state, _, _ = run_to_end(strategy)
    assert state.stop_reason == BUDGET_SPENT
    assert max(state.releases.values()) <= PRIVACY.allowance
    full = [name for name, count in state.releases.items() if count == PRIVACY.allowance]
    assert len(full) >= 8, "a round needs three learners with budget left"


def test_a_budget_against_readers_counts_the_rounds_as_they_were():
    privacy = DifferentialPrivacy(4.0, DELTA, 3.0, "readers")
    strategy = Strategy(
        learners=20,
        rounds=10_000,
        scheduler=SynchronousScheduler(participants=4, quorum=2),
        weighting=(StalenessWeighting("constant"),),
        privacy=privacy,
    )
    state, _, _ = run_to_end(strategy, fails=lambda task: task.endswith("7"))
    assert state.stop_reason == BUDGET_SPENT
    accounted_rounds = dict(state.rounds)
    assert {(accounted.sample_size, accounted.population) for accounted in accounted_rounds} == {(4, 20)}
    assert {round(accounted.noise_multiplier, 9) for accounted in accounted_rounds} <= {
        round(3 * math.sqrt(m) / 2, 9) for m in (2, 3, 4)
    }
    assert sum(accounted_rounds.values()) == state.version
    assert privacy.spent(state) <= 4.0
    worst = privacy.accounted_round(4, 20, 2)
    settings = Map(accounted_rounds).set(worst, accounted_rounds.get(worst, 0) + 1)
    assert epsilon_for_rounds(frozenset(settings.items()), DELTA) > 4.0


def test_a_retry_counts_as_another_sample():
    privacy = DifferentialPrivacy(4.0, DELTA, 3.0, "readers")
    strategy = Strategy(
        learners=20,
        rounds=1,
        scheduler=SynchronousScheduler(participants=4, quorum=4),
        weighting=(StalenessWeighting("constant"),),
        privacy=privacy,
    )
    state, _, _ = run_to_end(strategy, fails=lambda task: task.startswith("0.1.") and task < "0.1.l10")
    ((accounted, count),) = state.rounds.items()
    assert count == 1
    assert 4 < accounted.sample_size <= 8
