"""The report of an experiment: its program makes the run again, and what was judged afterwards is kept."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.strategy_comparison import run
from abaton.report import compare_runs, make_report, render_report
from abaton.store import Journal, Store


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def report_of(store: Store, name: str) -> dict:
    row = store.run(name)
    return make_report(row, store.models(name), Journal(store, name).rows())


def test_the_program_in_a_report_makes_the_run_again(store, tmp_path, monkeypatch):
    setting = ExperimentSettings(
        ExperimentTask(), ExperimentEnvironment("uniform", "IID", learners=4, rows=400), rounds=1.0
    )
    row = store.run(run(store, "here", setting, "SyncFedAvg", 1).run)
    report = report_of(store, row.run)
    assert report["provenance"]["versions"]["abaton"]
    json.dumps(report, allow_nan=False)
    assert report["provenance"]["model"] in render_report(report)
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(report["provenance"]["program"], "report", "exec"), {})
    assert out.getvalue().strip() == row.result["digest"]


def test_strategies_are_compared_from_stored_results(store):
    environment = ExperimentEnvironment("uniform", "IID", learners=4, rows=400)
    setting = ExperimentSettings(ExperimentTask(), environment, rounds=1.0)
    runs = [run(store, "here", setting, strategy, 1) for strategy in ("SyncFedAvg", "AsyncFedAvg")]
    comparison = compare_runs([report_of(store, one.run) for one in runs])
    assert comparison["metric"] == "accuracy"
    assert [line["value"] for line in comparison["results"]] == pytest.approx([one.accuracy for one in runs])
    assert [line["setting"] for line in comparison["differences"]] == ["strategy"]
    assert not comparison["remarks"]
    for one in runs:
        points = report_of(store, one.run)["results"]["training"]["points"]
        assert [point["bytes"] for point in points] == sorted(point["bytes"] for point in points)
        assert "Partition: " in render_report(report_of(store, one.run))
