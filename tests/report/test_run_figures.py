"""Figures of runs: plain data that Plotly takes, with the same numbers as a table."""

from __future__ import annotations

import pytest
from plotly.graph_objects import Figure

from abaton.report import (
    AXES,
    STATES,
    cycle_figure,
    metric_figure,
    metric_names,
    pace_figure,
    payload_figure,
    spread_figure,
    timeline_figure,
    weight_figure,
)
from abaton.store import CycleLine, Point, Quartiles, Span, Stretch

POINTS = [
    Point(v, float(v), 2.0 * v, v, 100 * v, {"auroc": 0.5 + v / 20, "loss": 1 / (v + 1)}) for v in range(6)
]
SPREAD = [Quartiles("north", 9, 1, 2, 3, 4, 5, 3.2), Quartiles("south", 4, 2, 2, 2, 2, 2, 2)]
CYCLES = [CycleLine("north", 1, 1.0, 4, 0.9, 0.8), CycleLine("north", 2, 2.0, 6, 0.7, None)]


def every():
    spans = [Span("north", what, float(i), i + 1.0) for i, what in enumerate(STATES)]
    return {
        **{axis: metric_figure({"r": POINTS}, "auroc", axis) for axis in AXES},
        "timeline": timeline_figure(spans, {"north": "fast"}),
        "weights": weight_figure(
            [Stretch("north", 1.0, 2, 3.0), Stretch("south", 2.0, 1, 1.0)], words="seconds"
        ),
        "staleness": spread_figure(SPREAD, words="steps"),
        "cycles": cycle_figure(CYCLES),
        "payloads": payload_figure(SPREAD, 4000),
        "pace": pace_figure([(0.5, 3), (1.5, 6)], 1.0, words="seconds"),
    }


@pytest.mark.parametrize("name", every())
def test_plotly_takes_every_figure(name):
    made = every()[name]
    figure = Figure({"data": made["data"], "layout": made["layout"]})
    assert len(figure.data) == len(made["data"]) > 0
    heads, rows = made["table"]["heads"], made["table"]["rows"]
    assert rows
    assert all(len(row) == len(heads) for row in rows)


@pytest.mark.parametrize("axis", AXES)
def test_a_metric_is_drawn_over_each_way_to_count(axis):
    (line,) = metric_figure({"r": POINTS}, "loss", axis)["data"]
    assert line["x"] == [getattr(point, axis) for point in POINTS]
    assert line["y"] == [point.metrics["loss"] for point in POINTS]


def test_versions_without_a_number_are_left_out():
    old = Point(9, 9.0, None, None, None, {"auroc": 0.9})
    assert metric_figure({"r": [*POINTS, old]}, "auroc", "bytes")["data"][0]["x"][-1] == 500
    assert metric_figure({"r": [*POINTS, old]}, "auroc", "version")["data"][0]["x"][-1] == 9
    assert metric_names([Point(0, 0.0, None, None, None, {"rmse": 1.0, "r2": 0.1, "auroc": 0.2})]) == [
        "auroc",
        "r2",
        "rmse",
    ]


def test_real_time_is_not_called_simulated():
    words = metric_figure({"r": POINTS}, "auroc", "at", simulated=False)["layout"]["xaxis"]["title"]["text"]
    assert "simulated" not in words


def test_shares_of_the_mix_add_up_and_follow_the_newest_weights():
    made = weight_figure(
        [Stretch("a", 1.0, 1, 1.0), Stretch("b", 1.0, 1, 3.0), Stretch("a", 2.0, 1, 3.0)], words="seconds"
    )
    assert [trace["y"] for trace in made["data"]] == [[0.25, 0.5], [0.75, 0.5]]


def test_every_state_has_its_own_colour_and_seconds_in_the_table():
    made = timeline_figure(
        [Span("a", "training", 0.0, 2.0), Span("a", "training", 3.0, 4.0), Span("a", "lost", 4.0, 9.0)], {}
    )
    assert len({trace["marker"]["color"] for trace in made["data"]}) == 5
    assert made["table"]["rows"] == [("a", 3.0, 0.0, 0.0, 0.0, 5.0)]


def test_cycles_show_what_others_found_where_they_did():
    assert cycle_figure(CYCLES)["data"][0]["y"] == [0.8]
    alone = [CycleLine("n", 1, 1.0, 4, 0.9, None)]
    assert cycle_figure(alone)["data"][0]["y"] == [0.9]
    assert cycle_figure(alone)["layout"]["yaxis"]["title"]["text"] == "training loss"


def test_names_are_no_markup():
    name = "<a href='javascript:x'>%{x}"
    spread = [Quartiles(name, 1, 1, 1, 1, 1, 1, 1)]
    for made in (
        metric_figure({name: POINTS, "r": POINTS}, "auroc", "at"),
        spread_figure(spread, words="steps"),
        timeline_figure([Span(name, "training", 0.0, 1.0)], {}),
        cycle_figure([CycleLine(name, 1, 1.0, 4, 0.9, 0.8)]),
    ):
        drawn = str([(t.get("name"), t.get("x"), t.get("y"), t.get("hovertemplate")) for t in made["data"]])
        assert "<a" not in drawn
        assert "javascript:x'>" not in drawn
