"""What a model goes by and what sites gain, as figures: each has a table with every number, and nothing is invented."""

from __future__ import annotations

import json

from abaton.report.interpretability_figures import explaining_figures

ESTIMATE = {"value": 0.1, "low": 0.05, "high": 0.2}
GAIN = {"measure": "auroc", **ESTIMATE}
UNKNOWN = {"value": None, "low": None, "high": None}


def line(site: str, model: str, gain=GAIN, **other):
    known = gain["low"] is not None
    measures = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9} if known else UNKNOWN}
    return {
        "site": site, "model": model, "chosen": {}, "measures": measures, "subjects": "60", "gain": gain,
        "over_community": gain, **other,
    }  # fmt: skip


RESULTS = {
    "personal": {
        "lines": [
            line("kos", "own"),
            line("kos", "community"),
            line("kos", "interpolate", chosen={"weight": 0.25}),
            line("delos", "own", {"measure": "auroc", **UNKNOWN}),
            line("delos", "community", {"measure": "auroc", **UNKNOWN}),
        ],
        "left_out": {},
    },
    "explanation": {
        "measure": "auroc",
        "cases": ["yes"],
        "importance": [
            {"input": "<b>age</b>", "subset": "all sites", "of": "all", "sites": 2, "subjects": 90, **ESTIMATE},
            {"input": "sex", "subset": "kos", "of": "site", "sites": 1, "subjects": 60, **ESTIMATE},
        ],
        "coefficients": [
            {"case": "yes", "column": "age", "input": "age", "measured": True, "per_deviation": 0.5, "per_unit": 0.05}
        ],
        "dependence": [
            {"input": "age", "at": [40.0, 60.0], "all": [[0.2], [0.4]], "sites": {"kos": [[0.1], [0.3]]}},
            {"input": "sex", "at": ["no", "yes"], "all": [[0.2], [0.4]], "sites": {"kos": [[0.1], [0.3]]}},
        ],
        "calibration": [
            {"subset": "all sites", "of": "all", "sites": 2, "subjects": 90, "points": [[0.3, ESTIMATE]]}
        ],
        "decision": [
            {"subset": "all sites", "of": "all", "sites": 2, "subjects": 90, "thresholds": [0.05, 0.1],
             "model": [0.3, 0.2], "everybody": [0.3, 0.1]}
        ],
    },
}  # fmt: skip


def test_a_run_that_was_not_asked_has_none():
    assert explaining_figures({}) == {}
    assert explaining_figures({"personal": {"lines": [], "left_out": {"kos": "no"}}}) == {}


def test_every_part_is_drawn_and_has_its_table():
    made = explaining_figures(RESULTS)
    assert list(made) == [
        "personal", "importance", "coefficients", "dependence-age", "dependence-sex", "calibration-by", "decision",
    ]  # fmt: skip
    for each in made.values():
        assert each["title"]
        assert each["words"]
        heads, rows = each["table"]["heads"], each["table"]["rows"]
        assert rows
        assert {len(row) for row in rows} == {len(heads)}
    assert json.dumps(made)
    assert "<b>" not in json.dumps([made["importance"]["data"], made["importance"]["layout"]])


def test_gains_are_drawn_where_they_are_known_and_said_where_not():
    gains = explaining_figures(RESULTS)["personal"]
    assert [trace["name"] for trace in gains["data"]] == ["community", "interpolate"]
    assert gains["data"][0]["y"] == ["kos: community"]  # of Delos nothing may be told
    assert gains["table"]["rows"][1] == (
        "kos", "community", "60", "0.800 (0.700 to 0.900)", "0.100 (0.050 to 0.200)", "–", "–",
    )  # fmt: skip
    assert gains["table"]["rows"][2][-1] == "weight 0.25"
    assert gains["table"]["rows"][4][3:5] == ("too few", "too few")


def test_coefficients_have_no_intervals():
    made = explaining_figures(RESULTS)["coefficients"]
    assert "error_x" not in made["data"][0]
    assert made["table"]["heads"] == ["column", "of", "by a deviation", "by a unit"]


def test_numbers_are_curves_and_categories_are_bars():
    made = explaining_figures(RESULTS)
    assert {trace["type"] for trace in made["dependence-age"]["data"]} == {"scatter"}
    assert {trace["type"] for trace in made["dependence-sex"]["data"]} == {"bar"}
    assert made["dependence-sex"]["data"][1]["y"] == [0.1, 0.3]
