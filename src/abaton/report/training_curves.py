"""How a run went, from its rows: each version's measures against rounds, time and bytes, and what every learner did.

Every function is pure: rows in, numbers or figures out.

How community models came along, over four ways to count: pure functions from rows to figures.

A figure is plain data: `data` and `layout` as Plotly takes them, `table` with the same numbers for those who read
instead of looking. The dashboard's script draws it, and ``plotly.graph_objects.Figure`` takes it without its table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from abaton.store import ModelRow, Point
from abaton.store import Point as Version

Figure = dict[str, Any]

AXES: Mapping[str, str] = {
    "wall": "seconds of wall-clock time",
    "at": "seconds of simulated time",
    "version": "versions of the community model",
    "bytes": "bytes sent by learners",
}
"""The ways to count how far a run has come, and what is written below them."""

COLOURS = ("#0f8b8d", "#d1495b", "#7b5cd6", "#c77d0a", "#2e7dd1", "#5a8f29", "#b0479a", "#6b7785")
"""Eight colours that can be told apart on white and on black, and by people who see colours differently."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_NAMES = {
    "auroc": "AUROC", "auprc": "average precision", "brier": "Brier score", "accuracy": "accuracy",
    "rmse": "root mean squared error", "mae": "mean absolute error", "r2": "R²",
    "concordance": "concordance (Harrell's C)",
}  # fmt: skip
_BETTER_BELOW = ("loss", "error", "rmse", "mae", "epsilon", "brier")


def measure_name(measure: str) -> str:
    """A measure as it is written in a sentence.

    >>> measure_name("auroc"), measure_name("calibration slope")
    ('AUROC', 'calibration slope')
    """
    return _NAMES.get(measure, measure)


def metric_names(points: Sequence[Point]) -> list[str]:
    """What was measured of a run's versions: the area under the curve first, losses last.

    >>> metric_names([Point(0, 0.0, None, None, None, {"loss": 1.0, "auroc": 0.5})])
    ['auroc', 'loss']
    """
    names = dict.fromkeys(name for point in points for name in point.metrics)
    return sorted(names, key=lambda name: (any(word in name for word in _BETTER_BELOW), name != "auroc"))


