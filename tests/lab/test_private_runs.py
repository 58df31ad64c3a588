"""Runs with a privacy budget: shown, enforced, and the same after a crash."""

from __future__ import annotations

import json

import pytest
from tests.lab import four_sites as four
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.controller import (
    BUDGET_SPENT,
    AsynchronousScheduler,
    DifferentialPrivacy,
    StalenessWeighting,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
)
from abaton.errors import SettingsError
from abaton.federation import Federation
from abaton.lab import build_from_recipe
from abaton.lab.privacy_planner import plan_budget
from abaton.store import Journal, Store

LINE = "clip(norm=0.5) | gaussian_noise(std=3) | {}"
BUDGETS = {
    "synchronous": {
        "scheduler": SynchronousScheduler(quorum=2),
        "privacy": DifferentialPrivacy(4.0, 1e-5, 6.0),
    },
    "asynchronous": {"scheduler": AsynchronousScheduler(), "privacy": DifferentialPrivacy(4.0, 1e-5, 6.0)},
    "readers": {
        "scheduler": SynchronousScheduler(participants=3, quorum=2),
        "weighting": (StalenessWeighting("constant"),),
        "privacy": DifferentialPrivacy(6.0, 1e-5, 6.0, "readers"),
    },
}


class Crash(BaseException):
    pass


def crash_after(count: int):
    left = [count]

    def watch(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash

    return watch


def federation(kind: str, codec: str = "raw") -> Federation:
    train, test = four.split(7, 0.1)
    rules = Strategy(
        learners=4, rounds=500, training=TrainSettings(epochs=1, learning_rate=0.1), **BUDGETS[kind]
    )
    return Federation(four.network(), four.local_sites(train, test), rules, LINE.format(codec))


@pytest.mark.parametrize("codec", ["raw", "error_feedback | stc(sparsity=0.1)"])
@pytest.mark.parametrize("kind", BUDGETS)
def test_a_private_run_ends_within_its_budget_and_resumes_to_the_same_bits(
    tmp_path, monkeypatch, kind, codec
):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store:
        outcome = federation(kind, codec).run("whole", store=store).result
        assert outcome["reason"] == BUDGET_SPENT
        spent = [model.metrics["epsilon"] for model in store.models("whole")]
        assert spent == sorted(spent)
        assert 0 < spent[-1] <= BUDGETS[kind]["privacy"].epsilon
        assert len(spent) > 2
        uninterrupted = [(m.digest, m.metrics["epsilon"]) for m in store.models("whole")]
        for cut in (3, Journal(store, "whole").stored_events - 2):
            with pytest.raises(Crash):
                federation(kind, codec).run(str(cut), store=store, watch=crash_after(cut))
            again = federation(kind, codec).run(str(cut), store=store)
            assert again.result == outcome
            assert [(m.digest, m.metrics["epsilon"]) for m in store.models(str(cut))] == uninterrupted


def test_nothing_without_noise_is_sent(tmp_path):
    with Store(tmp_path) as store:
        federation("asynchronous").run("run", store=store)
        arrived = [body for kind, body in Journal(store, "run").rows() if kind == "update_received"]
    assert arrived
    # How long a simulated upload took follows from its size alone.
    assert all(body["metrics"].keys() <= {"upload"} and body["counts"] == [] for body in arrived)


def test_the_run_stops_shows_why_and_is_not_begun_again(tmp_path):
    with Store(tmp_path) as store:
        recipe = four.recipe(seed=1, rounds=50, scale=0.1, epsilon=2.0)
        row = build_from_recipe(recipe).run(store=store).row
        assert (row.status, row.result["reason"]) == ("stopped", BUDGET_SPENT)
        with pytest.raises(Crash):
            build_from_recipe(recipe).run(store=store, watch=crash_after(6))
        again = build_from_recipe(recipe).run(store.runs()[-1].run, store=store)
        assert again.result == row.result
    shown = CliRunner().invoke(app, ["show", row.run, "--store", str(tmp_path)])
    assert "stopped (the privacy budget is spent)" in shown.stderr
    assert "epsilon" in shown.stdout
    data = json.loads(CliRunner().invoke(app, ["show", row.run, "--store", str(tmp_path), "--json"]).stdout)
    assert 0 < data["epsilon"] <= 2.0
    assert data["reason"] == BUDGET_SPENT


def test_a_plan_says_how_many_rounds_fit():
    budget_plan = plan_budget(2.0, 1e-5, 100, "fixed", (10, 100), epsilon=2.0)
    spent = {row["round"]: row["epsilon"] for row in budget_plan["rounds"]}
    assert spent[10] < 2.0 < spent[20]
    assert 10 < budget_plan["within"] < 20
    assert plan_budget(2.0, 1e-5, 5, epsilon=100.0)["within"] == 5


def test_the_command_prints_the_plan():
    run = CliRunner().invoke(app, ["lab", "privacy", "--noise", "4", "--rounds", "20", "--json"])
    rows = json.loads(run.stdout)["rounds"]
    assert [row["round"] for row in rows] == [1, 2, 5, 10, 20]
    assert all(row["epsilon"] < row["zcdp"] for row in rows)
    assert CliRunner().invoke(app, ["lab", "privacy", "--noise", "4"]).exit_code == 0


@pytest.mark.parametrize(
    "settings",
    [
        (0.0, 1e-5, 9, "none", (1, 1), None),
        (1.0, 2.0, 9, "none", (1, 1), None),
        (1.0, 1e-5, 9, "coins", (1, 1), None),
        (1.0, 1e-5, 9, "fixed", (3, 2), None),
        (1.0, 1e-5, 9, "none", (1, 1), -1.0),
    ],
)
def test_impossible_plans_are_refused(settings):
    with pytest.raises(SettingsError, match="privacy"):
        plan_budget(*settings)
