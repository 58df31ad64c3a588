"""Tables and figures of exact performance and of the cohort's description, from a run on one machine.

They have the form of `run_tables` and `training_curves`. On a network the data do not exist: nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.evaluation_figures import format_interval
from abaton.report.findings import format_difference
from abaton.report.run_tables import Row, Table
from abaton.report.training_curves import COLOURS, Figure

NOT_RELEASED = "Not released: on a network sites release counts, not single values or predictions."
"""Text of a section whose data a run over a network does not have."""

_GREY = "#6b7785"
_BAND = "rgba(15,139,141,0.18)"
_TOO_FEW = "too few"


def characteristics_table(characteristics: Mapping[str, Any]) -> Table:
    """Return the table of baseline characteristics by site, with standardised differences."""
    sites = characteristics["sites"]
    rows: list[Row] = [("subjects", "n", *(str(count) for count in sites.values()), "–")]
    for row in characteristics["rows"]:
        label = f"{row['input']}: {row['level']}" if row["level"] else row["input"]
        known = [abs(value) for value in row["differences"].values() if value is not None]
        rows.append(
            (
                label,
                row["statistic"],
                *(row["cells"][site] for site in sites),
                f"{max(known):.2f}" if known else "–",
            )
        )
    return ("characteristic", "statistic", *sites, "largest standardised difference"), rows


def difference_table(characteristics: Mapping[str, Any]) -> Table:
    """Return the table of standardised differences of performance inputs between each site and all others."""
    sites = [site for site in characteristics["sites"] if site != "all sites"]
    rows: list[Row] = [
        (row["input"], *("–" if (d := row["differences"][site]) is None else f"{d:+.2f}" for site in sites))
        for row in characteristics["rows"]
        if row["differences"]
    ]
    return ("characteristic", *sites), [tuple(str(c).replace("-", "−") for c in row) for row in rows]


def missing_table(characteristics: Mapping[str, Any]) -> Table:
    """Return the table of missing values of each characteristic by site."""
    sites = characteristics["sites"]
    rows: list[Row] = [
        (row["input"], *(row["missing"][site] for site in sites))
        for row in characteristics["rows"]
        if row["missing"]
    ]
    return ("characteristic", *sites), rows


def events_table(events: Mapping[str, Any]) -> Table:
    """Return the table of training events per parameter and per input column by site."""
    ratios = ("per_parameter", "per_column")
    rows: list[Row] = [
        (site, row["events"], *("–" if row[key] is None else f"{row[key]:.2f}" for key in ratios))
        for site, row in events["sites"].items()
    ]
    unit = events["unit"]
    return ("site", f"training {unit}", f"{unit} per parameter", f"{unit} per input column"), rows


def censoring_table(censoring: Mapping[str, Any]) -> Table:
    """Return the table of subjects with incomplete follow-up, and of the weights of the others in performance."""
    rows: list[Row] = [
        (
            site,
            row["censored"],
            "{:.2f} to {:.2f}".format(*row["range"]),
            row["truncated"],
            f"{row['effective']:.0f} of {row['rows']}",
        )
        for site, row in censoring.items()
    ]
    return (
        "site",
        "censored, excluded",
        "weights",
        "truncated weights",
        "effective number of subjects",
    ), rows


def calibration_facts(calibration: Mapping[str, Any]) -> dict[str, str]:
    """Return the calibration of the community model as performance facts: O:E ratio and ICI."""
    facts = {"observed to expected cases (O:E)": format_interval(calibration["observed_expected"])}
    if calibration["curve"] is None:
        return {**facts, "calibration curve": "not estimable"}
    names = {"ici": "integrated calibration index (ICI)", "e50": "E50", "e90": "E90"}
    knots = ", ".join(f"{knot:.3f}" for knot in calibration["knots"]) or "none, a straight line of log odds"
    return {
        **facts,
        **{label: f"{calibration[name]:.3f}" for name, label in names.items()},
        "method": f"{calibration['method']}; knots at predicted probabilities {knots}",
    }


def recalibration_text(recalibration: Mapping[str, Any]) -> str:
    """Return the recalibration as sentences on performance, also where it is not applied.

    >>> recalibration_text({"intercept": None, "slope": None, "status": "not released", "test": None})
    "Recalibration of log odds: not released; 'abaton model predict' applies none."
    """
    if recalibration["slope"] is None:
        return f"Recalibration of log odds: {recalibration['status']}; 'abaton model predict' applies none."
    line = f"slope {recalibration['slope']:.3f}, intercept {recalibration['intercept']:+.3f}"
    is_applied = "applies it" if recalibration["status"] == "fitted" else "does not apply it"
    text = f"Recalibration of log odds on validation subjects: {line}; 'abaton model predict' {is_applied}."
    if recalibration["test"] is None:
        return text
    slope, intercept = (
        format_interval(recalibration["test"][f"calibration {name}"]) for name in ("slope", "intercept")
    )
    return (
        f"{text} With it, test subjects have a calibration slope of {slope} and an intercept of {intercept}."
    )


def heterogeneity_table(heterogeneity: Mapping[str, Any]) -> Table:
    """Return the table of performance by site and of the random-effects mean."""
    rows: list[Row] = [
        (site, _TOO_FEW, _TOO_FEW) if row is None
        else (site, format_interval(row["auroc"]), format_interval(row["observed_expected"]))
        for site, row in heterogeneity["sites"].items()
    ]  # fmt: skip
    combined = heterogeneity["auroc"]
    if combined is not None:
        rows.append(("mean over sites, random effects", format_interval(combined["mean"]), "–"))
    return ("site", "AUROC", "O:E"), rows


def heterogeneity_text(heterogeneity: Mapping[str, Any] | None) -> str:
    """Return the heterogeneity of performance between sites as sentences.

    >>> heterogeneity_text(None)
    'Fewer than two sites have enough cases and controls to compare them.'
    """
    if heterogeneity is None:
        return "Fewer than two sites have enough cases and controls to compare them."
    return (
        f"I² is {100 * heterogeneity['i2']:.0f} % and τ² {heterogeneity['tau2']:.3f} on the logit scale, "
        f"over {heterogeneity['sites']} sites. This speaks of hospitals like these."
    )


def group_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of performance by group, with the difference to all other subjects."""
    rows: list[Row] = [
        (row["group"], format_interval(row["auroc"]), format_difference(row["difference"]),
         format_interval(row["observed_expected"]))
        if "auroc" in row else (row["group"], *[_TOO_FEW] * 3)
        for row in groups
    ]  # fmt: skip
    return ("group", "AUROC", "difference to all others", "O:E"), rows


