from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from immutables import Map

from abaton.codecs import parse
from abaton.controller import (
    SPENT,
    Arrived,
    Asynchronous,
    ByStaleness,
    ByValidation,
    Failed,
    Joined,
    Privacy,
    Publish,
    Rules,
    State,
    Stop,
    Synchronous,
    Thresholds,
    Train,
    Trimmed,
    community_model,
    step,
)
from abaton.controller.differential_privacy import (
    Round,
    curve,
    epsilon_of_releases,
    epsilon_of_rounds,
    releases_within,
)
from abaton.errors import AbatonError, SettingsError
from abaton.lab.privacy_planner import zcdp_bound
from abaton.kernels import Layout, Role, Tensor

DELTA = 1e-5


def test_one_release_is_the_analytic_gaussian_mechanism():
    """Balle and Wang 2018: delta = Phi(1/2s - es) - exp(e) Phi(-1/2s - es), checked the other way round."""
    normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))  # noqa: E731
    for noise in (0.7, 1.0, 4.0):
        e = epsilon_of_releases(1, noise, DELTA)
        made = normal(0.5 / noise - e * noise) - math.exp(e) * normal(-0.5 / noise - e * noise)
        assert made == pytest.approx(DELTA, rel=1e-6)
    assert epsilon_of_releases(1, 1.0, DELTA) == pytest.approx(4.3772, abs=1e-3)


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("releases", [1, 10, 100, 1000])
def test_releases_stay_below_the_zcdp_bound_and_above_half_of_it(noise, releases):
    exact, bound = epsilon_of_releases(releases, noise, DELTA), zcdp_bound(releases, noise, DELTA)
    assert 0.5 * bound < exact < bound


def test_known_values_of_dp_sgd():
    """Poisson lots: the often quoted q = 256 / 60,000, noise 1.1, 60 epochs gave 3.01 by an older bound."""
    rounds = 60 * 60_000 // 256
    ((_, spent),) = curve([rounds], noise=1.1, delta=1e-5, lots="poisson", drawn=256, among=60_000)
    assert 2.4 < spent < 3.01


def test_the_curve_equals_the_accountant_asked_directly():
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 30)
    ((_, spent),) = curve([30], noise=2.0, delta=DELTA, lots="poisson", drawn=1, among=10)
    assert spent == accountant.get_epsilon(DELTA)
    lots = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.0))
    accountant = dp.rdp.RdpAccountant([*range(2, 40)], dp.NeighboringRelation.REPLACE_ONE).compose(lots, 30)
    ((_, spent),) = curve([30], noise=2.0, delta=DELTA, lots="fixed", drawn=10, among=100)
    assert spent == pytest.approx(accountant.get_epsilon(DELTA), rel=0.01)


def test_lots_make_rounds_cheaper_and_full_participation_does_not():
    alone = epsilon_of_rounds(frozenset([(Round(2.0, 10, 10), 20)]), DELTA)
    drawn = epsilon_of_rounds(frozenset([(Round(2.0, 2, 100), 20)]), DELTA)
    assert drawn < 0.5 * alone
    assert alone >= epsilon_of_releases(20, 2.0, DELTA)
    assert alone < zcdp_bound(20, 2.0, DELTA)


def test_different_kinds_of_rounds_add_up():
    one, other = Round(2.0, 5, 50), Round(3.0, 10, 50)
    each = [epsilon_of_rounds(frozenset([(kind, 5)]), DELTA) for kind in (one, other)]
    both = epsilon_of_rounds(frozenset([(one, 5), (other, 5)]), DELTA)
    assert max(each) < both < sum(each)
    assert epsilon_of_rounds(frozenset(), DELTA) == 0 == epsilon_of_releases(0, 1.0, DELTA)
    assert (
        epsilon_of_rounds(frozenset([(Round(0.0, 1, 2), 1)]), DELTA)
        == math.inf
        == epsilon_of_releases(1, 0.0, DELTA)
    )


@pytest.mark.parametrize(("epsilon", "noise"), [(1.0, 5.0), (8.0, 1.0), (0.1, 1.0), (3.0, 100.0)])
def test_the_allowance_is_the_last_that_fits(epsilon, noise):
    most = releases_within(epsilon, noise, DELTA)
    assert epsilon_of_releases(most, noise, DELTA) <= epsilon < epsilon_of_releases(most + 1, noise, DELTA)


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    epsilon_of_releases.cache_clear()
    releases_within.cache_clear()
    with pytest.raises(AbatonError, match=r"pip install .*abaton\[dp\]"):
        Rules(learners=2, rounds=5, privacy=Privacy(8.0, DELTA, 7.25))


