"""What a model goes by, and what each site makes of it: pure functions from a run's results to figures.

Figures have the form of :mod:`abaton.report.training_curves`, with a title and a sentence. What a run has not told is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, plain

_SHOWN = 20  # bars of a figure; its table has all
_GREY = "#6b7785"


def explaining_figures(results: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a run's explanation and of its sites' own models, by name; none if the study asked for neither.

    Args:
        results: A run's result, or the results of its report.
    """
    told, own = results.get("explanation"), results.get("personal")
    made: dict[str, Figure] = {}
    if own and own["lines"]:
        made["personal"] = personal_figure(own["lines"])
    if not told:
        return made
    if told["importance"]:
        made["importance"] = importance_figure(told["importance"], told["measure"])
    if told["coefficients"]:
        made["coefficients"] = coefficients_figure(told["coefficients"])
    for each in told["dependence"]:
        made[f"dependence-{each['input']}"] = dependence_figure(each, told["cases"])
    if told["calibration"]:
        made["calibration-by"] = calibration_by_figure(told["calibration"])
    if told["decision"]:
        made["decision"] = decision_figure(told["decision"])
    return made


def personal_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """What each site gains: every model there against the one that the site has of its own rows, paired."""
    models = list(dict.fromkeys(line["model"] for line in lines if line["model"] != "own"))
    measure = lines[0]["gain"]["measure"]
    data = []
    for number, model in enumerate(models):
        known = [line for line in lines if line["model"] == model and line["gain"]["low"] is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(model),
                "x": [line["gain"]["value"] for line in known],
                "y": [_place(line) for line in known],
                "error_x": _reach([line["gain"] for line in known]),
                "marker": {"color": COLOURS[number % len(COLOURS)], "size": 9},
            }
        )
    places = [_place(line) for line in lines if line["model"] != "own" and line["gain"]["low"] is not None]
    rows = [
        (
            line["site"], line["model"], line["subjects"],
            _said(line["measures"][measure]),
            "–" if line["model"] == "own" else _said(line["gain"]),
            "–" if line["model"] == "community" else _said(line["over_community"]),
            ", ".join(f"{name} {value:.2f}" for name, value in line["chosen"].items()) or "–",
        )
        for line in lines
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": f"{measure} gained over the site's own model"}, "zeroline": True},
        "yaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": places[::-1],
        },
        "height": max(320, 28 * len(places) + 120),
    }
    heads = ["site", "model", "people", measure, "over the site's own", "over the community model", "chosen"]
    return _figure("What each site makes of it", _PERSONAL, data, layout, heads, rows)


def _place(line: Mapping[str, Any]) -> str:
    return plain(f"{line['site']}: {line['model']}")


def importance_figure(lines: Sequence[Mapping[str, Any]], measure: str) -> Figure:
    """How much worse the model is without each input: over all sites in the figure, by site in the table."""
    whole = [line for line in lines if line["of"] == "all"][:_SHOWN][::-1]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "all sites",
            "x": [line["value"] for line in whole],
            "y": [plain(line["input"]) for line in whole],
            "error_x": _reach(whole),
            "marker": {"color": COLOURS[0]},
        }
    ]
    rows = [(line["subset"], line["sites"], line["subjects"], line["input"], _said(line)) for line in lines]
    layout = {
        "xaxis": {"title": {"text": f"{measure} lost if the input is shuffled"}},
        "yaxis": {"type": "category"},
        "height": max(320, 26 * len(whole) + 120),
        "showlegend": False,
    }
    heads = ["people of", "sites", "people", "input", f"{measure} lost (least to most)"]
    return _figure("What the model goes by", _IMPORTANCE, data, layout, heads, rows)


def coefficients_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """The coefficients of a linear model, for a deviation of each column."""
    ordered = sorted(lines, key=lambda line: -abs(line["per_deviation"]))
    data = []
    for number, case in enumerate(dict.fromkeys(line["case"] for line in lines)):
        mine = [line for line in ordered if line["case"] == case][:_SHOWN][::-1]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(case or "value"),
                "x": [line["per_deviation"] for line in mine],
                "y": [plain(line["column"]) for line in mine],
                "marker": {"color": COLOURS[number % len(COLOURS)]},
            }
        )
    rows = [
        (line["column"], line["case"] or "–", line["per_deviation"], line["per_unit"]) for line in ordered
    ]
    layout = {
        "xaxis": {"title": {"text": "by a deviation of a number, or by yes instead of no"}},
        "yaxis": {"type": "category"},
        "height": max(320, 26 * max(len(each["y"]) for each in data) + 120),
        "showlegend": len(data) > 1,
    }
    heads = ["column", "of", "by a deviation", "by a unit"]
    return _figure("Coefficients", _COEFFICIENTS, data, layout, heads, rows)


