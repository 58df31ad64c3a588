"""Evaluation figures: ROC curves, calibration curves and forest plots, in the form of `training_curves`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, escape_markup, metric_label

_POINTS = 101  # more points would reveal single subjects' predictions
_TABLE_STEPS = 10

Interval = Mapping[str, Any]
"""Estimate with its interval: `value`, `low` and `high`, each possibly `None`."""


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each model, the same in all evaluation figures.

    >>> model_colours(["kos (local only)", "community"])["community"] == COLOURS[0]
    True
    """
    other_models = sorted(set(names) - {"community"})
    return {"community": COLOURS[0]} | {
        name: COLOURS[1 + i % (len(COLOURS) - 1)] for i, name in enumerate(other_models)
    }


def roc_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], colours: Mapping[str, str]
) -> Figure:
    """Return the evaluation figure of ROC curves by model, interpolated at 100 false positive rates.

    Args:
        curves: False positive rates and sensitivities in ascending order, by model.
        colours: Colours by model.
    """
    data, columns = [_diagonal("chance")], []
    for name, (fpr, tpr) in curves.items():
        x, y = _interpolate(fpr, tpr)
        line = {"color": colours[name], "width": 3 if name == "community" else 1.6}
        data.append(
            {"type": "scatter", "x": x, "y": y, "mode": "lines", "name": escape_markup(name), "line": line}
        )
        columns.append(y[1 :: (_POINTS - 1) // _TABLE_STEPS])
    rows = [(i / _TABLE_STEPS, *values) for i, values in enumerate(zip(*columns, strict=True))]
    layout = {
        "xaxis": {"title": {"text": "1 − specificity"}, "range": [0, 1], "constrain": "domain"},
        "yaxis": {"title": {"text": "sensitivity"}, "range": [0, 1.02], "scaleanchor": "x"},
        "height": 480,
    }
    return {"data": data, "layout": layout, "table": {"columns": ["1 − specificity", *curves], "rows": rows}}


def calibration_figure(
    groups: Mapping[str, Sequence[tuple[float, Interval]]], colours: Mapping[str, str]
) -> Figure:
    """Return the evaluation figure of calibration curves by model with intervals.

    Args:
        groups: Mean predicted probability and observed proportion of each bin, by model.
        colours: Colours by model.
    """
    data, rows = [_diagonal("ideal")], []
    for name, points in groups.items():
        data.append(
            {
                "type": "scatter",
                "x": [predicted for predicted, _ in points],
                "y": [observed["value"] for _, observed in points],
                "error_y": _error_bars([observed for _, observed in points]),
                "mode": "lines+markers",
                "name": escape_markup(name),
                "line": {"color": colours[name], "width": 1.6},
            }
        )
        rows += [(name, f"{predicted:.3f}", format_interval(observed)) for predicted, observed in points]
    layout = {
        "xaxis": {"title": {"text": "predicted probability"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "observed proportion"}, "range": [0, 1]},
        "height": 480,
    }
    column_names = ["model", "mean predicted probability", "observed proportion"]
    return {"data": data, "layout": layout, "table": {"columns": column_names, "rows": rows}}


def forest_figure(
    rows: Sequence[Mapping[str, Any]], metric: str, colours: Mapping[str, str], *, show_counts: bool = False
) -> Figure:
    """Return a forest plot of one metric with its interval for each model and subset.

    Args:
        rows: Evaluation rows; those without an interval are not shown.
        metric: Name of the metric.
        colours: Colours by model.
        show_counts: Whether labels contain the number of subjects and sites.
    """
    shown = [row for row in rows if complete_estimate(row["metrics"], metric) is not None]
    labels = {
        row["group"]: escape_markup(row["group"]) + (_counts_label(row) if show_counts else "")
        for row in shown
    }
    data = []
    for model in dict.fromkeys(row["model"] for row in shown):
        estimates = [(labels[row["group"]], row["metrics"][metric]) for row in shown if row["model"] == model]
        data.append(
            {
                "type": "scatter",
                "x": [estimate["value"] for _, estimate in estimates],
                "y": [subset for subset, _ in estimates],
                "error_x": {**_error_bars([estimate for _, estimate in estimates]), "color": colours[model]},
                "mode": "markers",
                "marker": {"color": colours[model], "size": 9},
                "name": escape_markup(model),
            }
        )
    subsets = list(labels.values())
    layout = {
        "xaxis": {"title": {"text": metric_label(metric)}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": subsets[::-1]},
        "showlegend": False,
        "height": 110 + (44 if show_counts else 36) * len(subsets),
    }
    column_names = ["group", "model", "subjects", "sites", metric_label(metric)]
    table_rows: list[tuple[object, ...]] = [
        (r["group"], r["model"], r["subjects"], r.get("sites"), format_estimate(r["metrics"], metric))
        for r in rows
    ]
    if all(row["group"] == row["model"] for row in rows):  # models compared on the same subjects
        column_names, table_rows = column_names[1:], [line[1:] for line in table_rows]
    return {"data": data, "layout": layout, "table": {"columns": column_names, "rows": table_rows}}


def complete_estimate(metrics: Mapping[str, Interval] | None, name: str) -> Interval | None:
    """Return an evaluated metric with its interval, if all three values are known, for a figure."""
    estimate = (metrics or {}).get(name)
    return (
        None
        if estimate is None or any(estimate[key] is None for key in ("value", "low", "high"))
        else estimate
    )


def format_estimate(metrics: Mapping[str, Interval] | None, name: str) -> str:
    """Return an evaluated metric with its interval as text, or 'too few'.

    >>> format_estimate({"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}}, "auroc"), format_estimate(None, "auroc")
    ('0.800 (0.700 to 0.900)', 'too few')
    """
    return "too few" if metrics is None else format_interval(metrics.get(name))


def format_interval(estimate: Interval | None) -> str:
    """Return the estimate of an evaluation metric with its interval as text, or 'not estimable'.

    >>> format_interval({"value": None, "low": None, "high": None})
    'not estimable'
    """
    if estimate is None:
        return "–"
    if estimate["value"] is None:
        return str(estimate.get("reason") or "not estimable")
    if estimate["low"] is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def _counts_label(row: Mapping[str, Any]) -> str:
    return f"<br>{escape_markup(row['subjects'])} subjects, {row['sites']} {'site' if row['sites'] == 1 else 'sites'}"


def _error_bars(estimates: Sequence[Interval]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [estimate["high"] - estimate["value"] for estimate in estimates],
        "arrayminus": [estimate["value"] - estimate["low"] for estimate in estimates],
    }


def _diagonal(name: str) -> dict[str, Any]:
    line = {"dash": "dot", "color": "#8a939c", "width": 1.2}
    return {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "name": name, "line": line,
            "hoverinfo": "skip"}  # fmt: skip


def _interpolate(fpr: Sequence[float], tpr: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the sensitivity of a ROC curve at evenly spaced false positive rates."""
    import numpy as np

    x = np.linspace(0, 1, _POINTS)
    return [0.0, *x.tolist()], [0.0, *np.interp(x, fpr, tpr).tolist()]