def test_control_does_not_import_the_accountant_by_itself():
    import subprocess

    code = "import sys, abaton.controller, abaton.engines; assert 'dp_accounting' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -3}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"noise": 0}, "noise"),
        ({"against": "everybody"}, "against"),
    ],
)
def test_wrong_budgets_are_refused_with_their_key(wrong, key):
    with pytest.raises(SettingsError, match=f"privacy.{key} is"):
        Privacy(**{"epsilon": 8.0, "delta": DELTA, "noise": 4.0, **wrong})


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"weighting": (ByValidation(),)}, "evaluators' counts"),
        ({"pacing": Asynchronous(adaptive={"": Thresholds()})}, "adaptive"),
        ({"privacy": Privacy(8.0, DELTA, 4.0, "readers")}, "count the same"),
        (
            {
                "privacy": Privacy(8.0, DELTA, 4.0, "readers"),
                "weighting": (ByStaleness("constant"),),
                "robust": Trimmed(0.1),
            },
            "count the same",
        ),
        ({"privacy": Privacy(0.01, DELTA, 0.5)}, "less than one update"),
    ],
)
def test_rules_that_a_budget_does_not_cover_are_refused(more, why):
    with pytest.raises(SettingsError, match=why):
        Rules(**{"learners": 4, "rounds": 5, "privacy": Privacy(8.0, DELTA, 4.0), **more})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raw", "does not clip and add noise"),
        ("clip(norm=1) | raw", "does not clip"),
        ("gaussian_noise(std=9) | clip(norm=1) | raw", "right after"),
        ("clip(norm=2) | gaussian_noise(std=4) | raw", "noise is 2 of its norm"),
    ],
)
def test_a_codec_with_less_noise_than_is_counted_on_is_refused(line, why):
    layout = Layout([Tensor("weight", (4,), Role.DENSE)])
    rules = Rules(learners=2, rounds=5, privacy=Privacy(8.0, DELTA, 4.0))
    with pytest.raises(SettingsError, match=why):
        community_model(rules, layout, parse(line), layout.zeros())
    community_model(rules, layout, parse("clip(norm=2) | gaussian_noise(std=8) | raw"), layout.zeros())
    layout.check(np.zeros(4, np.float32))


def live(rules: Rules, *, fails=lambda task: False) -> tuple[State, list, list]:
    """Everybody answers at once, in order; the instructions that were given, and the states."""
    state, given, states = State(), [], []
    waiting: list = [Joined(0.0, f"l{i:02}", 10) for i in range(rules.learners)]
    while waiting and len(given) < 10_000:
        event = waiting.pop(0)
        state, said = step(rules, state, event)
        given += said
        states.append(state)
        for asked in said:
            if isinstance(asked, Train):
                answer = (
                    Failed(1.0, asked.learner, asked.task, "dropped out")
                    if fails(asked.task)
                    else Arrived(1.0, asked.learner, asked.task, "digest", 4, 1, 10)
                )
                waiting.append(answer)
    return state, given, states


PRIVACY = Privacy(8.0, DELTA, 6.0)


@pytest.mark.parametrize("pacing", [Synchronous(), Asynchronous()])
def test_a_run_stops_before_it_would_overspend(pacing):
    rules = Rules(learners=3, rounds=10_000, pacing=pacing, privacy=PRIVACY)
    state, given, _ = live(rules)
    assert state.stopped == SPENT
    assert given[-1] == Stop(SPENT)
    asked = {n: sum(isinstance(i, Train) and i.learner == n for i in given) for n in ("l00", "l01", "l02")}
    assert set(asked.values()) == {PRIVACY.allowance}
    assert PRIVACY.spent(state) <= 8.0 < epsilon_of_releases(PRIVACY.allowance + 1, 3.0, DELTA)


def test_failed_tasks_count_as_spent():
    rules = Rules(learners=2, rounds=10_000, pacing=Asynchronous(), privacy=PRIVACY)
    state, given, _ = live(rules, fails=lambda task: int(task.split(".")[0]) % 3 == 0)
    assert state.stopped == SPENT
    assert dict(state.releases) == dict.fromkeys(("l00", "l01"), PRIVACY.allowance)
    assert sum(isinstance(i, Publish) for i in given) < 2 * PRIVACY.allowance


def test_sampled_learners_each_have_their_own_budget():
    rules = Rules(learners=10, rounds=10_000, pacing=Synchronous(participants=3), privacy=PRIVACY)
    state, _, _ = live(rules)
    assert state.stopped == SPENT
    assert max(state.releases.values()) <= PRIVACY.allowance
    full = [name for name, count in state.releases.items() if count == PRIVACY.allowance]
    assert len(full) >= 8, "a round needs three learners that have something left"


def test_a_budget_against_readers_counts_the_rounds_as_they_were():
    privacy = Privacy(4.0, DELTA, 3.0, "readers")
    rules = Rules(
        learners=20,
        rounds=10_000,
        pacing=Synchronous(participants=4, quorum=2),
        weighting=(ByStaleness("constant"),),
        privacy=privacy,
    )
    state, _, _ = live(rules, fails=lambda task: task.endswith("7"))
    assert state.stopped == SPENT
    kinds = dict(state.rounds)
    assert {(kind.drawn, kind.among) for kind in kinds} == {(4, 20)}
    assert {round(kind.noise, 9) for kind in kinds} <= {round(3 * math.sqrt(m) / 2, 9) for m in (2, 3, 4)}
    assert sum(kinds.values()) == state.version
    assert privacy.spent(state) <= 4.0
    worst = privacy.round(4, 20, 2)
    more = Map(kinds).set(worst, kinds.get(worst, 0) + 1)
    assert epsilon_of_rounds(frozenset(more.items()), DELTA) > 4.0


def test_a_retry_counts_as_drawn_again():
    privacy = Privacy(4.0, DELTA, 3.0, "readers")
    rules = Rules(
        learners=20,
        rounds=1,
        pacing=Synchronous(participants=4, quorum=4),
        weighting=(ByStaleness("constant"),),
        privacy=privacy,
    )
    state, _, _ = live(rules, fails=lambda task: task.startswith("0.1.") and task < "0.1.l10")
    ((kind, count),) = state.rounds.items()
    assert count == 1
    assert 4 < kind.drawn <= 8
