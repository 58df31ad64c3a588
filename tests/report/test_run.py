"""The report of a run: everything is on one page, nothing is fetched, nothing is told that was masked."""

from __future__ import annotations

import re

import pytest

from abaton.errors import SettingsError
from abaton.report import run_page, run_report
from abaton.store import RunRow

AUROC = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}, "brier": {"value": 0.1, "low": None, "high": None}}
FUNNEL = [
    {"stage": "read", "subjects": "90", "left_out": []},
    {"stage": "rows", "subjects": "≥5", "left_out": [{"reason": "no <label>", "subjects": "<5"}]},
]


def line(model: str, subset: str, of: str, measures: dict | None = AUROC) -> dict:
    return {"model": model, "subset": subset, "of": of, "subjects": "40", "sites": 2, "measures": measures}


def row(**more) -> RunRow:
    recipe = {
        "name": "study",
        "settings": {"seed": 3, "now": "2026-11-16T00:00:00+00:00", "baselines": True},
        "study": {
            "id": "s", "hash": "f" * 64, "title": "Hearts & minds", "question": "Who?", "purpose": "diagnostic",
            "legal_basis": "consent", "centre": "Centre", "shares": ["updates"], "mechanism": "pseudonymise",
            "dates": "year", "smallest_count": 5, "statements": {"models-stay": "They stay."}, "outcome": "ill",
        },
        "method": {
            "task": "classes", "network": "logistic", "codec": "raw", "rounds": 3, "finishing": 0, "validation": 0.1,
            "policy": {"name": "SyncDVW", "quorum": None}, "training": {"epochs": 2}, "evaluation": {"test": 0.2},
        },
        "told": {
            "north": {"funnel": FUNNEL, "set_aside": [{"reason": "half-written", "count": "<5"}], "remarks": ["r"]},
            "south": {"funnel": FUNNEL},
            "west": {},
        },
        "left_out": {"west": "only one class"},
        "anonymity": {"k": 5, "columns": ["age"], "levels": [1], "records": 900, "left_out": "<5", "loss": 0.1},
        "cohorts": {"north": "a" * 64, "south": "b" * 64},
        "tables": {"north": "c" * 64, "south": "d" * 64},
        "versions": {"abaton": "0"},
    }  # fmt: skip
    curve = {
        "roc": [[0.0, 1.0], [0.0, 1.0]],
        "calibration": [[0.2, {"value": 0.2, "low": 0.1, "high": 0.3}]],
    }
    result = {
        "reason": "all rounds are done", "version": 3, "seconds": 4.0, "digest": "e" * 64,
        "evaluation": {
            "lines": [
                line("community", "all sites", "all"),
                line("community", "north", "site", None),
                line("all data pooled", "all sites", "all"),
            ],
            "curves": {"community": curve, "all data pooled": {}},
            "smallest_count": 5,
        },
        "progress": [{"version": 0, "at": 0.0, "auroc": 0.5}, {"version": 3, "at": 4.0, "auroc": 0.8}],
        "traffic": {"north": {"updates": 3, "bytes_up": 10, "uncompressed": 40}},
    }  # fmt: skip
    values = {"recipe": recipe, "result": result, **more}
    return RunRow("s-1", "2026-11-16", "virtual", values["recipe"], "9" * 64, "finished", values["result"])


EVENTS = [
    ("Joined", {"at": 0.0, "learner": "north", "examples": 40}),
    ("Arrived", {"at": 1.0, "learner": "north", "task": "t1", "size": 9, "steps": 2, "cohort": "x" * 64}),
    ("Arrived", {"at": 2.0, "learner": "north", "task": "t2", "size": 9, "steps": 2, "cohort": "y" * 64}),
]


def test_the_report_has_everything_and_the_page_is_made_of_it():
    report = run_report(row(), EVENTS)
    assert [each["cohort"][0] for each in report["privacy"]["changes"]] == ["x", "y"]
    page = run_page(report)
    for words in ("Hearts &amp; minds", "no &lt;label&gt;", "half-written", "only one class", "0.800 (0.700 to 0.900)",
                  "too few", "f" * 64, "c" * 64, "--seed 3 --baselines", "They stay.", "y" * 16):  # fmt: skip
        assert words in page, words
    assert page.count("<h1>") == 1


def test_no_number_of_examples_is_told_since_counts_of_people_may_be_masked():
    report = run_report(row(), EVENTS)
    (line,) = report["results"]["course"]["learners"]
    assert (line["learner"], line["updates"], line["bytes"]) == ("north", 2, 18)
    assert not {"examples", "steps"} & set(line)
    assert '<th scope="col" class="n">examples' not in run_page(report)


def test_the_page_fetches_nothing():
    page = run_page(run_report(row(), EVENTS))
    assert "default-src 'none'" in page
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", outside)
    assert "<link" not in outside
    assert "<script src" not in page


def test_a_run_of_something_else_or_without_an_end_is_refused():
    with pytest.raises(SettingsError, match="not one of a study"):
        run_report(row(recipe={"name": "clinics", "settings": {}}), [])
    with pytest.raises(SettingsError, match="has not ended"):
        run_report(row(result=None), [])
