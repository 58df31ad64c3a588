"""Figures of how well models foretell an outcome: ROC curves, calibration, and measures by site and group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_POINTS = 101  # a curve of more points would tell single subjects' scores
_LAYOUT = {"template": "plotly_white", "margin": {"l": 60, "r": 20, "t": 50, "b": 60}}


def roc_figure(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str = "") -> Any:
    """Draw ROC curves by model: false positive rate against sensitivity, thinned to a hundred steps.

    Args:
        curves: false positive rates and sensitivities, from nobody positive to everybody, by the model's name.
        title: what is written above.
    """
    figure = _with_diagonal("chance")
    for name, (fpr, tpr) in curves.items():
        x, y = _thinned(fpr, tpr)
        figure.add_scatter(x=x, y=y, mode="lines", name=name)
    figure.update_layout(
        title_text=title,
        xaxis={"title": "1 − specificity", "range": [0, 1], "constrain": "domain"},
        yaxis={"title": "sensitivity", "range": [0, 1.02], "scaleanchor": "x"},
        height=480,
        **_LAYOUT,
    )
    return figure


def calibration_figure(groups: Mapping[str, Sequence[tuple[float, Any]]], *, title: str = "") -> Any:
    """Draw predicted against observed shares by model, with intervals; the diagonal is right.

    Args:
        groups: for each model, the mean predicted chance of a group of subjects and the observed share of cases
            (with `value`, `low` and `high`).
        title: what is written above.
    """
    figure = _with_diagonal("right")
    for name, points in groups.items():
        figure.add_scatter(
            x=[predicted for predicted, _ in points],
            y=[share.value for _, share in points],
            error_y={
                "type": "data",
                "array": [share.high - share.value for _, share in points],
                "arrayminus": [share.value - share.low for _, share in points],
            },
            mode="lines+markers",
            name=name,
        )
    figure.update_layout(
        title_text=title,
        xaxis={"title": "predicted chance", "range": [0, 1]},
        yaxis={"title": "share of cases", "range": [0, 1]},
        height=480,
        **_LAYOUT,
    )
    return figure


def forest_figure(rows: Sequence[Mapping[str, Any]], measure: str, *, title: str = "") -> Any:
    """Draw one measure with its interval for each model and subset, as a forest plot.

    Args:
        rows: lines with `model`, `subset` and `measures` (name -> estimate); what is not a number is left out.
        measure: which one.
        title: what is written above.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for model in dict.fromkeys(row["model"] for row in rows):
        known = [
            (row["subset"], row["measures"][measure])
            for row in rows
            if row["model"] == model
            and measure in row["measures"]
            and math.isfinite(row["measures"][measure].value)
        ]
        figure.add_scatter(
            x=[estimate.value for _, estimate in known],
            y=[subset for subset, _ in known],
            error_x={
                "type": "data",
                "array": [estimate.high - estimate.value for _, estimate in known],
                "arrayminus": [estimate.value - estimate.low for _, estimate in known],
            },
            mode="markers",
            name=model,
        )
    subsets = list(dict.fromkeys(row["subset"] for row in rows))
    figure.update_layout(
        title_text=title,
        xaxis={"title": measure},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": subsets[::-1]},
        scattermode="group",
        height=max(320, 60 * len(subsets) + 140),
        **_LAYOUT,
    )
    return figure


def _with_diagonal(name: str) -> Any:
    import plotly.graph_objects as go

    figure, quiet = go.Figure(), {"dash": "dot", "color": "grey"}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name=name, line=quiet, hoverinfo="skip")
    return figure


def _thinned(fpr: Sequence[float], tpr: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sensitivity at evenly spaced false positive rates."""
    import numpy as np

    x = np.linspace(0, 1, _POINTS)
    return [0.0, *x.tolist()], [0.0, *np.interp(x, fpr, tpr).tolist()]
