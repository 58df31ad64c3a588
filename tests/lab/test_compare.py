"""Policies side by side: the same setting for all, equal time, and a journal that tells what happened."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from abaton.controller import POLICIES, Adam, ByValidation, Krum, TrainSettings
from abaton.errors import SettingsError, StoreError
from abaton.lab.experiment import Setting, Task, World
from abaton.lab.federation_builder import build, fitting, make
from abaton.lab.paper_figures import cycles
from abaton.lab.run_history import History
from abaton.lab.strategy_comparison import chosen, compare, curves, gain, interval, run, summary
from abaton.store import Journal, Store

SMALL = Setting(
    Task(hidden=16),
    World(learners=10, rows=600, latency=1.0),
    TrainSettings(epochs=2, batch_size=20, learning_rate=0.05, momentum=0.5, window=20),
    rounds=2.2,
)
ROWS = SMALL.world.rows


@pytest.fixture(scope="module")
def runs():
    return compare({"small": SMALL}, list(POLICIES), [1])


def test_all_policies_have_the_same_time_and_start(runs):
    assert [one.policy for one in runs] == list(POLICIES)
    assert len({one.seconds for one in runs}) == 1
    assert len({one.curve[0] for one in runs}) == 1, "the first model is the same"
    assert all(len({x for x, _ in one.curve}) == len(one.curve) for one in runs)
    told = {one.policy: one.versions for one in runs}
    assert told["SyncFedAvg"] == told["SyncDVW"] == 2
    assert told["AsyncFedAvg"] > told["AsyncDVW(na)"] > 10


def test_models_travel_as_often_as_the_paper_counts(runs):
    for one in runs:
        updates, evaluations = one.told.requests, one.told.evaluations
        assert evaluations == (9 * updates if "DVW" in one.policy else 0)
        assert one.told.exchanged == (11 * updates if "DVW" in one.policy else 2 * updates)
        assert len(one.told.commits) <= updates


def test_policies_differ_only_in_what_the_paper_says():
    made = {policy: make(SMALL, policy, 1) for policy in POLICIES}
    assert len({one.model.layout.digest for one in made.values()}) == 1
    total = {policy: sum(len(site.train) for site in one.sites.values()) for policy, one in made.items()}
    assert {policy for policy, rows in total.items() if rows < ROWS} == {p for p in POLICIES if "DVW" in p}
    assert {policy for policy, one in made.items() if one.rules.training.proximal} == {"FedAsync"}
    assert len({one.dossier.facts["partition"]["digest"] for one in made.values()}) == 1
    same = {replace(one.rules.training, proximal=0.0, epochs=2) for one in made.values()}
    assert same == {SMALL.training}


def partition_of(setting: Setting, seed: int) -> str:
    return make(setting, "SyncFedAvg", seed).dossier.facts["partition"]["digest"]


def test_a_pinned_partition_is_the_same_for_every_seed():
    pinned = replace(SMALL, world=replace(SMALL.world, partition_seed=7))
    digests = [partition_of(pinned, seed) for seed in (1, 2)]
    assert digests[0] == digests[1]
    assert partition_of(SMALL, 1) != partition_of(SMALL, 2)


def test_summary_curves_and_gain(runs):
    lines = summary(runs)
    assert [line["policy"] for line in lines] == list(POLICIES)
    assert json.loads(json.dumps(lines)) == lines
    assert lines[0]["accuracy"]["reach"] is None, "one seed has no interval"
    assert list(curves(runs)["small"]) == list(POLICIES)
    made = gain(runs, "small", "SyncDVW", "SyncFedAvg")
    one, other = (chosen(runs, "small", policy)[0].accuracy for policy in ("SyncDVW", "SyncFedAvg"))
    assert made.mean == pytest.approx(one - other)


def test_an_interval_covers_the_mean_95_times_in_100():
    rng = np.random.default_rng(0)
    made = [interval(list(values)) for values in rng.normal(size=(400, 4))]
    assert np.mean([abs(one.mean) <= one.reach for one in made]) == pytest.approx(0.95, abs=0.03)


def test_the_partition_is_kept_with_the_run_and_the_run_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    with Store(tmp_path) as store:
        row = make(SMALL, "AsyncDVW(a)", 1).run(store=store).row
        kept = row.recipe["partition"]
        assert row.status == "finished"
        assert kept == build(row.recipe).dossier.facts["partition"]
        assert sum(line["examples"] for line in kept["learners"]) == ROWS
        assert [line["classes"] for line in kept["learners"]] == [8, 4] + [3] * 8
        assert {line["group"] for line in kept["learners"]} == {"fast", "slow"}

        left = [40]

        class Crash(BaseException):
            pass

        def watch(*_: object) -> None:
            left[0] -= 1
            if not left[0]:
                raise Crash

        with pytest.raises(Crash):
            make(SMALL, "AsyncDVW(a)", 1).run(store=store, watch=watch)
        cut = store.runs()[-1]
        assert build(cut.recipe).run(cut.run, store=store).status == "finished"
        digests = [[model.digest for model in store.models(name)] for name in (row.run, cut.run)]
        assert digests[0] == digests[1]


def test_cycles_are_read_back_from_the_run(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        made = run(store, "small", SMALL, "AsyncDVW(a)", 1)
        name = made.told.commits[0].learner
        commits = [one for one in made.told.commits if one.learner == name][:3]
        found = cycles(store, made.run, name, count=3)
        batches = -(-len(build(store.run(made.run).recipe).sites[name].train) // 20)
        assert [len(losses) for losses in found] == [one.steps // batches for one in commits]
        assert all(np.isfinite(losses).all() for losses in found)
        arrived = sum(kind == "Arrived" for kind, _ in Journal(store, made.run).rows())
        assert arrived - 1 <= made.told.requests <= arrived, "one may come after the time is up"
        other = replace(SMALL, training=replace(SMALL.training, batch_size=7))
        monkeypatch.setattr("abaton.lab.paper_figures.build", lambda _: make(other, "AsyncDVW(a)", 1))
        with pytest.raises(StoreError, match="does not come out"):
            cycles(store, made.run, name, count=1)


def test_shares_are_of_the_newest_models():
    assert History().shares() == {}


@pytest.mark.parametrize(
    ("setting", "policy", "says"),
    [
        (SMALL, "Nothing", "no policy 'Nothing'"),
        (replace(SMALL, rounds=0), "SyncFedAvg", "rounds is 0"),
        (replace(SMALL, measure="beauty"), "SyncDVW", "no measure 'beauty'"),
        (replace(SMALL, task=Task(network="oracle")), "SyncFedAvg", "no network 'oracle'"),
        (replace(SMALL, task=Task(network="cnn")), "SyncFedAvg", "no convolutional network"),
        (replace(SMALL, world=replace(SMALL.world, slowdown=0.5)), "SyncFedAvg", "slowdown is 0.5"),
        (replace(SMALL, world=replace(SMALL.world, learners=1)), "SyncFedAvg", "two learners"),
        (replace(SMALL, world=replace(SMALL.world, learners=0)), "SyncFedAvg", "two learners"),
        (replace(SMALL, bad={12: "noise"}), "SyncFedAvg", "no learner 12"),
        (replace(SMALL, bad={0: "evil"}), "SyncFedAvg", "no bad learner 'evil'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(setting, policy, says, monkeypatch):
    monkeypatch.setattr("abaton.lab.strategy_comparison.run", None)
    with pytest.raises(SettingsError, match=says):
        compare({"wrong": setting}, [policy], [1])


def test_no_seeds_are_refused():
    with pytest.raises(SettingsError, match="no seeds"):
        interval([])


def test_what_a_learner_says_of_itself_can_be_left_out():
    rules = make(replace(SMALL, own=False), "SyncDVW", 1).rules
    assert rules.validation == ByValidation(own=False)


def test_a_server_optimiser_and_robust_mixing_are_the_same_for_all_policies_that_take_them():
    setting = replace(SMALL, server="adam(rate=0.02)", robust="krum(liars=1, keep=3)")
    assert fitting(SMALL) == list(POLICIES)
    assert fitting(setting) == ["SyncFedAvg", "SyncDVW", "FedBuff", "FedBuffDVW"]
    assert fitting(replace(SMALL, server="momentum")) == [name for name in POLICIES if name != "FedAsync"]
    settings = {"usual": SMALL, "adaptive": replace(SMALL, server="adam(rate=0.02)"), "robust": setting}
    assert len({one.curve for one in compare(settings, ["SyncFedAvg"], [1])}) == 3
    again = build(setting.recipe("SyncFedAvg", 1))
    assert (again.rules.server, again.rules.robust) == (Adam(rate=0.02), Krum(1, 3))
    for wrong in (replace(SMALL, server="adm"), replace(SMALL, robust="krum(lairs=1)")):
        with pytest.raises(SettingsError, match="no server optimiser 'adm'|no setting 'lairs'"):
            fitting(wrong)


def test_a_way_down_of_ones_own_makes_another_run_that_can_be_made_again(tmp_path):
    small = replace(SMALL, codec="error_feedback | stc(sparsity=0.05)", downlink="stc(sparsity=0.05)")
    digests, bytes_down = set(), {}
    with Store(tmp_path) as store:
        for setting in (replace(small, downlink=None), small):
            ended = make(setting, "SyncFedAvg", 1).run(store=store)
            digests.add(ended.result["digest"])
            bytes_down[setting.downlink] = ended.result["bytes_down"]
        assert len(digests) == 2
        assert bytes_down["stc(sparsity=0.05)"] < 0.7 * bytes_down[None]
        again = build(ended.row.recipe)
        assert (again.codec.spec, again.downlink.spec) == (small.codec, small.downlink)
