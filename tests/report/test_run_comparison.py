"""Comparison of runs: refusals, and equal content of page, table and JSON."""

from __future__ import annotations

import re

import pytest
from tests.report.test_run_report import EVENTS as STUDY_EVENTS
from tests.report.test_run_report import row as study_row

from abaton.errors import SettingsError
from abaton.report import (
    compare_runs,
    make_lab_report,
    make_report,
    make_run_report,
    render_comparison,
    render_lab_report,
    render_report,
)
from abaton.store import ModelRow, RunRow

EVENTS = [
    ("learner_joined", {"timestamp": 0.0, "learner": "kos", "examples": 30, "group": "fast"}),
    ("learner_joined", {"timestamp": 0.0, "learner": "<b>", "examples": 20, "group": "slow"}),
    ("update_received", {"timestamp": 1.0, "learner": "kos", "payload_bytes": 100, "steps": 4}),
    ("update_received", {"timestamp": 2.0, "learner": "<b>", "payload_bytes": 50, "steps": 2}),
    ("task_failed", {"timestamp": 3.0, "learner": "kos", "task": "t", "reason": "lost"}),
    ("update_received", {"timestamp": 4.0, "learner": "kos", "payload_bytes": 100, "steps": 4}),
]


def lab(name: str = "one", *, values=(0.5, 0.7, 0.8), metric: str = "accuracy", **settings) -> dict:
    recipe = {
        "name": "four",
        "settings": {"seed": 1, "rounds": 2, "scale": 1.0, **settings},
        "versions": {},
    }
    result = {
        "reason": "done",
        "version": 2,
        "digest": "d" * 64,
        "seconds": 4.0,
        "updates": 3,
        "bytes_up": 250,
        "bytes_down": 900,
    }
    models = [ModelRow(i, 2.0 * i, "m", {metric: value}) for i, value in enumerate(values)]
    row = RunRow(name, "2026-11-16T08:00:00", "virtual", recipe, "9" * 64, "finished", result)
    return make_lab_report(row, models, EVENTS)


def test_the_report_of_a_lab_run_has_all_sections_and_is_escaped():
    report = lab()
    assert {"question", "cohort", "privacy", "method", "results", "provenance"} <= set(report)
    assert [point["bytes"] for point in report["results"]["training"]["points"]] == [0, 150, 250]
    kos = report["results"]["training"]["learners"][1]
    assert (kos["updates"], kos["bytes"], kos["failed"], kos["last_seen"]) == (2, 200, 1, 4.0)
    page = render_lab_report(report)
    for text in (
        "How accurate is the community model?",
        "Cohort",
        "Privacy",
        "Method",
        "Results",
        "Provenance",
        "&lt;b&gt;",
        "d" * 64,
    ):
        assert text in page, text
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<b>" not in outside
    assert "default-src &#39;none&#39;" in page
    assert render_report(report) == page


def test_either_kind_of_run_has_its_report():
    assert make_report(study_row(), [], STUDY_EVENTS)["kind"] == "study"
    row = RunRow("x", "", "virtual", {"name": "four", "settings": {}}, "9", "running", None)
    with pytest.raises(SettingsError, match="is not finished"):
        make_report(row, [], [])


def test_differences_come_first_and_the_page_holds_the_numbers():
    comparison = compare_runs([lab(), lab("two", values=(0.4, 0.75, 0.9), seed=2)])
    assert comparison["differences"] == [{"setting": "seed", "values": {"one": 1, "two": 2}}]
    assert comparison["target"] == 0.8
    assert [line["reached"]["version"] for line in comparison["results"]] == [2, 2]
    assert [line["value"] for line in comparison["results"]] == [0.8, 0.9]
    page = render_comparison(comparison)
    assert page.index(">Settings<") < page.index(">Results<") < page.index(">Curves<")
    assert all(f'data-figure="{axis}"' in page for axis in ("version", "timestamp", "bytes"))
    assert "A: one" in page
    assert "0.9000" in page


def test_versions_without_a_metric_are_omitted():
    nan = float("nan")
    points = lab(values=(nan, 0.7, 0.8))["results"]["training"]["points"]
    assert [point["accuracy"] for point in points] == [None, 0.7, 0.8]
    assert compare_runs([lab(values=(nan, 0.7, 0.8)), lab("two")])["target"] == 0.8
    with pytest.raises(SettingsError, match="no common metric"):
        compare_runs([lab(values=(nan,)), lab("two")])


def test_smaller_values_of_error_metrics_are_better():
    comparison = compare_runs(
        [lab(metric="loss", values=(1.0, 0.6, 0.5)), lab("two", metric="loss", values=(1.0, 0.4, 0.45))]
    )
    assert comparison["target"] == 0.5
    assert [line["reached"]["version"] for line in comparison["results"]] == [2, 1]
    assert comparison["results"][1]["best"] == 0.4


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        (lambda: [lab()], "fewer than two runs"),
        (lambda: [lab(), lab()], "given twice"),
        (lambda: [lab(), make_run_report(study_row(), STUDY_EVENTS)], "kind is 'lab'"),
        (lambda: [lab(), lab("two", metric="loss")], "no common metric"),
    ],
)
def test_runs_of_different_tasks_are_refused(reports, message):
    with pytest.raises(SettingsError, match=message):
        compare_runs(reports())


def test_other_studies_and_other_outcomes_are_refused():
    one = make_run_report(study_row(), STUDY_EVENTS)
    for key, value in (("id", "t"), ("outcome", "dead")):
        other = {**one, "run": "s-2", "study": {**one["study"], key: value}}
        with pytest.raises(SettingsError, match="cannot be compared"):
            compare_runs([one, other])


def test_runs_of_one_study_show_intervals_and_differing_tables():
    one = make_run_report(study_row(), STUDY_EVENTS)
    provenance = {**one["provenance"], "tables": {"north": "0" * 64}}
    comparison = compare_runs([one, {**one, "run": "s-2", "provenance": provenance}])
    assert comparison["metric"] == "auroc"
    assert comparison["results"][0]["interval"] == [0.7, 0.9]
    assert "tables differ" in comparison["remarks"][0]
    with pytest.raises(SettingsError, match="use auroc"):
        compare_runs([one, {**one, "run": "s-2"}], "brier")
