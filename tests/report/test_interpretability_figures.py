"""Figures of interpretability and personal models; each has a table with all values."""

from __future__ import annotations

import json

from abaton.report.interpretability_figures import make_interpretability_figures

ESTIMATE = {"value": 0.1, "low": 0.05, "high": 0.2}
GAIN = {"metric": "auroc", **ESTIMATE}
UNKNOWN = {"value": None, "low": None, "high": None}


def row(site: str, model: str, gain=GAIN, **other):
    is_known = gain["low"] is not None
    metrics = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9} if is_known else UNKNOWN}
    return {
        "site": site, "model": model, "selected": {}, "metrics": metrics, "subjects": "60",
        "gain_over_local_only": gain, "gain_over_community": gain, **other,
    }  # fmt: skip


RESULTS = {
    "personal_models": {
        "rows": [
            row("kos", "local_only"),
            row("kos", "community"),
            row("kos", "interpolate", selected={"weight": 0.25}),
            row("delos", "local_only", {"metric": "auroc", **UNKNOWN}),
            row("delos", "community", {"metric": "auroc", **UNKNOWN}),
        ],
        "excluded_sites": {},
    },
    "interpretability": {
        "metric": "auroc",
        "cases": ["yes"],
        "importance": [
            {"input": "<b>age</b>", "group": "all sites", "grouping": "all", "sites": 2, "subjects": 90, **ESTIMATE},
            {"input": "sex", "group": "kos", "grouping": "site", "sites": 1, "subjects": 60, **ESTIMATE},
        ],
        "coefficients": [
            {"case": "yes", "column": "age", "input": "age", "is_numeric": True, "per_std": 0.5, "per_unit": 0.05}
        ],
        "partial_dependence": [
            {"input": "age", "grid": [40.0, 60.0], "all": [[0.2], [0.4]], "sites": {"kos": [[0.1], [0.3]]}},
            {"input": "sex", "grid": ["no", "yes"], "all": [[0.2], [0.4]], "sites": {"kos": [[0.1], [0.3]]}},
        ],
        "calibration": [
            {"group": "all sites", "grouping": "all", "sites": 2, "subjects": 90, "points": [[0.3, ESTIMATE]]}
        ],
        "decision": [
            {"group": "all sites", "grouping": "all", "sites": 2, "subjects": 90, "thresholds": [0.05, 0.1],
             "model": [0.3, 0.2], "treat_all": [0.3, 0.1]}
        ],
    },
}  # fmt: skip


def test_a_run_without_interpretability_has_no_figures():
    assert make_interpretability_figures({}) == {}
    assert (
        make_interpretability_figures({"personal_models": {"rows": [], "excluded_sites": {"kos": "no"}}})
        == {}
    )


def test_every_section_has_a_figure_and_a_table():
    figures = make_interpretability_figures(RESULTS)
    assert list(figures) == [
        "personal", "importance", "coefficients", "dependence-age", "dependence-sex", "calibration-by", "decision",
    ]  # fmt: skip
    for figure in figures.values():
        assert figure["title"]
        assert figure["description"]
        column_names, rows = figure["table"]["columns"], figure["table"]["rows"]
        assert rows
        assert {len(row) for row in rows} == {len(column_names)}
    assert json.dumps(figures)
    assert "<b>" not in json.dumps([figures["importance"]["data"], figures["importance"]["layout"]])


def test_known_local_benefits_are_drawn_and_others_listed():
    figure = make_interpretability_figures(RESULTS)["personal"]
    assert [trace["name"] for trace in figure["data"]] == ["community", "interpolate"]
    assert figure["data"][0]["y"] == ["kos: community"]  # the results of Delos are suppressed
    assert figure["table"]["rows"][1] == (
        "kos", "community", "60", "0.800 (0.700 to 0.900)", "0.100 (0.050 to 0.200)", "–", "–",
    )  # fmt: skip
    assert figure["table"]["rows"][2][-1] == "weight 0.25"
    assert figure["table"]["rows"][4][3:5] == ("too few", "too few")


def test_coefficients_have_no_intervals():
    figure = make_interpretability_figures(RESULTS)["coefficients"]
    assert "error_x" not in figure["data"][0]
    assert figure["table"]["columns"] == ["column", "class", "per standard deviation", "per unit"]


def test_numeric_inputs_are_curves_and_categories_bars():
    figures = make_interpretability_figures(RESULTS)
    assert {trace["type"] for trace in figures["dependence-age"]["data"]} == {"scatter"}
    assert {trace["type"] for trace in figures["dependence-sex"]["data"]} == {"bar"}
    assert figures["dependence-sex"]["data"][1]["y"] == [0.1, 0.3]
