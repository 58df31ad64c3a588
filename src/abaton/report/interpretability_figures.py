"""Interpretability figures: permutation importance, coefficients, partial dependence, calibration, decision curves.

Figures have the form of `training_curves`, with a title and a description. Personal models are compared here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, escape_markup

_MAX_BARS = 20  # bars of a figure; its table is complete
_GREY = "#6b7785"


def make_interpretability_figures(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a run's interpretability results and personal models by name.

    Args:
        results: Result of a run, or the results of its report.
    """
    interpretability, personal = results.get("interpretability"), results.get("personal_models")
    figures: dict[str, Figure] = {}
    if personal and personal["rows"]:
        figures["personal"] = personal_figure(personal["rows"])
    if not interpretability:
        return figures
    if interpretability["importance"]:
        figures["importance"] = importance_figure(interpretability["importance"], interpretability["metric"])
    if interpretability["coefficients"]:
        figures["coefficients"] = coefficients_figure(interpretability["coefficients"])
    for dependence in interpretability["partial_dependence"]:
        figures[f"dependence-{dependence['input']}"] = dependence_figure(
            dependence, interpretability["cases"]
        )
    if interpretability["calibration"]:
        figures["calibration-by"] = calibration_by_figure(interpretability["calibration"])
    if interpretability["decision"]:
        figures["decision"] = decision_figure(interpretability["decision"])
    return figures


def personal_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the interpretability figure of paired differences between each model and the local-only one."""
    models = list(dict.fromkeys(row["model"] for row in lines if row["model"] != "local_only"))
    metric = lines[0]["gain_over_local_only"]["metric"]
    data = []
    for index, model in enumerate(models):
        shown = [
            row for row in lines if row["model"] == model and row["gain_over_local_only"]["low"] is not None
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape_markup(model),
                "x": [row["gain_over_local_only"]["value"] for row in shown],
                "y": [_row_label(row) for row in shown],
                "error_x": _error_bars([row["gain_over_local_only"] for row in shown]),
                "marker": {"color": COLOURS[index % len(COLOURS)], "size": 9},
            }
        )
    labels = [
        _row_label(row)
        for row in lines
        if row["model"] != "local_only" and row["gain_over_local_only"]["low"] is not None
    ]
    rows = [
        (
            row["site"], row["model"], row["subjects"],
            _format_estimate(row["metrics"][metric]),
            "–" if row["model"] == "local_only" else _format_estimate(row["gain_over_local_only"]),
            "–" if row["model"] == "community" else _format_estimate(row["gain_over_community"]),
            ", ".join(f"{name} {value:.2f}" for name, value in row["selected"].items()) or "–",
        )
        for row in lines
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": f"difference in {metric} to the local-only model"}, "zeroline": True},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels[::-1],
        },
        "height": max(320, 28 * len(labels) + 120),
    }
    column_names = [
        "site",
        "model",
        "subjects",
        metric,
        "difference to local-only",
        "difference to community",
        "selected",
    ]
    return _figure("Personal models", _PERSONAL, data, layout, column_names, rows)


def _row_label(row: Mapping[str, Any]) -> str:
    return escape_markup(f"{row['site']}: {row['model']}")


def importance_figure(importances: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Return the interpretability figure of each input's permutation importance; by site in the table."""
    shown = [row for row in importances if row["grouping"] == "all"][:_MAX_BARS][::-1]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "all sites",
            "x": [row["value"] for row in shown],
            "y": [escape_markup(row["input"]) for row in shown],
            "error_x": _error_bars(shown),
            "marker": {"color": COLOURS[0]},
        }
    ]
    rows = [
        (row["group"], row["sites"], row["subjects"], row["input"], _format_estimate(row))
        for row in importances
    ]
    layout = {
        "xaxis": {"title": {"text": f"decrease of {metric} when the input is permuted"}},
        "yaxis": {"type": "category"},
        "height": max(320, 26 * len(shown) + 120),
        "showlegend": False,
    }
    column_names = ["group", "sites", "subjects", "input", f"decrease of {metric} (minimum to maximum)"]
    return _figure("Permutation importance", _IMPORTANCE, data, layout, column_names, rows)


def coefficients_figure(coefficients: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the interpretability figure of a linear model's coefficients per standard deviation."""
    ordered = sorted(coefficients, key=lambda row: -abs(row["per_std"]))
    data = []
    for index, case in enumerate(dict.fromkeys(row["case"] for row in coefficients)):
        shown = [row for row in ordered if row["case"] == case][:_MAX_BARS][::-1]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": escape_markup(case or "value"),
                "x": [row["per_std"] for row in shown],
                "y": [escape_markup(row["column"]) for row in shown],
                "marker": {"color": COLOURS[index % len(COLOURS)]},
            }
        )
    rows = [
        (
            row["column"],
            row["case"] or "–",
            row["per_std"],
            "–" if row["per_unit"] is None else row["per_unit"],
        )
        for row in ordered
    ]
    layout = {
        "xaxis": {"title": {"text": "per standard deviation, or per category"}},
        "yaxis": {"type": "category"},
        "height": max(320, 26 * max(len(trace["y"]) for trace in data) + 120),
        "showlegend": len(data) > 1,
    }
    column_names = ["column", "class", "per standard deviation", "per unit"]
    return _figure("Coefficients", _COEFFICIENTS, data, layout, column_names, rows)


