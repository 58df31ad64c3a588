"""What learners did in a run: pure functions from rows to figures (see :mod:`abaton.report.training_curves` for their form)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.report.training_curves import COLOURS, Figure, pace_figure, plain
from abaton.store import Activity, CycleLine, Quartiles, Span, Stretch

STATES: Mapping[str, str] = {
    "training": "#0f8b8d",
    "uploading": "#e0a100",
    "evaluating": "#7b5cd6",
    "waiting": "#9aa7b4",
    "lost": "#d1495b",
}
"""What a learner can be doing, and the colour of it."""


TITLES: Mapping[str, tuple[str, str]] = {
    "timeline": (
        "Learners over time",
        "What each learner did when: fast and slow ones at a glance. The thin line is its evaluator.",
    ),
    "weights": ("Weight of each learner", "Share of the mix of the learners that commit most."),
    "staleness": ("Staleness", "What others committed while a learner trained."),
    "cycles": ("Validation cycles", "The loss at the end of each cycle of a learner."),
    "payloads": ("Payload sizes by codec", "Bytes of the updates that travelled."),
    "pace": ("Commits per minute", "How often the community model got something new."),
}
"""What is drawn of a run's learners: its title, and what it says."""


def activity_figures(did: Activity, *, words: str) -> dict[str, Figure]:
    """Everything that is drawn of a run's learners, by what it shows; the dashboard and the report draw the same.

    Args:
        did: what they did.
        words: which time it is.
    """
    made = {"timeline": timeline_figure(did.spans, {line.learner: line.group for line in did.lines})}
    if did.weights is not None:
        made["weights"] = weight_figure(did.weights, words=words)
    stale = "effective staleness (steps)" if did.stale == "steps" else "versions that were missed"
    made["staleness"] = spread_figure(did.staleness, words=stale)
    made["cycles"] = cycle_figure(did.cycles)
    made["payloads"] = payload_figure(did.sizes, did.uncompressed)
    made["pace"] = pace_figure([(each.at, each.commits) for each in did.pace], did.width, words=words)
    return made


def timeline_figure(spans: Sequence[Span], groups: Mapping[str, str]) -> Figure:
    """What each learner did when: a bar for each span, evaluating as a thin one below.

    Args:
        spans: what was done.
        groups: which group each learner belongs to; learners of a group stand together.
    """
    learners = sorted({span.learner for span in spans}, key=lambda name: (groups.get(name, ""), name))
    data = []
    for what, colour in STATES.items():
        mine = [span for span in spans if span.what == what]
        thin = what == "evaluating"
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": what,
                "base": [span.begin for span in mine],
                "x": [span.end - span.begin for span in mine],
                "y": [plain(span.learner) for span in mine],
                "width": 0.14 if thin else 0.3 if what == "waiting" else 0.56,
                "offset": -0.46 if thin else -0.13 if what == "waiting" else -0.26,
                "marker": {"color": colour, "opacity": 0.5 if what == "waiting" else 1, "line": {"width": 0}},
                "hovertemplate": what + ": %{x:.3g} s from %{base:.4g} s<extra></extra>",
            }
        )
    layout = {
        "barmode": "overlay",
        "height": 150 + 34 * len(learners),
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": [plain(name) for name in learners[::-1]],
            "type": "category",
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": True,
    }
    return {"data": data, "layout": layout, "table": _shares(spans, learners)}


def _shares(spans: Sequence[Span], learners: Sequence[str]) -> dict[str, Any]:
    """How many seconds each learner spent with what."""
    spent: dict[tuple[str, str], float] = {}
    for span in spans:
        spent[span.learner, span.what] = spent.get((span.learner, span.what), 0.0) + span.end - span.begin
    rows = [(name, *(spent.get((name, what), 0.0) for what in STATES)) for name in learners]
    return {"heads": ["learner", *(f"seconds {what}" for what in STATES)], "rows": rows}