def metric_figure(
    runs: Mapping[str, Sequence[Point]], metric: str, axis: str, *, simulated: bool = True
) -> Figure:
    """One metric of one or several runs, over one way to count.

    Args:
        runs: the versions of each run, by the name that is shown.
        metric: what was measured.
        axis: one of :data:`AXES`.
        simulated: whether the engine's clock is a simulated one.
    """
    data, rows = [], []
    for number, (name, points) in enumerate(runs.items()):
        told = [(getattr(p, axis), p.metrics[metric]) for p in points if metric in p.metrics]
        told = [(x, y) for x, y in told if x is not None]
        colour = COLOURS[number % len(COLOURS)]
        few = len(told) <= 40
        data.append(
            {
                "type": "scatter",
                "x": [x for x, _ in told],
                "y": [y for _, y in told],
                "name": plain(name),
                "mode": "lines+markers" if few else "lines",
                "line": {"color": colour, "width": 2.5, "dash": _DASHES[number % len(_DASHES)]},
                "marker": {"color": colour, "size": 5},
                "hovertemplate": "%{y:.4f}<extra>" + plain(name) + "</extra>",
            }
        )
        rows += [(name, x, y) for x, y in _thinned(told)]
    words = "seconds since the run began" if axis == "at" and not simulated else AXES[axis]
    layout = {
        "xaxis": {"title": {"text": words}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": measure_name(metric)}},
        "showlegend": len(runs) > 1,
        "hovermode": "x unified" if len(runs) > 1 else "closest",
    }
    heads = ["run", words, measure_name(metric)]
    alone = len(runs) == 1  # which run it is need not be said on every line
    table = {"heads": heads[alone:], "rows": [row[alone:] for row in rows]}
    return {"data": data, "layout": layout, "table": table}


def pace_figure(stretches: Sequence[tuple[float, int]], width: float, *, words: str) -> Figure:
    """Commits per minute, over time.

    Args:
        stretches: the middle of each stretch of time, and how many commits it had.
        width: how many seconds a stretch is.
        words: which time it is.
    """
    pace = [(at, 60.0 * number / width) for at, number in stretches]
    data = [
        {
            "type": "bar",
            "x": [at for at, _ in pace],
            "y": [value for _, value in pace],
            "width": [0.9 * width] * len(pace),
            "name": "commits per minute",
            "marker": {"color": COLOURS[0]},
            "hovertemplate": "%{y:,.1f} per minute<extra></extra>",
        }
    ]
    layout = {"xaxis": {"title": {"text": words}, "rangemode": "tozero"},
              "yaxis": {"title": {"text": "commits per minute"}}, "showlegend": False}  # fmt: skip
    return {"data": data, "layout": layout, "table": {"heads": [words, "commits per minute"], "rows": pace}}


def _thinned(told: Sequence[tuple[float, float]], most: int = 50) -> list[tuple[float, float]]:
    stride = max(1, -(-len(told) // most))
    kept = list(told[::stride])
    return kept if not told or kept[-1] == told[-1] else [*kept, told[-1]]


def plain(name: str) -> str:
    """A name that Plotly does not take for markup or a placeholder.

    >>> plain("<b>north</b>")
    '‹b›north‹/b›'
    """
    return name.replace("<", "‹").replace(">", "›").replace("%{", "% {")


Event = tuple[str, Mapping[str, Any]]
PointRow = Mapping[str, Any]

MOST_POINTS = 400
COURSE_AXES = {"version": "rounds", "at": "seconds", "bytes": "bytes sent"}
"""What a measure is drawn against, and what is written under it."""

_MAIN = ("auroc", "accuracy", "r2", "rmse", "loss")
_LESS_IS_BETTER = ("loss", "rmse", "mae", "brier")


def course(
    models: Sequence[ModelRow], events: Iterable[Event], judged: Sequence[PointRow] = ()
) -> dict[str, Any]:
    """The measures of every version with the time and the bytes until then, and a line for each learner.

    Args:
        models: The versions that were published.
        events: The journal.
        judged: Versions that were judged after the run: each with `version`, `at` and its measures.

    >>> made = course([ModelRow(0, 0.0, "", {"loss": 1.0}), ModelRow(1, 2.0, "", {"loss": 0.5})],
    ...               [("Joined", {"at": 0.0, "learner": "kos", "examples": 9, "group": ""}),
    ...                ("Arrived", {"at": 2.0, "learner": "kos", "size": 48, "steps": 3})])
    >>> made["points"][-1]
    {'version': 1, 'at': 2.0, 'bytes': 48, 'loss': 0.5}
    >>> made["learners"][0]["updates"], made["main"]
    (1, 'loss')
    """
    told = list(events)
    points: list[dict[str, Any]] = [dict(each) for each in judged] or [
        {"version": model.version, "at": model.at, **model.metrics} for model in models if model.metrics
    ]
    arrived = [body for kind, body in told if kind == "Arrived"]
    times = [body["at"] for body in arrived]
    sums = [0, *accumulate(body["size"] for body in arrived)]
    # An axis of its own: bytes that had arrived when the version was made.
    points = [
        {"version": p["version"], "at": p["at"], "bytes": sums[bisect_right(times, p["at"])], **p}
        for p in thinned(points)
    ]
    points = [{name: value if _is_told(value) else None for name, value in p.items()} for p in points]
    measures = list(
        dict.fromkeys(name for p in points for name in p if name not in COURSE_AXES and p[name] is not None)
    )
    main = next((name for name in _MAIN if name in measures), measures[0] if measures else None)
    return {"measures": measures, "main": main, "points": points, "learners": learners(told)}


def _is_told(value: Any) -> bool:
    """Whether there is a number: what could not be judged is nothing, never 'not a number'."""
    return value is not None and isfinite(value)


def thinned(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most some hundred points, the last always among them: more cannot be told apart in a figure."""
    stride = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def learners(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What each learner did: updates, bytes both ways and steps, tasks that failed, when it was last heard of."""
    made: dict[str, dict[str, Any]] = {}
    for kind, body in events:
        name = body.get("learner")
        if name is None:
            continue
        line = made.setdefault(
            name,
            {"learner": name, "group": "", "examples": None, "updates": 0, "steps": 0, "bytes": 0,
             "down": 0, "scored": 0, "failed": 0, "left": False, "last": 0.0},
        )  # fmt: skip
        line["last"] = body["at"]
        match kind:
            case "Joined":
                line |= {"examples": body["examples"], "group": body.get("group", ""), "left": False}
            case "Arrived":
                line["updates"] += 1
                line["steps"] += body["steps"]
                line["bytes"] += body["size"]
                line["down"] += body.get("down", 0)
            case "Scored":
                line["scored"] += 1
                line["down"] += body.get("down", 0)
            case "Failed":
                line["failed"] += 1
            case "Left":
                line["left"] = True
    return [made[name] for name in sorted(made)]


def less_is_better(measure: str) -> bool:
    """Whether a smaller value of a measure is the better one.

    >>> less_is_better("rmse"), less_is_better("auroc")
    (True, False)
    """
    return measure in _LESS_IS_BETTER


def course_figures(curves: Mapping[str, Sequence[PointRow]], measure: str) -> dict[str, Figure]:
    """A measure against rounds, time and bytes, one line for each run.

    Args:
        curves: each run's points, as :func:`course` makes them.
        measure: which one.
    """
    runs = {name: [_point(p, measure) for p in points] for name, points in curves.items()}
    made = {}
    for axis, words in COURSE_AXES.items():
        made[axis] = metric_figure(runs, measure, axis)  # the dashboard draws the same
        made[axis]["layout"]["xaxis"]["title"]["text"] = made[axis]["table"]["heads"][-2] = words
    return made


def _point(told: PointRow, measure: str) -> Version:
    value = told.get(measure)
    known = {} if value is None else {measure: value}
    return Version(told["version"], told["at"], None, None, told["bytes"], known)
