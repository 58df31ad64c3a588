"""The report of an experiment: its program makes the run again, and what was judged afterwards is kept."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from abaton.lab.strategy_comparison import run
from abaton.lab.experiment import Setting, Task, World
from abaton.report import comparison, page_of, report_of
from abaton.store import Journal, Store


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def told(store: Store, name: str) -> dict:
    row = store.run(name)
    return report_of(row, store.models(name), Journal(store, name).rows())


def test_the_program_in_a_report_makes_the_run_again(store, tmp_path, monkeypatch):
    setting = Setting(Task(), World("uniform", "IID", learners=4, rows=400), rounds=1.0)
    row = store.run(run(store, "here", setting, "SyncFedAvg", 1).run)
    report = told(store, row.run)
    assert report["reproduce"]["versions"]["abaton"]
    json.dumps(report, allow_nan=False)
    assert report["reproduce"]["model"] in page_of(report)
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(report["reproduce"]["program"], "report", "exec"), {})
    assert out.getvalue().strip() == row.result["digest"]


def test_policies_are_compared_from_what_was_kept(store):
    world = World("uniform", "IID", learners=4, rows=400)
    setting = Setting(Task(), world, rounds=1.0)
    runs = [run(store, "here", setting, policy, 1) for policy in ("SyncFedAvg", "AsyncFedAvg")]
    made = comparison([told(store, one.run) for one in runs])
    assert made["measure"] == "accuracy"
    assert [line["measure"] for line in made["results"]] == pytest.approx([one.accuracy for one in runs])
    assert [line["setting"] for line in made["differences"]] == ["policy"]
    assert not made["remarks"]
    for one in runs:
        points = told(store, one.run)["results"]["course"]["points"]
        assert [point["bytes"] for point in points] == sorted(point["bytes"] for point in points)
        assert "Who holds what" in page_of(told(store, one.run))