def weight_figure(stretches: Sequence[Stretch], *, words: str) -> Figure:
    """Each learner's share of the weight of all newest models, over time.

    Args:
        stretches: the mean weight of what each learner committed in each stretch of time.
        words: which time it is.
    """
    names = sorted({each.learner for each in stretches})
    moments = sorted({each.at for each in stretches})
    told = {(each.learner, each.at): each.weight for each in stretches}
    newest: dict[str, float] = {}
    shares: dict[str, list[float]] = {name: [] for name in names}
    for at in moments:
        newest |= {name: told[name, at] for name in names if (name, at) in told}
        total = sum(newest.values())
        for name in names:
            shares[name].append(newest.get(name, 0.0) / total if total else 0.0)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "one",
            "x": moments,
            "y": shares[name],
            "name": plain(name),
            "line": {"width": 0.7, "color": COLOURS[i % len(COLOURS)]},
            "hovertemplate": "%{y:.1%}",
        }
        for i, name in enumerate(names)
    ]
    layout = {
        "xaxis": {"title": {"text": words}},
        "yaxis": {"title": {"text": "share of the mix"}, "tickformat": ".0%", "range": [0, 1]},
        "showlegend": True,
        "hovermode": "x unified",
    }
    last = [(name, shares[name][0], shares[name][-1]) for name in names] if moments else []
    return {
        "data": data,
        "layout": layout,
        "table": {"heads": ["learner", "first share", "share now"], "rows": last},
    }


def spread_figure(
    spread: Sequence[Quartiles], *, words: str, what: str = "learner", lying: bool = False
) -> Figure:
    """How a number is spread, a box for each learner, codec or run.

    Args:
        spread: quartiles, by name.
        words: what the number is.
        what: what the names are.
        lying: whether the boxes lie, which leaves room for long names.
    """
    names = [plain(each.name) for each in spread]
    data = [
        {
            "type": "box",
            "orientation": "h" if lying else "v",
            "y" if lying else "x": names,
            "lowerfence": [each.low for each in spread],
            "q1": [each.first for each in spread],
            "median": [each.median for each in spread],
            "q3": [each.third for each in spread],
            "upperfence": [each.high for each in spread],
            "mean": [each.mean for each in spread],
            "name": words,
            "marker": {"color": COLOURS[0]},
            "line": {"width": 1.5},
        }
    ]
    heads = [what, "commits", "least", "first quarter", "median", "third quarter", "most", "mean"]
    rows = [(e.name, e.count, e.low, e.first, e.median, e.third, e.high, e.mean) for e in spread]
    named = {"type": "category", "automargin": True}
    counted = {"title": {"text": words}, "rangemode": "tozero"}
    layout: dict[str, Any] = {"xaxis": counted if lying else named, "yaxis": named if lying else counted}
    layout["showlegend"] = False
    if lying:
        layout["height"] = 140 + 60 * len(spread)
    return {"data": data, "layout": layout, "table": {"heads": heads, "rows": rows}}


def cycle_figure(cycles: Sequence[CycleLine]) -> Figure:
    """The loss at the end of each learner's cycles: as the other sites found it, or else in training."""
    judged = any(each.validation is not None for each in cycles)
    words = "validation loss" if judged else "training loss"
    data = []
    names = sorted({each.learner for each in cycles})
    for i, name in enumerate(names):
        mine = [(each, each.validation if judged else each.loss) for each in cycles if each.learner == name]
        mine = [(each, value) for each, value in mine if value is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [each.cycle for each, _ in mine],
                "y": [value for _, value in mine],
                "name": plain(name),
                "line": {"color": COLOURS[i % len(COLOURS)], "width": 1.6},
                "marker": {"size": 4},
                "hovertemplate": "%{y:.4f}",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "cycle"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": words}},
        "showlegend": True,
    }
    heads = ["learner", "cycle", "training loss", "validation loss", "steps"]
    rows: list[tuple[object, ...]] = [
        (each.learner, each.cycle, each.loss, each.validation, each.steps) for each in cycles[-120:]
    ]
    if any(each.steps is None for each in cycles):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return {"data": data, "layout": layout, "table": {"heads": heads, "rows": rows}}


def payload_figure(spread: Sequence[Quartiles], uncompressed: int | None) -> Figure:
    """How large updates are by codec, beside what they would be uncompressed.

    Args:
        spread: quartiles of the sizes, by the codec's name.
        uncompressed: how many bytes a model is.
    """
    figure = spread_figure(spread, words="bytes of an update", what="codec", lying=True)
    if uncompressed:
        line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": uncompressed, "x1": uncompressed,
                "line": {"dash": "dot", "width": 1.5, "color": COLOURS[1]}}  # fmt: skip
        words = {"yref": "paper", "y": 1, "x": uncompressed, "text": f"uncompressed: {uncompressed:,}",
                 "showarrow": False, "xanchor": "right", "yanchor": "top", "xshift": -4}  # fmt: skip
        figure["layout"] |= {"shapes": [line], "annotations": [words]}
        figure["table"]["rows"] = [*figure["table"]["rows"], ("uncompressed", None, *[uncompressed] * 6)]
    return figure
