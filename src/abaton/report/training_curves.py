"""Training curves: metrics of each version against rounds, time and bytes, and the activity of each learner.

A figure is a dict of JSON values: Plotly's `data` and `layout`, and `table` with the same values for screen readers.
The page's script draws it; ``plotly.graph_objects.Figure`` accepts it without its table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from abaton.store import MetricPoint, ModelRow
from abaton.store import MetricPoint as Version

Figure = dict[str, Any]

AXES: Mapping[str, str] = {
    "wall_time": "wall-clock time (s)",
    "timestamp": "simulated time (s)",
    "version": "versions of the community model",
    "bytes": "bytes sent by learners",
}
"""Axes of a run's progress, and their titles."""

COLOURS = ("#0f8b8d", "#d1495b", "#7b5cd6", "#c77d0a", "#2e7dd1", "#5a8f29", "#b0479a", "#6b7785")
"""Eight colours that are distinguishable on light and dark backgrounds, and with colour vision deficiency."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LABELS = {
    "auroc": "AUROC", "auprc": "average precision", "brier": "Brier score", "accuracy": "accuracy",
    "rmse": "root mean squared error", "mae": "mean absolute error", "r2": "R²",
    "concordance": "concordance (Harrell's C, pairs within sites)",
}  # fmt: skip
_ERROR_NAME_PARTS = ("loss", "error", "rmse", "mae", "epsilon", "brier")


def metric_label(metric: str) -> str:
    """Return the label of a metric in training curves.

    >>> metric_label("auroc"), metric_label("calibration slope")
    ('AUROC', 'calibration slope')
    """
    return _LABELS.get(metric, metric)


def metric_names(points: Sequence[MetricPoint]) -> list[str]:
    """Return the metrics of a run's training curves, AUROC first, losses last.

    >>> metric_names([MetricPoint(0, 0.0, None, None, None, {"loss": 1.0, "auroc": 0.5})])
    ['auroc', 'loss']
    """
    names = dict.fromkeys(name for point in points for name in point.metrics)
    return sorted(names, key=lambda name: (any(word in name for word in _ERROR_NAME_PARTS), name != "auroc"))


def metric_figure(
    runs: Mapping[str, Sequence[MetricPoint]], metric: str, axis: str, *, is_simulated: bool = True
) -> Figure:
    """Return the training curve of one metric of one or several runs over an axis.

    Args:
        runs: Versions of each run, by the name shown.
        metric: Name of the metric.
        axis: One of :data:`AXES`.
        is_simulated: Whether the engine's time is simulated.
    """
    data, rows = [], []
    for index, (name, points) in enumerate(runs.items()):
        known_points = [(getattr(p, axis), p.metrics[metric]) for p in points if metric in p.metrics]
        known_points = [(x, y) for x, y in known_points if x is not None]
        colour = COLOURS[index % len(COLOURS)]
        has_markers = len(known_points) <= 40
        data.append(
            {
                "type": "scatter",
                "x": [x for x, _ in known_points],
                "y": [y for _, y in known_points],
                "name": escape_markup(name),
                "mode": "lines+markers" if has_markers else "lines",
                "line": {"color": colour, "width": 2.5, "dash": _DASHES[index % len(_DASHES)]},
                "marker": {"color": colour, "size": 5},
                "hovertemplate": "%{y:.4f}<extra>" + escape_markup(name) + "</extra>",
            }
        )
        rows += [(name, x, y) for x, y in _thinned(known_points)]
    axis_label = (
        "time since the start of the run (s)" if axis == "timestamp" and not is_simulated else AXES[axis]
    )
    layout = {
        "xaxis": {"title": {"text": axis_label}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": metric_label(metric)}},
        "showlegend": len(runs) > 1,
        "hovermode": "x unified" if len(runs) > 1 else "closest",
    }
    column_names = ["run", axis_label, metric_label(metric)]
    is_single = len(runs) == 1  # the run is not repeated on every row
    table = {"columns": column_names[is_single:], "rows": [row[is_single:] for row in rows]}
    return {"data": data, "layout": layout, "table": table}


def commit_rate_figure(
    intervals: Sequence[tuple[float, int]], interval_seconds: float, *, time_label: str
) -> Figure:
    """Return the training curve of commits per minute over time.

    Args:
        intervals: Midpoint and number of commits of each time interval.
        interval_seconds: Length of an interval.
        time_label: Title of the time axis.
    """
    rates = [(midpoint, 60.0 * commits / interval_seconds) for midpoint, commits in intervals]
    data = [
        {
            "type": "bar",
            "x": [midpoint for midpoint, _ in rates],
            "y": [value for _, value in rates],
            "width": [0.9 * interval_seconds] * len(rates),
            "name": "commits per minute",
            "marker": {"color": COLOURS[0]},
            "hovertemplate": "%{y:,.1f} per minute<extra></extra>",
        }
    ]
    layout = {"xaxis": {"title": {"text": time_label}, "rangemode": "tozero"},
              "yaxis": {"title": {"text": "commits per minute"}}, "showlegend": False}  # fmt: skip
    return {
        "data": data,
        "layout": layout,
        "table": {"columns": [time_label, "commits per minute"], "rows": rates},
    }


def _thinned(points: Sequence[tuple[float, float]], limit: int = 50) -> list[tuple[float, float]]:
    stride = max(1, -(-len(points) // limit))
    sampled = list(points[::stride])
    return sampled if not points or sampled[-1] == points[-1] else [*sampled, points[-1]]


def escape_markup(name: str) -> str:
    """Return a name in training curves without Plotly's markup and placeholders.

    >>> escape_markup("<b>north</b>")
    '‹b›north‹/b›'
    """
    return name.replace("<", "‹").replace(">", "›").replace("%{", "% {")


Event = tuple[str, Mapping[str, Any]]
PointRow = Mapping[str, Any]

MAX_POINTS = 400
CURVE_AXES = {"version": "rounds", "timestamp": "time (s)", "bytes": "bytes up and down"}
"""Axes against which a metric is drawn, and their titles."""

_POINT_FIELDS = frozenset({*CURVE_AXES, "bytes_up", "bytes_down"})

_MAIN_METRICS = ("auroc", "accuracy", "r2", "rmse", "loss")
_ERROR_METRICS = ("loss", "rmse", "mae", "brier")


def training_progress(
    models: Sequence[ModelRow], events: Iterable[Event], evaluated: Sequence[PointRow] = ()
) -> dict[str, Any]:
    """Return the training curves' metrics of every version with time and bytes, and a row for each learner.

    Args:
        models: Published versions.
        events: The journal.
        evaluated: Versions evaluated after the run, each with `version`, `timestamp` and metrics.

    >>> progress = training_progress([ModelRow(0, 0.0, "", {"loss": 1.0}), ModelRow(1, 2.0, "", {"loss": 0.5})],
    ...               [("learner_joined", {"timestamp": 0.0, "learner": "kos", "examples": 9, "group": ""}),
    ...                ("update_received", {"timestamp": 2.0, "learner": "kos", "payload_bytes": 48, "steps": 3,
    ...                                     "downlink_bytes": 10})])
    >>> progress["points"][-1]
    {'version': 1, 'timestamp': 2.0, 'bytes': 58, 'bytes_up': 48, 'bytes_down': 10, 'loss': 0.5}
    >>> progress["learners"][0]["updates"], progress["main_metric"]
    (1, 'loss')
    """
    journal = list(events)
    points: list[dict[str, Any]] = [dict(point) for point in evaluated] or [
        {"version": model.version, "timestamp": model.timestamp, **model.metrics}
        for model in models
        if model.metrics
    ]
    replies = [
        body for event_type, body in journal if event_type in ("update_received", "evaluation_received")
    ]
    times = [body["timestamp"] for body in replies]
    uplink_bytes = [0, *accumulate(body.get("payload_bytes", 0) for body in replies)]
    downlink_bytes = [0, *accumulate(body.get("downlink_bytes", 0) for body in replies)]
    # The byte axis: bytes of all updates received when the version was published, and of the models sent for them.
    points = [
        {
            "version": p["version"],
            "timestamp": p["timestamp"],
            "bytes": uplink_bytes[index] + downlink_bytes[index],
            "bytes_up": uplink_bytes[index],
            "bytes_down": downlink_bytes[index],
            **p,
        }
        for p in downsample(points)
        for index in (bisect_right(times, p["timestamp"]),)
    ]
    points = [{name: value if _is_finite(value) else None for name, value in p.items()} for p in points]
    metrics = list(
        dict.fromkeys(name for p in points for name in p if name not in _POINT_FIELDS and p[name] is not None)
    )
    main_metric = next((name for name in _MAIN_METRICS if name in metrics), metrics[0] if metrics else None)
    return {
        "metrics": metrics,
        "main_metric": main_metric,
        "points": points,
        "learners": learner_rows(journal),
    }


def _is_finite(value: Any) -> bool:
    """Return whether a value of a training curve is a finite number; others become `None`."""
    return value is not None and isfinite(value)


def downsample(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `MAX_POINTS` points of a training curve including the last; more are not distinguishable."""
    stride = max(1, -(-len(points) // MAX_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def learner_rows(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return each learner's activity in training: updates, bytes, steps, failed tasks, time of the last event."""
    rows: dict[str, dict[str, Any]] = {}
    for event_type, body in events:
        name = body.get("learner")
        if name is None:
            continue
        row = rows.setdefault(
            name,
            {"learner": name, "group": "", "examples": None, "updates": 0, "steps": 0, "bytes": 0,
            "downlink_bytes": 0, "evaluations": 0, "failed": 0, "left": False, "last_seen": 0.0},
        )  # fmt: skip
        row["last_seen"] = body["timestamp"]
        match event_type:
            case "learner_joined":
                row |= {"examples": body["examples"], "group": body.get("group", ""), "left": False}
            case "update_received":
                row["updates"] += 1
                row["steps"] += body["steps"]
                row["bytes"] += body["payload_bytes"]
                row["downlink_bytes"] += body.get("downlink_bytes", 0)
            case "evaluation_received":
                row["evaluations"] += 1
                row["downlink_bytes"] += body.get("downlink_bytes", 0)
            case "task_failed":
                row["failed"] += 1
            case "learner_left":
                row["left"] = True
    return [rows[name] for name in sorted(rows)]


def is_error_metric(metric: str) -> bool:
    """Return whether a training curve of a metric is better when lower.

    >>> is_error_metric("rmse"), is_error_metric("auroc")
    (True, False)
    """
    return metric in _ERROR_METRICS


def progress_figures(curves: Mapping[str, Sequence[PointRow]], metric: str) -> dict[str, Figure]:
    """Return the training curves of a metric against rounds, time and bytes, one line per run.

    Args:
        curves: Points of each run from :func:`training_progress`.
        metric: Name of the metric.
    """
    runs = {name: [_point(p, metric) for p in points] for name, points in curves.items()}
    figures = {}
    for axis, axis_label in CURVE_AXES.items():
        figures[axis] = metric_figure(runs, metric, axis)
        figures[axis]["layout"]["xaxis"]["title"]["text"] = figures[axis]["table"]["columns"][-2] = axis_label
    return figures


def _point(point: PointRow, metric: str) -> Version:
    value = point.get(metric)
    metrics = {} if value is None else {metric: value}
    return Version(point["version"], point["timestamp"], None, None, point["bytes"], metrics)
