"""The report of a run: one page with all results, no requests, no suppressed counts."""

from __future__ import annotations

import re

import pytest
from tests.report.test_interpretability_figures import RESULTS as INTERPRETABILITY

from abaton.errors import SettingsError
from abaton.report import make_run_report, render_run_report
from abaton.report.cohort_flow import cohort_flow_data
from abaton.report.findings import local_benefits
from abaton.store import RunRow

AUROC = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}, "brier": {"value": 0.1, "low": None, "high": None}}
BENEFIT = {
    "local_only": {"value": 0.7, "low": 0.6, "high": 0.8},
    "community": {"value": 0.8, "low": 0.7, "high": 0.9},
    "difference": {"value": 0.1, "low": 0.02, "high": 0.2},
}
ATTRITION = [
    {"stage": "consented", "subjects": "90", "excluded": []},
    {"stage": "rows", "subjects": "≥5", "excluded": [{"reason": "no <label>", "subjects": "<5"}]},
]


def line(model: str, group: str, grouping: str, metrics: dict | None = AUROC) -> dict:
    return {
        "model": model,
        "group": group,
        "grouping": grouping,
        "subjects": "40",
        "sites": 2,
        "metrics": metrics,
    }


def row(**more) -> RunRow:
    recipe = {
        "name": "study",
        "settings": {"seed": 3, "now": "2026-11-16T00:00:00+00:00", "baselines": True},
        "study": {
            "id": "s", "hash": "f" * 64, "title": "Hearts & minds", "question": "Who?", "purpose": "diagnostic",
            "legal_basis": "consent", "centre": "Centre", "shared_data": ["updates"], "mechanism": "pseudonymise",
            "dates": "year", "disclosure": "noisy", "min_cell_count": 5, "outcome": "ill",
            "statements": {"models-stay": "They stay."},
        },
        "method": {
            "task": "classification", "model": "logistic", "codec": "raw", "downlink": None, "rounds": 3,
            "final_rounds": 0, "validation_fraction": 0.1, "strategy": {"name": "SyncDVW", "quorum": None},
            "training": {"epochs": 2}, "evaluation": {"test_fraction": 0.2},
        },
        "cohort_reports": {
            "north": {"attrition": ATTRITION, "sd": 3.0, "threshold": 10, "remarks": ["r"]},
            "south": {"attrition": ATTRITION},
            "west": {},
        },
        "excluded_sites": {"west": "only one class"},
        "anonymity": {
            "k": 5,
            "columns": ["age"],
            "levels": [1],
            "records": 900,
            "suppressed": "<5",
            "loss": 0.1,
            "finest": {"kos": [1], "athens": [0]},
        },
        "cohorts": {"north": "a" * 64, "south": "b" * 64},
        "tables": {"north": "c" * 64, "south": "d" * 64},
        "software_versions": {"abaton": "0"},
    }  # fmt: skip
    curve = {
        "roc": [[0.0, 1.0], [0.0, 1.0]],
        "calibration": [[0.2, {"value": 0.2, "low": 0.1, "high": 0.3}]],
    }
    result = {
        "reason": "all rounds are done", "version": 3, "seconds": 4.0, "digest": "e" * 64,
        "evaluation": {
            "rows": [
                line("community", "all sites", "all"),
                line("community", "north", "site", None),
                line("pooled", "all sites", "all"),
            ],
            "curves": {"community": curve, "pooled": {}},
            "min_cell_count": 5,
            "local_benefit": {"metric": "auroc", "sites": {"north": BENEFIT, "south": None}},
        },
        "progress": [{"version": 0, "timestamp": 0.0, "auroc": 0.5}, {"version": 3, "timestamp": 4.0, "auroc": 0.8}],
        "traffic": {
            "north": {
                "updates": 3, "bytes_up": 10, "uncompressed": 40,
                "models": 4, "bytes_down": 50, "uncompressed_down": 80,
            },
        },
    }  # fmt: skip
    values = {"recipe": recipe, "result": result, **more}
    return RunRow("s-1", "2026-11-16", "virtual", values["recipe"], "9" * 64, "finished", values["result"])


def explained_row() -> RunRow:
    """Return a run with interpretability results."""
    return row(result={**row().result, **INTERPRETABILITY})


