"""Tables and figures of exact performance: intervals, axis titles, and what is too few or not released."""

from __future__ import annotations

import re
from pathlib import Path

from tests.report.test_run_report import EVENTS, row

from abaton.report import make_run_report, render_card_markdown, render_run_report
from abaton.report.evaluation_figures import format_interval
from abaton.report.performance_tables import (
    NOT_RELEASED,
    calibration_facts,
    group_table,
    heterogeneity_table,
    heterogeneity_text,
    performance_figures,
    recalibration_text,
    validation_table,
)
from abaton.report.tripod_checklist import FILLED, ITEMS, PARTLY, PERSON, checklist_table

ESTIMATE = {"value": 0.8, "low": 0.7, "high": 0.9}
CURVE = {name: [0.1 * i + shift for i in range(11)] for name, shift in
         (("predicted", 0), ("observed", 0), ("low", -0.05), ("high", 0.05))}  # fmt: skip
META = {"mean": ESTIMATE, "tau2": 0.1, "i2": 0.42, "q": 5.0, "sites": 3}
PERFORMANCE = {
    "min_cases": 10,
    "calibration": {"observed_expected": ESTIMATE, "curve": CURVE, "ici": 0.021, "e50": 0.02, "e90": 0.05,
                    "method": "restricted cubic spline logistic recalibration", "knots": [0.05, 0.1, 0.2, 0.4]},
    "heterogeneity": {"sites": {"north": {"auroc": ESTIMATE, "observed_expected": ESTIMATE}, "south": None},
                      "auroc": META},
    "decision": {"thresholds": [0.01, 0.02, 0.03], "model": [0.1, 0.09, 0.08], "low": [0.05, 0.04, 0.03],
                 "high": [0.15, 0.14, 0.13], "treat_all": [0.1, 0.05, 0.0]},
    "groups": [{"group": "sex: f", "grouping": "sex", "auroc": ESTIMATE, "others": ESTIMATE,
                "difference": {"value": 0.1, "low": -0.1, "high": 0.3}, "observed_expected": ESTIMATE},
               {"group": "sex: m", "grouping": "sex"}],
}  # fmt: skip
DESCRIPTION = {
    "characteristics": {
        "sites": {"north": 40, "south": 50, "all sites": 90},
        "rows": [
            {"input": "age, a", "level": "", "statistic": "mean (SD)",
             "cells": {"north": "60 (9)", "south": "61 (8)", "all sites": "60.5 (9)"},
             "missing": {"north": "<5", "south": "≥5", "all sites": "9 (10.0 %)"},
             "differences": {"north": -0.25, "south": None}},
        ],
    },
    "censoring": {
        "north": {"censored": "12", "range": [1.0, 1.4], "truncated": "0", "effective": 98.2, "rows": 100}
    },
    "events_per_parameter": {
        "unit": "events", "parameters": 20, "columns": 5,
        "sites": {"north": {"events": "10", "per_parameter": 0.5, "per_column": 2.0},
                  "all sites": {"events": "<5", "per_parameter": None, "per_column": None}},
    },
    "attrition": {"north": [{"stage": "consented", "subjects": "90", "excluded": []},
                            {"stage": "in_force", "subjects": "80", "excluded": [{"reason": "r", "subjects": "10"}]},
                            {"stage": "evaluated", "subjects": "30", "excluded": [{"reason": "t", "subjects": "50"}]}]},
}  # fmt: skip


def described_row():
    """Return a run on one machine, with all exact results."""
    results = {"performance": PERFORMANCE, "cohort_description": DESCRIPTION, "internal_external_validation": {
        "sites": {"north": {"subjects": "90", "metrics": dict.fromkeys(
            ("auroc", "calibration_slope", "observed_expected"), ESTIMATE)},
            "south": {"subjects": "80", "metrics": None}}, "auroc": None}}  # fmt: skip
    return row(result={**row().result, **results})


