"""Figures of learners: timeline, weights, staleness, cycles, payload sizes, commit rate; see `training_curves`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, commit_rate_figure, escape_markup
from abaton.store import CommitInterval, CycleRow, Quartiles, TrainingSpan, VisibleActivity

STATES: Mapping[str, str] = {
    "training": "#0f8b8d",
    "uploading": "#e0a100",
    "evaluating": "#7b5cd6",
    "waiting": "#9aa7b4",
    "lost": "#d1495b",
}
"""States of a learner and their colours."""


TITLES: Mapping[str, tuple[str, str]] = {
    "timeline": (
        "Learners over time",
        "State of each learner over time. The thin bar is its evaluator.",
    ),
    "weights": ("Weight of each learner", "Fraction of the total weight, for the most active learners."),
    "staleness": ("Staleness", "Steps or versions committed by others while a learner trained."),
    "cycles": ("Validation cycles", "Loss at the end of each cycle of a learner."),
    "payloads": ("Payload sizes by codec", "Bytes of the encoded updates."),
    "commit_rate": ("Commits per minute", "Rate of accepted updates."),
}
"""Title and description of each figure."""


def activity_figures(activity: VisibleActivity, *, time_label: str) -> dict[str, Figure]:
    """Return all figures of a run's learners by name, for report and dashboard.

    Args:
        activity: Activity of the learners.
        time_label: Title of the time axis.
    """
    figures = {
        "timeline": timeline_figure(
            activity.spans, {learner.learner: learner.group for learner in activity.learners}
        )
    }
    if activity.weights is not None:
        figures["weights"] = weight_figure(activity.weights, time_label=time_label)
    staleness_label = (
        "effective staleness (steps)" if activity.staleness_unit == "steps" else "versions missed"
    )
    figures["staleness"] = box_figure(activity.staleness, label=staleness_label)
    figures["cycles"] = cycle_figure(activity.cycles)
    figures["payloads"] = payload_figure(activity.payload_bytes, activity.model_bytes)
    figures["commit_rate"] = commit_rate_figure(
        [(interval.timestamp, interval.commits) for interval in activity.commits],
        activity.interval_seconds,
        time_label=time_label,
    )
    return figures


def timeline_figure(spans: Sequence[TrainingSpan], groups: Mapping[str, str]) -> Figure:
    """Return the timeline of learners with a bar for each span; evaluation is a thin bar below.

    Args:
        spans: Activity spans of learners.
        groups: Group of each learner; learners are sorted by group.
    """
    learners = sorted({span.learner for span in spans}, key=lambda name: (groups.get(name, ""), name))
    data = []
    for state, colour in STATES.items():
        state_spans = [span for span in spans if span.activity == state]
        is_evaluating = state == "evaluating"
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": state,
                "base": [span.start for span in state_spans],
                "x": [span.end - span.start for span in state_spans],
                "y": [escape_markup(span.learner) for span in state_spans],
                "width": 0.14 if is_evaluating else 0.3 if state == "waiting" else 0.56,
                "offset": -0.46 if is_evaluating else -0.13 if state == "waiting" else -0.26,
                "marker": {
                    "color": colour,
                    "opacity": 0.5 if state == "waiting" else 1,
                    "line": {"width": 0},
                },
                "hovertemplate": state + ": %{x:.3g} s from %{base:.4g} s<extra></extra>",
            }
        )
    layout = {
        "barmode": "overlay",
        "height": 150 + 34 * len(learners),
        "xaxis": {"title": {"text": "time (s)"}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": [escape_markup(name) for name in learners[::-1]],
            "type": "category",
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": True,
    }
    return {"data": data, "layout": layout, "table": _seconds_table(spans, learners)}


def _seconds_table(spans: Sequence[TrainingSpan], learners: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of each learner in each state."""
    seconds: dict[tuple[str, str], float] = {}
    for span in spans:
        seconds[span.learner, span.activity] = (
            seconds.get((span.learner, span.activity), 0.0) + span.end - span.start
        )
    rows = [(name, *(seconds.get((name, state), 0.0) for state in STATES)) for name in learners]
    return {"columns": ["learner", *(f"seconds {state}" for state in STATES)], "rows": rows}


def weight_figure(intervals: Sequence[CommitInterval], *, time_label: str) -> Figure:
    """Return each learner's fraction of the weight of all latest models over time.

    Args:
        intervals: Mean weight of each learner's commits in each time interval.
        time_label: Title of the time axis.
    """
    names = sorted({interval.learner for interval in intervals})
    timestamps = sorted({interval.timestamp for interval in intervals})
    weights = {(interval.learner, interval.timestamp): interval.weight for interval in intervals}
    latest: dict[str, float] = {}
    shares: dict[str, list[float]] = {name: [] for name in names}
    for timestamp in timestamps:
        latest |= {name: weights[name, timestamp] for name in names if (name, timestamp) in weights}
        total = sum(latest.values())
        for name in names:
            shares[name].append(latest.get(name, 0.0) / total if total else 0.0)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "one",
            "x": timestamps,
            "y": shares[name],
            "name": escape_markup(name),
            "line": {"width": 0.7, "color": COLOURS[i % len(COLOURS)]},
            "hovertemplate": "%{y:.1%}",
        }
        for i, name in enumerate(names)
    ]
    layout = {
        "xaxis": {"title": {"text": time_label}},
        "yaxis": {"title": {"text": "fraction of the total weight"}, "tickformat": ".0%", "range": [0, 1]},
        "showlegend": True,
        "hovermode": "x unified",
    }
    rows = [(name, shares[name][0], shares[name][-1]) for name in names] if timestamps else []
    return {
        "data": data,
        "layout": layout,
        "table": {"columns": ["learner", "first fraction", "last fraction"], "rows": rows},
    }