EVENTS = [
    ("learner_joined", {"timestamp": 0.0, "learner": "north", "examples": 40}),
    (
        "update_received",
        {
            "timestamp": 1.0,
            "learner": "north",
            "task": "t1",
            "payload_bytes": 9,
            "steps": 2,
            "cohort": "x" * 64,
        },
    ),
    (
        "update_received",
        {
            "timestamp": 2.0,
            "learner": "north",
            "task": "t2",
            "payload_bytes": 9,
            "steps": 2,
            "cohort": "y" * 64,
        },
    ),
]


def test_the_page_contains_the_report():
    report = make_run_report(row(), EVENTS)
    assert [change["cohort"][0] for change in report["privacy"]["changes"]] == ["x", "y"]
    page = render_run_report(report)
    for text in ("Hearts &amp; minds", "no &lt;label&gt;", "Counts contain noise", "noisy: counts and sums",
                 "only one class", "0.800 (0.700 to 0.900)", "too few", "f" * 64, "c" * 64, "--seed 3 --baselines",
                 "They stay.", "y" * 16):  # fmt: skip
        assert text in page, text
    assert page.count("<h1>") == 1


def test_the_page_starts_with_the_finding_and_ends_with_technical_details():
    page = render_run_report(make_run_report(explained_row(), EVENTS))
    order = ("finding", "local-benefit", "cohort", "evaluation", "interpretability", "privacy", "method",
             "training-and-traffic", "provenance")  # fmt: skip
    positions = [page.index(f'<h2 id="{section}">') for section in order]
    assert positions == sorted(positions)
    assert page.index('<details class="technical">') < positions[-2]
    assert (
        "predicts ill with an AUROC of 0.800 (95\u00a0% interval 0.700 to 0.900), "
        "in 40 held-out test subjects of 2 sites" in page
    )
    assert (
        "the community model is clearly better at 1 of 1 site and clearly worse at none. "
        "1 other site has too few test subjects." in page
    )
    assert "+0.100 (+0.020 to +0.200)" in page
    assert "40 subjects, 2 sites" in page
    assert "Permutation importance" not in render_run_report(make_run_report(row(), EVENTS))


def test_every_figure_has_its_values_as_a_table():
    page = render_run_report(make_run_report(explained_row(), EVENTS))
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.S)
    assert len(figures) >= 7
    assert all(
        re.search(r'<div class="values"><div class="scroll".*?<td', figure, flags=re.S) for figure in figures
    )


def test_a_run_without_evaluation_is_reported():
    result = {
        **row().result,
        "evaluation": {"rows": [line("community", "all sites", "all", None)], "curves": {}},
    }
    page = render_run_report(make_run_report(row(result=result), EVENTS))
    assert "There are too few test subjects" in page
    assert "did not compare" in page


def test_decreasing_errors_are_benefits_and_suppressed_counts_stay():
    decrease = {"value": -0.5, "low": -0.9, "high": -0.1}
    results = {
        "metric": "rmse",
        "sites": {"north": {"local_only": decrease, "community": decrease, "difference": decrease}},
    }
    (benefit,) = local_benefits({"local_benefit": results, "rows": []})
    assert (benefit["verdict"], benefit["benefit"]) == ("better", {"value": 0.5, "low": 0.1, "high": 0.9})
    stages = cohort_flow_data(
        {"north": {"attrition": ATTRITION}, "south": {"attrition": ATTRITION}, "west": {}}
    )
    assert [(stage["stage"], stage["subjects"]) for stage in stages] == [
        ("consented", "180"),
        ("rows", "≥10"),
    ]
    assert stages[1]["excluded"] == [("no <label>", "≤8")]
    assert [bar["is_exact"] for bar in stages[1]["bars"]] == [False, False]


def test_numbers_of_examples_are_suppressed():
    report = make_run_report(row(), EVENTS)
    (learner,) = report["results"]["training"]["learners"]
    assert (learner["learner"], learner["updates"], learner["bytes"]) == ("north", 2, 18)
    assert not {"examples", "steps"} & set(learner)
    assert '<th scope="col" class="n">examples' not in render_run_report(report)


def test_the_page_fetches_nothing():
    page = render_run_report(make_run_report(row(), EVENTS))
    assert "default-src &#39;none&#39;" in page
    assert "unsafe" not in page.split('Content-Security-Policy" content="')[1].split('"')[0]
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", outside)
    assert "<link" not in outside
    assert "<script src" not in page


def test_other_and_unfinished_runs_are_refused():
    with pytest.raises(SettingsError, match="not a study run"):
        make_run_report(row(recipe={"name": "strategy", "settings": {}}), [])
    with pytest.raises(SettingsError, match="is not finished"):
        make_run_report(row(result=None), [])