def test_the_page_has_every_section_and_one_attrition_per_site():
    report = make_run_report(described_row(), EVENTS)
    html = render_run_report(report)
    for text in ("Smooth calibration curve", "Decision curve", "Heterogeneity between sites", "60 (9)", "−0.25",
                 "1.00 to 1.40", "98 of 100",
                 "Internal-external validation", "+0.100 (−0.100 to +0.300)", "0.800 (0.700 to 0.900)"):  # fmt: skip
        assert text in html, text
    assert NOT_RELEASED not in html
    assert report["cohort"]["sites"]["north"]["attrition"] == DESCRIPTION["attrition"]["north"]
    assert render_run_report(make_run_report(row(), EVENTS)).count(NOT_RELEASED) == 2


def test_figures_have_the_axes_that_clinicians_know():
    figures = performance_figures(PERFORMANCE)
    titles = {name: [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
              for name, figure in figures.items()}  # fmt: skip
    assert titles == {
        "smooth_calibration": ["predicted probability", "observed proportion"],
        "net_benefit": ["threshold probability", "net benefit"],
    }
    assert figures["net_benefit"]["table"]["rows"][0] == ("0.01", "+0.100 (+0.050 to +0.150)", "+0.100")
    assert performance_figures(None) == {}


def test_results_of_too_few_subjects_are_marked():
    assert heterogeneity_table(PERFORMANCE["heterogeneity"])[1][1] == ("south", "too few", "too few")
    assert group_table(PERFORMANCE["groups"])[1][1][1:] == ("too few",) * 3
    validation = {"sites": {"kos": {"subjects": "<5", "metrics": None}}, "auroc": None}
    assert validation_table(validation)[1] == [("kos", "<5", "too few", "too few", "too few")]
    facts = calibration_facts({"observed_expected": ESTIMATE, "curve": None})
    assert facts["calibration curve"] == "not estimable"


def test_heterogeneity_speaks_of_hospitals_like_these():
    sentence = heterogeneity_text(META)
    assert "I² is 42 %" in sentence
    assert "hospitals like these" in sentence


def test_the_checklist_has_all_items_and_says_what_is_missing_on_a_network():
    assert [item[0] for item in ITEMS] == [str(i) for i in range(1, 28)]
    assert {item[2] for item in ITEMS} == {FILLED, PARTLY, PERSON}
    by_number = {line[0]: line for line in checklist_table({})[1]}
    assert by_number["20"][2:] == (PARTLY, "Cohort; not available in this run")
    complete = {
        line[0]: line
        for line in checklist_table({"cohort_description": DESCRIPTION, "performance": {"a": 1}})[1]
    }
    assert complete["20"][2] == FILLED


def test_the_checklist_of_the_documentation_is_that_of_the_report():
    page = (Path(__file__).resolve().parents[2] / "docs" / "tripod-ai.md").read_text(encoding="utf-8")
    lines = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page.splitlines()
             if re.match(r"\| \d+ \|", line)]  # fmt: skip
    assert lines == [
        tuple(map(str, line)) for line in checklist_table({"cohort_description": 1, "performance": 1})[1]
    ]


def test_the_model_card_has_the_exact_results():
    from tests.report.test_pages_in_a_browser import CARD

    exact = {"exact_performance": PERFORMANCE, "events_per_parameter": DESCRIPTION["events_per_parameter"]}
    card = render_card_markdown({**CARD, **exact})
    for text in ("## Calibration measures", "## Heterogeneity between sites", "## Performance by group",
                 "## Events per parameter", "0.021"):  # fmt: skip
        assert text in card, text
    assert "## Events per parameter" not in render_card_markdown(CARD)


def test_the_recalibration_is_stated_with_its_calibration_on_test_subjects():
    test = {"calibration slope": ESTIMATE, "calibration intercept": ESTIMATE}
    line = {"intercept": -0.1, "slope": 1.2, "status": "fitted", "test": test}
    text = recalibration_text(line)
    assert "on validation subjects: slope 1.200, intercept -0.100; 'abaton model predict' applies it." in text
    assert text.count(format_interval(ESTIMATE)) == 2
    reversed_line = {"intercept": 0.1, "slope": -1.2, "status": "slope not above 0", "test": None}
    assert recalibration_text(reversed_line).endswith("'abaton model predict' does not apply it.")
