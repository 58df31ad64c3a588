"""Figures of how well models predict an outcome: ROC curves, calibration, and measures by site and group.

Figures have the form of :mod:`abaton.report.training_curves`. A model has the same colour in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, measure_name, plain

_POINTS = 101  # a curve of more points would tell single subjects' scores
_STEPS = 10  # of a curve, in its table

Interval = Mapping[str, Any]
"""A number with its interval: `value`, `low` and `high`; None is what cannot be told."""


def model_colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of each model: the same wherever the model is drawn.

    >>> model_colours(["kos alone", "community"])["community"] == COLOURS[0]
    True
    """
    others = sorted(set(names) - {"community"})
    return {"community": COLOURS[0]} | {
        name: COLOURS[1 + i % (len(COLOURS) - 1)] for i, name in enumerate(others)
    }


def roc_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], colours: Mapping[str, str]
) -> Figure:
    """Draw ROC curves by model: false positive rate against sensitivity, thinned to a hundred steps.

    Args:
        curves: false positive rates and sensitivities, from nobody positive to everybody, by the model's name.
        colours: by the model's name.
    """
    data, columns = [_diagonal("chance")], []
    for name, (fpr, tpr) in curves.items():
        x, y = _thinned(fpr, tpr)
        line = {"color": colours[name], "width": 3 if name == "community" else 1.6}
        data.append({"type": "scatter", "x": x, "y": y, "mode": "lines", "name": plain(name), "line": line})
        columns.append(y[1 :: (_POINTS - 1) // _STEPS])
    rows = [(i / _STEPS, *values) for i, values in enumerate(zip(*columns, strict=True))]
    layout = {
        "xaxis": {"title": {"text": "1 − specificity"}, "range": [0, 1], "constrain": "domain"},
        "yaxis": {"title": {"text": "sensitivity"}, "range": [0, 1.02], "scaleanchor": "x"},
        "height": 480,
    }
    return {"data": data, "layout": layout, "table": {"heads": ["1 − specificity", *curves], "rows": rows}}


def calibration_figure(
    groups: Mapping[str, Sequence[tuple[float, Interval]]], colours: Mapping[str, str]
) -> Figure:
    """Draw predicted against observed shares by model, with intervals; the diagonal is right.

    Args:
        groups: for each model, the mean predicted chance of a group of subjects and the observed share of cases.
        colours: by the model's name.
    """
    data, rows = [_diagonal("right")], []
    for name, points in groups.items():
        data.append(
            {
                "type": "scatter",
                "x": [predicted for predicted, _ in points],
                "y": [share["value"] for _, share in points],
                "error_y": _reach([share for _, share in points]),
                "mode": "lines+markers",
                "name": plain(name),
                "line": {"color": colours[name], "width": 1.6},
            }
        )
        rows += [(name, f"{predicted:.3f}", said(share)) for predicted, share in points]
    layout = {
        "xaxis": {"title": {"text": "predicted chance"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "share of cases"}, "range": [0, 1]},
        "height": 480,
    }
    heads = ["model", "mean predicted chance", "share of cases"]
    return {"data": data, "layout": layout, "table": {"heads": heads, "rows": rows}}


def forest_figure(
    rows: Sequence[Mapping[str, Any]], measure: str, colours: Mapping[str, str], *, counted: bool = False
) -> Figure:
    """Draw one measure with its interval for each model and subset, as a forest plot.

    Args:
        rows: lines with `model`, `subset`, `subjects`, `sites` and `measures`; what cannot be told is not drawn.
        measure: which one.
        colours: by the model's name.
        counted: whether each line says on how many people and sites it rests.
    """
    known = [row for row in rows if estimate(row["measures"], measure) is not None]
    named = {row["subset"]: plain(row["subset"]) + (_rests_on(row) if counted else "") for row in known}
    data = []
    for model in dict.fromkeys(row["model"] for row in known):
        mine = [(named[row["subset"]], row["measures"][measure]) for row in known if row["model"] == model]
        data.append(
            {
                "type": "scatter",
                "x": [found["value"] for _, found in mine],
                "y": [subset for subset, _ in mine],
                "error_x": {**_reach([found for _, found in mine]), "color": colours[model]},
                "mode": "markers",
                "marker": {"color": colours[model], "size": 9},
                "name": plain(model),
            }
        )
    subsets = list(named.values())
    layout = {
        "xaxis": {"title": {"text": measure_name(measure)}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": subsets[::-1]},
        "showlegend": False,
        "height": 110 + (44 if counted else 36) * len(subsets),
    }
    heads = ["subjects of", "model", "people", "sites", measure_name(measure)]
    lines: list[tuple[object, ...]] = [
        (r["subset"], r["model"], r["subjects"], r.get("sites"), told(r["measures"], measure)) for r in rows
    ]
    if all(row["subset"] == row["model"] for row in rows):  # models side by side, all on the same people
        heads, lines = heads[1:], [line[1:] for line in lines]
    return {"data": data, "layout": layout, "table": {"heads": heads, "rows": lines}}


def estimate(measures: Mapping[str, Interval] | None, name: str) -> Interval | None:
    """A measure with its interval, if both can be told."""
    found = (measures or {}).get(name)
    return None if found is None or any(found[key] is None for key in ("value", "low", "high")) else found


def told(measures: Mapping[str, Interval] | None, name: str) -> str:
    """A measure for reading: with its interval, without one, or why there is none.

    >>> told({"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}}, "auroc"), told(None, "auroc")
    ('0.800 (0.700 to 0.900)', 'too few')
    """
    return "too few" if measures is None else said(measures.get(name))


def said(found: Interval | None) -> str:
    """A number with its interval for reading."""
    if found is None or found["value"] is None:
        return "–"
    if found["low"] is None:
        return f"{found['value']:.3f}"
    return f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _rests_on(row: Mapping[str, Any]) -> str:
    return f"<br>{plain(row['subjects'])} people, {row['sites']} {'site' if row['sites'] == 1 else 'sites'}"


def _reach(found: Sequence[Interval]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [each["high"] - each["value"] for each in found],
        "arrayminus": [each["value"] - each["low"] for each in found],
    }


def _diagonal(name: str) -> dict[str, Any]:
    quiet = {"dash": "dot", "color": "#8a939c", "width": 1.2}
    return {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "name": name, "line": quiet,
            "hoverinfo": "skip"}  # fmt: skip


def _thinned(fpr: Sequence[float], tpr: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sensitivity at evenly spaced false positive rates."""
    import numpy as np

    x = np.linspace(0, 1, _POINTS)
    return [0.0, *x.tolist()], [0.0, *np.interp(x, fpr, tpr).tolist()]