def box_figure(
    quartiles: Sequence[Quartiles], *, label: str, name_label: str = "learner", horizontal: bool = False
) -> Figure:
    """Return box plots of a learner's quantity, such as staleness, by learner, codec or run.

    Args:
        quartiles: Quartiles by name.
        label: Name of the quantity.
        name_label: Column name of the names.
        horizontal: Whether boxes are horizontal, for long names.
    """
    names = [escape_markup(box.name) for box in quartiles]
    data = [
        {
            "type": "box",
            "orientation": "h" if horizontal else "v",
            "y" if horizontal else "x": names,
            "lowerfence": [box.low for box in quartiles],
            "q1": [box.first for box in quartiles],
            "median": [box.median for box in quartiles],
            "q3": [box.third for box in quartiles],
            "upperfence": [box.high for box in quartiles],
            "mean": [box.mean for box in quartiles],
            "name": label,
            "marker": {"color": COLOURS[0]},
            "line": {"width": 1.5},
        }
    ]
    column_names = [
        name_label,
        "commits",
        "minimum",
        "first quartile",
        "median",
        "third quartile",
        "maximum",
        "mean",
    ]
    rows = [
        (box.name, box.count, box.low, box.first, box.median, box.third, box.high, box.mean)
        for box in quartiles
    ]
    category_axis = {"type": "category", "automargin": True}
    value_axis = {"title": {"text": label}, "rangemode": "tozero"}
    layout: dict[str, Any] = {
        "xaxis": value_axis if horizontal else category_axis,
        "yaxis": category_axis if horizontal else value_axis,
    }
    layout["showlegend"] = False
    if horizontal:
        layout["height"] = 140 + 60 * len(quartiles)
    return {"data": data, "layout": layout, "table": {"columns": column_names, "rows": rows}}


def cycle_figure(cycles: Sequence[CycleRow]) -> Figure:
    """Return the validation loss at the end of each learner's cycles, or the training loss if there is none."""
    has_validation = any(cycle.validation is not None for cycle in cycles)
    loss_label = "validation loss" if has_validation else "training loss"
    data = []
    names = sorted({cycle.learner for cycle in cycles})
    for i, name in enumerate(names):
        learner_cycles = [
            (cycle, cycle.validation if has_validation else cycle.loss)
            for cycle in cycles
            if cycle.learner == name
        ]
        learner_cycles = [(cycle, value) for cycle, value in learner_cycles if value is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [cycle.cycle for cycle, _ in learner_cycles],
                "y": [value for _, value in learner_cycles],
                "name": escape_markup(name),
                "line": {"color": COLOURS[i % len(COLOURS)], "width": 1.6},
                "marker": {"size": 4},
                "hovertemplate": "%{y:.4f}",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "cycle"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": loss_label}},
        "showlegend": True,
    }
    column_names = ["learner", "cycle", "training loss", "validation loss", "steps"]
    rows: list[tuple[object, ...]] = [
        (cycle.learner, cycle.cycle, cycle.loss, cycle.validation, cycle.steps) for cycle in cycles[-120:]
    ]
    if any(cycle.steps is None for cycle in cycles):
        column_names, rows = column_names[:-1], [row[:-1] for row in rows]
    return {"data": data, "layout": layout, "table": {"columns": column_names, "rows": rows}}


def payload_figure(quartiles: Sequence[Quartiles], uncompressed: int | None) -> Figure:
    """Return the figure of learners' payload sizes by codec with the uncompressed size.

    Args:
        quartiles: Quartiles of payload sizes by codec.
        uncompressed: Bytes of an uncompressed model.
    """
    figure = box_figure(quartiles, label="payload size (bytes)", name_label="codec", horizontal=True)
    if uncompressed:
        line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": uncompressed, "x1": uncompressed,
                "line": {"dash": "dot", "width": 1.5, "color": COLOURS[1]}}  # fmt: skip
        annotation = {"yref": "paper", "y": 1, "x": uncompressed, "text": f"uncompressed: {uncompressed:,}",
                 "showarrow": False, "xanchor": "right", "yanchor": "top", "xshift": -4}  # fmt: skip
        figure["layout"] |= {"shapes": [line], "annotations": [annotation]}
        figure["table"]["rows"] = [*figure["table"]["rows"], ("uncompressed", None, *[uncompressed] * 6)]
    return figure
