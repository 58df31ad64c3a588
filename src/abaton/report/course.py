"""How a run went, from its rows: each version's measures against rounds, time and bytes, and what every learner did.

Every function is pure: rows in, numbers or figures out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from abaton.report.curves import Figure, metric_figure
from abaton.store import ModelRow
from abaton.store import Point as Version

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