def dependence_figure(line: Mapping[str, Any], cases: Sequence[str]) -> Figure:
    """What the model says on average if an input is the same for everybody: over all sites, and at each."""
    steps, numbers = line["at"], not isinstance(line["at"][0], str)
    case = cases[-1] if cases else ""
    words = f"mean chance of {case}" if case else "mean prediction"
    series = [("all sites", line["all"]), *line["sites"].items()]
    data = [
        {
            "type": "scatter" if numbers else "bar",
            **({"mode": "lines"} if numbers else {}),
            "name": plain(name),
            "x": [step if numbers else plain(step) for step in steps],
            "y": [each[-1] for each in values],
            **_look(number, thick=name == "all sites", lines=numbers),
        }
        for number, (name, values) in enumerate(series)
    ]
    rows = [
        (step, *(values[i][-1] for _, values in series))
        for i, step in enumerate(f"{step:.4g}" if numbers else step for step in steps)
    ]
    layout = {"xaxis": {"title": {"text": plain(line["input"])}}, "yaxis": {"title": {"text": plain(words)}}}
    heads = [line["input"], *(name for name, _ in series)]
    return _figure(f"By {line['input']}", _DEPENDENCE, data, layout, heads, rows)


def calibration_by_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """What was predicted against what happened, for all, each site and each group."""
    quiet = {"dash": "dot", "color": _GREY}
    data: list[dict[str, Any]] = [
        {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "name": "right", "line": quiet}
    ]
    for number, line in enumerate(lines):
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(line["subset"]),
                "x": [predicted for predicted, _ in line["points"]],
                "y": [share["value"] for _, share in line["points"]],
                "visible": True if line["of"] in ("all", "site") else "legendonly",
                **_look(number, thick=line["of"] == "all", lines=True),
            }
        )
    rows = [
        (line["subset"], line["sites"], line["subjects"], predicted, _said(share))
        for line in lines
        for predicted, share in line["points"]
    ]
    layout = {
        "xaxis": {"title": {"text": "predicted chance"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "share of cases"}, "range": [0, 1]},
        "height": 480,
    }
    heads = ["people of", "sites", "people", "mean predicted chance", "share of cases"]
    return _figure("Calibration by site and group", _CALIBRATION, data, layout, heads, rows)


def decision_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """The decision curve: whether treating by the model does more good than treating everybody or nobody."""
    whole = lines[0]
    best = max(0.05, *whole["model"], *whole["everybody"])
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": whole["thresholds"],
            "y": values,
            "line": line,
        }
        for name, values, line in (
            ("the model", whole["model"], {"color": COLOURS[0], "width": 3}),
            ("everybody", whole["everybody"], {"color": COLOURS[1], "dash": "dash"}),
            ("nobody", [0.0] * len(whole["thresholds"]), {"color": _GREY, "dash": "dot"}),
        )
    ]
    layout = {
        "xaxis": {"title": {"text": "chance from which one would treat"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "net benefit"}, "range": [-0.05, 1.05 * best]},
    }
    rows = [row for line in lines for row in _thinned(line)]
    heads = ["people of", "sites", "people", "threshold", "by the model", "everybody"]
    return _figure("Who should be treated by it", _DECISION, data, layout, heads, rows)


def _thinned(line: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for at, model, everybody in zip(line["thresholds"], line["model"], line["everybody"], strict=True):
        if round(at * 100) % 10 == 0:
            yield line["subset"], line["sites"], line["subjects"], round(at, 2), model, everybody


def _figure(
    title: str,
    words: str,
    data: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    heads: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> Figure:
    return {
        "title": title, "words": words, "data": list(data), "layout": dict(layout),
        "table": {"heads": list(heads), "rows": list(rows)},
    }  # fmt: skip


def _look(number: int, *, thick: bool, lines: bool) -> dict[str, Any]:
    colour = COLOURS[number % len(COLOURS)]
    return (
        {"line": {"color": colour, "width": 3 if thick else 1.5}} if lines else {"marker": {"color": colour}}
    )


def _reach(estimates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "type": "data",
        "array": [each["high"] - each["value"] for each in estimates],
        "arrayminus": [each["value"] - each["low"] for each in estimates],
    }


def _said(estimate: Mapping[str, Any] | None, absent: str = "too few") -> str:
    if not estimate or estimate["value"] is None:
        return absent
    if estimate["low"] is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


_PERSONAL = (
    "On each site's own test people: every model against the one that the site has of its own rows alone, paired, with "
    "intervals. Right of zero the site gains; what it makes of the community model stays with it."
)
_IMPORTANCE = (
    "Each site shuffles an input among its own test people and asks the model again; only counts are added up. Bars "
    "are means over all times, the whiskers go from the least to the most."
)
_COEFFICIENTS = (
    "Log odds, or values. There are no intervals: a federated average is no maximum-likelihood estimate, and nothing "
    "here says that an input is a cause."
)
_DEPENDENCE = (
    "What the model says on average if this input is the same for everybody and all else stays as it is."
)
_CALIBRATION = "The diagonal is right. Only what has cases and controls enough is told."
_DECISION = (
    "Net benefit: the share of cases treated, less those treated in vain, weighed by the odds of the threshold. The "
    "model is of use where its line is the highest. The table has every site and group."
)
