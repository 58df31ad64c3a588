"""Figures of runs: JSON values that Plotly accepts, with the same values as a table."""

from __future__ import annotations

import pytest
from plotly.graph_objects import Figure

from abaton.report import (
    AXES,
    STATES,
    box_figure,
    commit_rate_figure,
    cycle_figure,
    metric_figure,
    metric_names,
    payload_figure,
    timeline_figure,
    weight_figure,
)
from abaton.store import CommitInterval, CycleRow, MetricPoint, Quartiles, TrainingSpan

POINTS = [
    MetricPoint(v, float(v), 2.0 * v, v, 100 * v, {"auroc": 0.5 + v / 20, "loss": 1 / (v + 1)})
    for v in range(6)
]
QUARTILES = [Quartiles("north", 9, 1, 2, 3, 4, 5, 3.2), Quartiles("south", 4, 2, 2, 2, 2, 2, 2)]
CYCLES = [CycleRow("north", 1, 1.0, 4, 0.9, 0.8), CycleRow("north", 2, 2.0, 6, 0.7, None)]


def make_figures():
    spans = [TrainingSpan("north", state, float(i), i + 1.0) for i, state in enumerate(STATES)]
    return {
        **{axis: metric_figure({"r": POINTS}, "auroc", axis) for axis in AXES},
        "timeline": timeline_figure(spans, {"north": "fast"}),
        "weights": weight_figure(
            [CommitInterval("north", 1.0, 2, 3.0), CommitInterval("south", 2.0, 1, 1.0)], time_label="seconds"
        ),
        "staleness": box_figure(QUARTILES, label="steps"),
        "cycles": cycle_figure(CYCLES),
        "payloads": payload_figure(QUARTILES, 4000),
        "commit_rate": commit_rate_figure([(0.5, 3), (1.5, 6)], 1.0, time_label="seconds"),
    }


@pytest.mark.parametrize("name", make_figures())
def test_plotly_accepts_every_figure(name):
    content = make_figures()[name]
    figure = Figure({"data": content["data"], "layout": content["layout"]})
    assert len(figure.data) == len(content["data"]) > 0
    column_names, rows = content["table"]["columns"], content["table"]["rows"]
    assert rows
    assert all(len(row) == len(column_names) for row in rows)


@pytest.mark.parametrize("axis", AXES)
def test_a_metric_is_drawn_over_each_axis(axis):
    (line,) = metric_figure({"r": POINTS}, "loss", axis)["data"]
    assert line["x"] == [getattr(point, axis) for point in POINTS]
    assert line["y"] == [point.metrics["loss"] for point in POINTS]


def test_versions_without_a_value_are_omitted():
    old = MetricPoint(9, 9.0, None, None, None, {"auroc": 0.9})
    assert metric_figure({"r": [*POINTS, old]}, "auroc", "bytes")["data"][0]["x"][-1] == 500
    assert metric_figure({"r": [*POINTS, old]}, "auroc", "version")["data"][0]["x"][-1] == 9
    assert metric_names([MetricPoint(0, 0.0, None, None, None, {"rmse": 1.0, "r2": 0.1, "auroc": 0.2})]) == [
        "auroc",
        "r2",
        "rmse",
    ]


def test_real_time_is_not_called_simulated():
    axis_title = metric_figure({"r": POINTS}, "auroc", "timestamp", is_simulated=False)["layout"]["xaxis"][
        "title"
    ]["text"]
    assert "simulated" not in axis_title


def test_weight_fractions_add_up_and_follow_the_latest_weights():
    figure = weight_figure(
        [
            CommitInterval("a", 1.0, 1, 1.0),
            CommitInterval("b", 1.0, 1, 3.0),
            CommitInterval("a", 2.0, 1, 3.0),
        ],
        time_label="seconds",
    )
    assert [trace["y"] for trace in figure["data"]] == [[0.25, 0.5], [0.75, 0.5]]


def test_every_state_has_its_own_colour_and_seconds_in_the_table():
    figure = timeline_figure(
        [
            TrainingSpan("a", "training", 0.0, 2.0),
            TrainingSpan("a", "training", 3.0, 4.0),
            TrainingSpan("a", "lost", 4.0, 9.0),
        ],
        {},
    )
    assert len({trace["marker"]["color"] for trace in figure["data"]}) == 5
    assert figure["table"]["rows"] == [("a", 3.0, 0.0, 0.0, 0.0, 5.0)]


def test_cycles_show_validation_loss_where_available():
    assert cycle_figure(CYCLES)["data"][0]["y"] == [0.8]
    without_validation = [CycleRow("n", 1, 1.0, 4, 0.9, None)]
    assert cycle_figure(without_validation)["data"][0]["y"] == [0.9]
    assert cycle_figure(without_validation)["layout"]["yaxis"]["title"]["text"] == "training loss"


def test_names_are_no_markup():
    name = "<a href='javascript:x'>%{x}"
    quartiles = [Quartiles(name, 1, 1, 1, 1, 1, 1, 1)]
    for figure in (
        metric_figure({name: POINTS, "r": POINTS}, "auroc", "timestamp"),
        box_figure(quartiles, label="steps"),
        timeline_figure([TrainingSpan(name, "training", 0.0, 1.0)], {}),
        cycle_figure([CycleRow(name, 1, 1.0, 4, 0.9, 0.8)]),
    ):
        texts = str([(t.get("name"), t.get("x"), t.get("y"), t.get("hovertemplate")) for t in figure["data"]])
        assert "<a" not in texts
        assert "javascript:x'>" not in texts