def validation_table(validation: Mapping[str, Any]) -> Table:
    """Return the table of internal-external validation: performance at each omitted site."""
    rows: list[Row] = [
        (site, row["subjects"], *(
            format_interval(row["metrics"][name]) if row["metrics"] else _TOO_FEW
            for name in ("auroc", "calibration_slope", "observed_expected")
        ))
        for site, row in validation["sites"].items()
    ]  # fmt: skip
    return ("omitted site", "subjects", "AUROC", "calibration slope", "O:E"), rows


def performance_figures(performance: Mapping[str, Any] | None) -> dict[str, Figure]:
    """Return the figures of exact performance by name: smooth calibration and decision curve."""
    figures: dict[str, Figure] = {}
    if not performance:
        return figures
    calibration, decision = performance["calibration"], performance["decision"]
    if calibration and calibration["curve"]:
        figures["smooth_calibration"] = _smooth_calibration_figure(calibration["curve"])
    if decision:
        figures["net_benefit"] = _net_benefit_figure(decision)
    return figures


def _smooth_calibration_figure(curve: Mapping[str, Sequence[float]]) -> Figure:
    x, last = curve["predicted"], max(*curve["predicted"], *curve["high"])
    end = min(1.0, 1.05 * last)
    ideal = {
        "type": "scatter", "x": [0, end], "y": [0, end], "mode": "lines", "name": "ideal", "hoverinfo": "skip",
        "line": {"dash": "dot", "color": "#8a939c", "width": 1.2},
    }  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "predicted probability"}, "range": [0, end]},
        "yaxis": {"title": {"text": "observed proportion"}, "range": [0, end]},
        "height": 480,
    }
    data = [
        ideal,
        *_band(x, curve["low"], curve["high"]),
        _line("community", x, curve["observed"], COLOURS[0]),
    ]
    rows = [
        (f"{x[i]:.3f}", f"{curve['observed'][i]:.3f} ({curve['low'][i]:.3f} to {curve['high'][i]:.3f})")
        for i in range(0, len(x), 10)
    ]
    columns = ["predicted probability", "observed proportion"]
    return {"data": data, "layout": layout, "table": {"columns": columns, "rows": rows}}


def _net_benefit_figure(decision: Mapping[str, Sequence[float]]) -> Figure:
    x = decision["thresholds"]
    top = max(0.05, *decision["high"])
    data = [
        *_band(x, decision["low"], decision["high"]),
        _line("model", x, decision["model"], COLOURS[0]),
        {
            **_line("treat all", x, decision["treat_all"], COLOURS[1]),
            "line": {"color": COLOURS[1], "dash": "dash"},
        },
        {**_line("treat none", x, [0.0] * len(x), _GREY), "line": {"color": _GREY, "dash": "dot"}},
    ]
    layout = {
        "xaxis": {"title": {"text": "threshold probability"}, "range": [0, min(1.0, 1.02 * x[-1])]},
        "yaxis": {"title": {"text": "net benefit"}, "range": [-0.05, 1.05 * top]},
    }
    keys = {"value": "model", "low": "low", "high": "high"}
    rows = [
        (
            f"{x[i]:.2f}",
            format_difference({key: decision[name][i] for key, name in keys.items()}),
            format_difference({"value": decision["treat_all"][i], "low": None, "high": None}),
        )
        for i in range(0, len(x), max(1, len(x) // 12))
    ]
    columns = ["threshold probability", "net benefit of the model", "of treating all"]
    return {"data": data, "layout": layout, "table": {"columns": columns, "rows": rows}}


def _band(x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[dict[str, Any]]:
    hidden = {"width": 0, "color": COLOURS[0]}
    return [
        {**_line("lower limit", x, low, COLOURS[0]), "line": hidden, "showlegend": False, "hoverinfo": "skip"},
        {
            **_line("interval", x, high, COLOURS[0]), "line": hidden, "fill": "tonexty", "fillcolor": _BAND,
            "hoverinfo": "skip",
        },
    ]  # fmt: skip


def _line(name: str, x: Sequence[float], y: Sequence[float], colour: str) -> dict[str, Any]:
    line = {"color": colour, "width": 3}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": line}
