"""What is kept of a run, what is removed, and that it can still be resumed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.lab import four_sites as four
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError, StoreError
from abaton.lab import build_from_recipe
from abaton.store import RetentionRule, Store, plan_pruning, prune

RECIPE = four.recipe(seed=7, rounds=12, scale=0.1)


class Crash(BaseException):
    pass


def crash_after(count: int):
    left = [count]

    def watch(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash

    return watch


def on_disk(store: Store, run: str) -> list[int]:
    return [m.version for m in store.models(run) if store.model_files.path(m.digest).exists()]


def test_the_last_every_kth_and_the_final_version_stay(tmp_path):
    with Store(tmp_path) as store:
        row = build_from_recipe(RECIPE).run(store=store).row
        pruning = plan_pruning(store, row, RetentionRule(last=2, every=5))
        assert [m.version for m in pruning.models] == [1, 2, 3, 4, 6, 7, 8, 9]
        assert pruning.bytes > 8 * 4 * four.network().layout.size
        assert on_disk(store, row.run) == list(range(13)), "a plan removes nothing"
        prune(store, pruning)
        assert on_disk(store, row.run) == [0, 5, 10, 11, 12]
        assert not store.payload_file(row.run).exists()
        assert plan_pruning(store, row, RetentionRule(last=2, every=5)).bytes == 0
        with pytest.raises(StoreError, match="pruned"):
            store.model_files.get(store.models(row.run)[3].digest)


def test_models_that_another_run_names_stay(tmp_path):
    with Store(tmp_path) as store:
        first, second = (build_from_recipe(RECIPE).run(store=store).row for _ in range(2))
        assert plan_pruning(store, first, RetentionRule(last=1)).models == ()
        assert len(on_disk(store, second.run)) == 13


def test_a_run_that_was_cut_off_is_pruned_and_resumed_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path / "whole") as store:
        expected = [m.digest for m in build_from_recipe(RECIPE).run(store=store).versions]
    with Store(tmp_path / "cut") as store:
        with pytest.raises(Crash):
            build_from_recipe(RECIPE).run(store=store, watch=crash_after(30))
        (row,) = store.runs()
        pruning = plan_pruning(store, row, RetentionRule(last=1))
        assert pruning.models
        assert pruning.payloads is None, "it needs its updates"
        prune(store, pruning)
        assert build_from_recipe(RECIPE).run(row.run, store=store).status == "finished"
        assert [m.digest for m in store.models(row.run)] == expected


def test_a_run_removes_what_falls_out_while_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    federation = build_from_recipe(RECIPE)
    federation.metadata = replace(federation.metadata, retention=RetentionRule(last=3, every=4))
    with Store(tmp_path) as store:
        most = [0]

        def count(*_: object) -> None:
            most[0] = max(most[0], sum(1 for _ in (tmp_path / "models").iterdir()))

        federation.run("whole", store=store, watch=count)
        assert on_disk(store, "whole") == [0, 4, 8, 10, 11, 12]
        assert most[0] <= 7
        with pytest.raises(Crash):
            federation.run("cut", store=store, watch=crash_after(25))
        federation.run("cut", store=store)
        assert [m.digest for m in store.models("cut")] == [m.digest for m in store.models("whole")]


def test_the_command_lists_before_it_deletes(tmp_path):
    with Store(tmp_path) as store:
        row = build_from_recipe(RECIPE).run(store=store).row
    arguments = ["prune", row.run, "--last", "2", "--store", str(tmp_path), "--json"]
    planned = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run"]).stdout)
    assert planned["runs"][0]["versions"] == 11
    with Store(tmp_path) as store:
        assert len(on_disk(store, row.run)) == 13
        with store.lock_run(row.run):
            summary = json.loads(CliRunner().invoke(app, arguments).stdout)
            assert (summary["runs"], summary["skipped"]) == ([], [row.run])
            with pytest.raises(StoreError, match="another process"):
                prune(store, plan_pruning(store, row, RetentionRule()))
    done = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert done["runs"] == planned["runs"]
    with Store(tmp_path) as store:
        assert on_disk(store, row.run) == [11, 12]
    assert "deleted" in CliRunner().invoke(app, ["prune", "--store", str(tmp_path)]).stdout


@pytest.mark.parametrize("settings", [{"last": 0}, {"every": -1}])
def test_impossible_retention_is_refused(settings):
    with pytest.raises(SettingsError, match="retention"):
        RetentionRule(**settings)