def dependence_figure(dependence: Mapping[str, Any], cases: Sequence[str]) -> Figure:
    """Return the interpretability figure of partial dependence on an input, over all sites and at each site."""
    grid, is_numeric = dependence["grid"], not isinstance(dependence["grid"][0], str)
    case = cases[-1] if cases else ""
    y_label = f"mean predicted probability of {case}" if case else "mean prediction"
    series = [("all sites", dependence["all"]), *dependence["sites"].items()]
    data = [
        {
            "type": "scatter" if is_numeric else "bar",
            **({"mode": "lines"} if is_numeric else {}),
            "name": escape_markup(name),
            "x": [point if is_numeric else escape_markup(point) for point in grid],
            "y": [probabilities[-1] for probabilities in values],
            **_trace_style(index, is_emphasised=name == "all sites", lines=is_numeric),
        }
        for index, (name, values) in enumerate(series)
    ]
    rows = [
        (point, *(values[i][-1] for _, values in series))
        for i, point in enumerate(f"{point:.4g}" if is_numeric else point for point in grid)
    ]
    layout = {
        "xaxis": {"title": {"text": escape_markup(dependence["input"])}},
        "yaxis": {"title": {"text": escape_markup(y_label)}},
    }
    column_names = [dependence["input"], *(name for name, _ in series)]
    return _figure(
        f"Partial dependence on {dependence['input']}", _DEPENDENCE, data, layout, column_names, rows
    )


def calibration_by_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the interpretability figure of calibration curves overall, by site and by group."""
    diagonal = {"dash": "dot", "color": _GREY}
    data: list[dict[str, Any]] = [
        {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "name": "ideal", "line": diagonal}
    ]
    for index, curve in enumerate(curves):
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape_markup(curve["group"]),
                "x": [predicted for predicted, _ in curve["points"]],
                "y": [observed["value"] for _, observed in curve["points"]],
                "visible": True if curve["grouping"] in ("all", "site") else "legendonly",
                **_trace_style(index, is_emphasised=curve["grouping"] == "all", lines=True),
            }
        )
    rows = [
        (curve["group"], curve["sites"], curve["subjects"], predicted, _format_estimate(observed))
        for curve in curves
        for predicted, observed in curve["points"]
    ]
    layout = {
        "xaxis": {"title": {"text": "predicted probability"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "observed proportion"}, "range": [0, 1]},
        "height": 480,
    }
    column_names = ["group", "sites", "subjects", "mean predicted probability", "observed proportion"]
    return _figure("Calibration by site and group", _CALIBRATION, data, layout, column_names, rows)


def decision_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the interpretability figure of the decision curve: net benefit of model, all and none treated."""
    overall = curves[0]
    max_benefit = max(0.05, *overall["model"], *overall["treat_all"])
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": overall["thresholds"],
            "y": values,
            "line": line,
        }
        for name, values, line in (
            ("model", overall["model"], {"color": COLOURS[0], "width": 3}),
            ("treat all", overall["treat_all"], {"color": COLOURS[1], "dash": "dash"}),
            ("treat none", [0.0] * len(overall["thresholds"]), {"color": _GREY, "dash": "dot"}),
        )
    ]
    layout = {
        "xaxis": {"title": {"text": "threshold probability"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "net benefit"}, "range": [-0.05, 1.05 * max_benefit]},
    }
    rows = [row for line in curves for row in _decision_rows(line)]
    column_names = ["group", "sites", "subjects", "threshold", "model", "treat all"]
    return _figure("Decision curve, net benefit", _DECISION, data, layout, column_names, rows)


def _decision_rows(curve: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for threshold, model, treat_all in zip(
        curve["thresholds"], curve["model"], curve["treat_all"], strict=True
    ):
        if round(threshold * 100) % 10 == 0:
            yield curve["group"], curve["sites"], curve["subjects"], round(threshold, 2), model, treat_all


def _figure(
    title: str,
    description: str,
    data: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    column_names: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> Figure:
    return {
        "title": title, "description": description, "data": list(data), "layout": dict(layout),
        "table": {"columns": list(column_names), "rows": list(rows)},
    }  # fmt: skip


def _trace_style(index: int, *, is_emphasised: bool, lines: bool) -> dict[str, Any]:
    colour = COLOURS[index % len(COLOURS)]
    return (
        {"line": {"color": colour, "width": 3 if is_emphasised else 1.5}}
        if lines
        else {"marker": {"color": colour}}
    )


def _error_bars(estimates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [estimate["high"] - estimate["value"] for estimate in estimates],
        "arrayminus": [estimate["value"] - estimate["low"] for estimate in estimates],
    }


def _format_estimate(estimate: Mapping[str, Any] | None, absent: str = "too few") -> str:
    if not estimate or estimate["value"] is None:
        return absent
    if estimate["low"] is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


_PERSONAL = (
    "Paired differences to the local-only model on each site's test subjects, with confidence intervals. Positive "
    "values favour the model; personal models stay at the site."
)
_IMPORTANCE = (
    "Each site permutes an input among its test subjects and evaluates the model; only counts are summed. Bars are "
    "means over repeats, whiskers minimum and maximum."
)
_COEFFICIENTS = (
    "Log odds, or values. There are no intervals: federated averaging is not maximum-likelihood estimation. "
    "Coefficients are not causal effects. The columns of a spline (age, age') have no effect per unit: see the partial "
    "dependence."
)
_DEPENDENCE = "Mean prediction with this input fixed for all test subjects and the other inputs unchanged."
_CALIBRATION = "The diagonal is ideal calibration. Subsets with too few cases or controls are suppressed."
_DECISION = (
    "Net benefit: true positives minus false positives weighted by the odds of the threshold, per subject. The model "
    "is useful where its curve is the highest. The table contains every site and group."
)
