"""Policies side by side: the same setting for all, equal time, and a journal that tells what happened."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from abaton.controller import STRATEGIES, Krum, ServerAdam, TrainSettings, ValidationWeighting
from abaton.errors import SettingsError, StoreError
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.federation_builder import build_from_recipe, build_from_settings, suitable_strategies
from abaton.lab.paper_figures import cycle_losses
from abaton.lab.run_history import RunHistory
from abaton.lab.strategy_comparison import (
    compare,
    confidence_interval,
    curves,
    paired_difference,
    run,
    select_trials,
    summary,
)
from abaton.store import Journal, Store

SMALL = ExperimentSettings(
    ExperimentTask(hidden=16),
    ExperimentEnvironment(learners=10, rows=600, latency=1.0),
    TrainSettings(epochs=2, batch_size=20, learning_rate=0.05, momentum=0.5, shuffle_window=20),
    rounds=2.2,
)
ROWS = SMALL.environment.rows


@pytest.fixture(scope="module")
def runs():
    return compare({"small": SMALL}, list(STRATEGIES), [1])


def test_all_strategies_have_the_same_time_and_start(runs):
    assert [one.strategy for one in runs] == list(STRATEGIES)
    assert len({one.seconds for one in runs}) == 1
    assert len({one.curve[0] for one in runs}) == 1, "the first model is the same"
    assert all(len({x for x, _ in one.curve}) == len(one.curve) for one in runs)
    versions = {one.strategy: one.versions for one in runs}
    assert versions["SyncFedAvg"] == versions["SyncDVW"] == 2
    assert versions["AsyncFedAvg"] > versions["AsyncDVW(na)"] > 10


def test_models_travel_as_often_as_the_paper_counts(runs):
    for one in runs:
        updates, evaluations = one.history.requests, one.history.evaluations
        assert evaluations == (9 * updates if "DVW" in one.strategy else 0)
        assert one.history.exchanged == (11 * updates if "DVW" in one.strategy else 2 * updates)
        assert len(one.history.commits) <= updates


def test_strategies_differ_only_as_in_the_paper():
    federations = {policy: build_from_settings(SMALL, policy, 1) for policy in STRATEGIES}
    assert len({one.model.layout.digest for one in federations.values()}) == 1
    total = {
        policy: sum(len(site.train) for site in one.sites.values()) for policy, one in federations.items()
    }
    assert {policy for policy, rows in total.items() if rows < ROWS} == {p for p in STRATEGIES if "DVW" in p}
    assert {policy for policy, one in federations.items() if one.strategy.training.proximal_mu} == {
        "FedAsync"
    }
    assert len({one.metadata.study_facts["partition"]["digest"] for one in federations.values()}) == 1
    same = {replace(one.strategy.training, proximal_mu=0.0, epochs=2) for one in federations.values()}
    assert same == {SMALL.training}


def partition_of(setting: ExperimentSettings, seed: int) -> str:
    return build_from_settings(setting, "SyncFedAvg", seed).metadata.study_facts["partition"]["digest"]


def test_a_pinned_partition_is_the_same_for_every_seed():
    pinned = replace(SMALL, environment=replace(SMALL.environment, partition_seed=7))
    digests = [partition_of(pinned, seed) for seed in (1, 2)]
    assert digests[0] == digests[1]
    assert partition_of(SMALL, 1) != partition_of(SMALL, 2)


def test_summary_curves_and_gain(runs):
    lines = summary(runs)
    assert [line["strategy"] for line in lines] == list(STRATEGIES)
    assert json.loads(json.dumps(lines)) == lines
    assert lines[0]["accuracy"]["half_width"] is None, "one seed has no interval"
    assert list(curves(runs)["small"]) == list(STRATEGIES)
    difference = paired_difference(runs, "small", "SyncDVW", "SyncFedAvg")
    one, other = (select_trials(runs, "small", policy)[0].accuracy for policy in ("SyncDVW", "SyncFedAvg"))
    assert difference.mean == pytest.approx(one - other)


def test_an_interval_covers_the_mean_95_times_in_100():
    rng = np.random.default_rng(0)
    intervals = [confidence_interval(list(values)) for values in rng.normal(size=(400, 4))]
    assert np.mean([abs(one.mean) <= one.half_width for one in intervals]) == pytest.approx(0.95, abs=0.03)


def test_the_partition_is_kept_with_the_run_and_the_run_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        row = build_from_settings(SMALL, "AsyncDVW(a)", 1).run(store=store).row
        partition = row.recipe["partition"]
        assert row.status == "finished"
        assert partition == build_from_recipe(row.recipe).metadata.study_facts["partition"]
        assert sum(line["examples"] for line in partition["learners"]) == ROWS
        assert [line["classes"] for line in partition["learners"]] == [8, 4] + [3] * 8
        assert {line["group"] for line in partition["learners"]} == {"fast", "slow"}

        left = [40]

        class Crash(BaseException):
            pass

        def watch(*_: object) -> None:
            left[0] -= 1
            if not left[0]:
                raise Crash

        with pytest.raises(Crash):
            build_from_settings(SMALL, "AsyncDVW(a)", 1).run(store=store, watch=watch)
        cut = store.runs()[-1]
        assert build_from_recipe(cut.recipe).run(cut.run, store=store).status == "finished"
        digests = [[model.digest for model in store.models(name)] for name in (row.run, cut.run)]
        assert digests[0] == digests[1]


def test_cycles_are_read_back_from_the_run(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        trial = run(store, "small", SMALL, "AsyncDVW(a)", 1)
        name = trial.history.commits[0].learner
        commits = [one for one in trial.history.commits if one.learner == name][:3]
        first_cycles = cycle_losses(store, trial.run, name, count=3)
        batches = -(-len(build_from_recipe(store.run(trial.run).recipe).sites[name].train) // 20)
        assert [len(losses) for losses in first_cycles] == [one.steps // batches for one in commits]
        assert all(np.isfinite(losses).all() for losses in first_cycles)
        arrived = sum(kind == "update_received" for kind, _ in Journal(store, trial.run).rows())
        assert arrived - 1 <= trial.history.requests <= arrived, "one may come after the time is up"
        other = replace(SMALL, training=replace(SMALL.training, batch_size=7))
        monkeypatch.setattr(
            "abaton.lab.paper_figures.build_from_recipe",
            lambda _: build_from_settings(other, "AsyncDVW(a)", 1),
        )
        with pytest.raises(StoreError, match="another number of steps"):
            cycle_losses(store, trial.run, name, count=1)


def test_shares_are_of_the_newest_models():
    assert RunHistory().weight_fractions() == {}


@pytest.mark.parametrize(
    ("setting", "policy", "says"),
    [
        (SMALL, "Nothing", "no strategy 'Nothing'"),
        (replace(SMALL, rounds=0), "SyncFedAvg", "rounds is 0"),
        (replace(SMALL, metric="beauty"), "SyncDVW", "no metric 'beauty'"),
        (replace(SMALL, task=ExperimentTask(network="oracle")), "SyncFedAvg", "no network 'oracle'"),
        (replace(SMALL, task=ExperimentTask(network="cnn")), "SyncFedAvg", "no convolutional network"),
        (
            replace(SMALL, environment=replace(SMALL.environment, slowdown=0.5)),
            "SyncFedAvg",
            "slowdown is 0.5",
        ),
        (replace(SMALL, environment=replace(SMALL.environment, learners=1)), "SyncFedAvg", "two learners"),
        (replace(SMALL, environment=replace(SMALL.environment, learners=0)), "SyncFedAvg", "two learners"),
        (replace(SMALL, byzantine={12: "noise"}), "SyncFedAvg", "no learner 12"),
        (replace(SMALL, byzantine={0: "evil"}), "SyncFedAvg", "no attack 'evil'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(setting, policy, says, monkeypatch):
    monkeypatch.setattr("abaton.lab.strategy_comparison.run", None)
    with pytest.raises(SettingsError, match=says):
        compare({"wrong": setting}, [policy], [1])


def test_no_seeds_are_refused():
    with pytest.raises(SettingsError, match="no seeds"):
        confidence_interval([])


def test_what_a_learner_says_of_itself_can_be_left_out():
    rules = build_from_settings(replace(SMALL, include_own_validation=False), "SyncDVW", 1).strategy
    assert rules.validation == ValidationWeighting(include_own_validation=False)


def test_server_optimiser_and_robust_aggregation_apply_to_all_strategies_that_take_them():
    setting = replace(
        SMALL, server_optimiser="adam(rate=0.02)", robust_aggregation="krum(byzantine=1, keep=3)"
    )
    assert suitable_strategies(SMALL) == list(STRATEGIES)
    assert suitable_strategies(setting) == ["SyncFedAvg", "SyncDVW", "FedBuff", "FedBuffDVW"]
    assert suitable_strategies(replace(SMALL, server_optimiser="momentum")) == [
        name for name in STRATEGIES if name != "FedAsync"
    ]
    settings = {
        "usual": SMALL,
        "adaptive": replace(SMALL, server_optimiser="adam(rate=0.02)"),
        "robust": setting,
    }
    assert len({one.curve for one in compare(settings, ["SyncFedAvg"], [1])}) == 3
    again = build_from_recipe(setting.recipe("SyncFedAvg", 1))
    assert (again.strategy.server_optimiser, again.strategy.robust_aggregation) == (
        ServerAdam(rate=0.02),
        Krum(1, 3),
    )
    for invalid in (
        replace(SMALL, server_optimiser="adm"),
        replace(SMALL, robust_aggregation="krum(bizantine=1)"),
    ):
        with pytest.raises(SettingsError, match="no server optimiser 'adm'|no setting 'bizantine'"):
            suitable_strategies(invalid)


def test_a_downlink_codec_gives_another_reproducible_run(tmp_path):
    small = replace(SMALL, codec="error_feedback | stc(sparsity=0.05)", downlink="stc(sparsity=0.05)")
    digests, bytes_down = set(), {}
    with Store(tmp_path) as store:
        for setting in (replace(small, downlink=None), small):
            ended = build_from_settings(setting, "SyncFedAvg", 1).run(store=store)
            digests.add(ended.result["digest"])
            bytes_down[setting.downlink] = ended.result["bytes_down"]
        assert len(digests) == 2
        assert bytes_down["stc(sparsity=0.05)"] < 0.7 * bytes_down[None]
        again = build_from_recipe(ended.row.recipe)
        assert (again.codec.spec, again.downlink.spec) == (small.codec, small.downlink)
