"""The report of a run: everything is on one page, nothing is fetched, nothing is told that was masked."""

from __future__ import annotations

import re

import pytest
from tests.report.test_explaining_figures import RESULTS as EXPLAINED

from abaton.errors import SettingsError
from abaton.report import run_page, run_report
from abaton.report.findings import site_gains
from abaton.report.cohort_flow import cohort_flow
from abaton.store import RunRow

AUROC = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}, "brier": {"value": 0.1, "low": None, "high": None}}
GAIN = {
    "own": {"value": 0.7, "low": 0.6, "high": 0.8},
    "community": {"value": 0.8, "low": 0.7, "high": 0.9},
    "difference": {"value": 0.1, "low": 0.02, "high": 0.2},
}
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
            "task": "classes", "network": "logistic", "codec": "raw", "downlink": None, "rounds": 3, "finishing": 0,
            "validation": 0.1,
            "policy": {"name": "SyncDVW", "quorum": None}, "training": {"epochs": 2}, "evaluation": {"test": 0.2},
        },
        "told": {
            "north": {"funnel": FUNNEL, "set_aside": [{"reason": "half-written", "count": "<5"}], "remarks": ["r"]},
            "south": {"funnel": FUNNEL},
            "west": {},
        },
        "left_out": {"west": "only one class"},
        "anonymity": {
            "k": 5,
            "columns": ["age"],
            "levels": [1],
            "records": 900,
            "left_out": "<5",
            "loss": 0.1,
            "finest": {"kos": [1], "athens": [0]},
        },
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
            "gains": {"measure": "auroc", "sites": {"north": GAIN, "south": None}},
        },
        "progress": [{"version": 0, "at": 0.0, "auroc": 0.5}, {"version": 3, "at": 4.0, "auroc": 0.8}],
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
    """A run whose study asked what the model goes by."""
    return row(result={**row().result, **EXPLAINED})


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


def test_the_page_answers_first_and_folds_the_machine_away():
    page = run_page(run_report(explained_row(), EVENTS))
    order = ("the-finding", "what-each-site-gains", "who-took-part", "how-good-the-models-are",
             "what-the-model-goes-by", "privacy", "method", "how-it-went", "how-to-do-it-again")  # fmt: skip
    places = [page.index(f'<h2 id="{each}">') for each in order]
    assert places == sorted(places)
    assert page.index('<details class="machine">') < places[-2]
    assert (
        "predicts ill with an AUROC of 0.800 (95\u00a0% interval 0.700 to 0.900), in 40 people of 2 sites"
        in page
    )
    assert (
        "the community model is clearly better at 1 of 2 sites and clearly worse at none; at 1 too few"
        in page
    )
    assert "+0.100 (+0.020 to +0.200)" in page
    assert "40 people, 2 sites" in page
    assert "What the model goes by" not in run_page(run_report(row(), EVENTS))


def test_every_figure_has_its_numbers_as_a_table():
    page = run_page(run_report(explained_row(), EVENTS))
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.S)
    assert len(figures) >= 7
    assert all(
        re.search(r'<div class="numbers"><div class="scroll".*?<td', each, flags=re.S) for each in figures
    )


def test_a_run_that_was_not_judged_says_so():
    result = {
        **row().result,
        "evaluation": {"lines": [line("community", "all sites", "all", None)], "curves": {}},
    }
    page = run_page(run_report(row(result=result), EVENTS))
    assert "Too few people could be tested" in page
    assert "did not compare" in page


def test_errors_that_fall_are_gains_and_masks_stay():
    fall = {"value": -0.5, "low": -0.9, "high": -0.1}
    told = {"measure": "rmse", "sites": {"north": {"own": fall, "community": fall, "difference": fall}}}
    (gain,) = site_gains({"gains": told, "lines": []})
    assert (gain["verdict"], gain["gain"]) == ("gains", {"value": 0.5, "low": 0.1, "high": 0.9})
    stages = cohort_flow({"north": {"funnel": FUNNEL}, "south": {"funnel": FUNNEL}, "west": {}})
    assert [(each["stage"], each["people"]) for each in stages] == [("read", "180"), ("rows", "≥10")]
    assert stages[1]["left_out"] == [("no <label>", "≤8")]
    assert [bar["exact"] for bar in stages[1]["bars"]] == [False, False]


def test_no_number_of_examples_is_told_since_counts_of_people_may_be_masked():
    report = run_report(row(), EVENTS)
    (line,) = report["results"]["course"]["learners"]
    assert (line["learner"], line["updates"], line["bytes"]) == ("north", 2, 18)
    assert not {"examples", "steps"} & set(line)
    assert '<th scope="col" class="n">examples' not in run_page(report)


def test_the_page_fetches_nothing():
    page = run_page(run_report(row(), EVENTS))
    assert "default-src &#39;none&#39;" in page
    assert "unsafe" not in page.split('Content-Security-Policy" content="')[1].split('"')[0]
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", outside)
    assert "<link" not in outside
    assert "<script src" not in page


def test_a_run_of_something_else_or_without_an_end_is_refused():
    with pytest.raises(SettingsError, match="not one of a study"):
        run_report(row(recipe={"name": "policy", "settings": {}}), [])
    with pytest.raises(SettingsError, match="has not ended"):
        run_report(row(result=None), [])
