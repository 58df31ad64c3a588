"""How community models came along, over four ways to count: pure functions from rows to figures.

A figure is plain data: `data` and `layout` as Plotly takes them, `table` with the same numbers for those who read
instead of looking. The dashboard's script draws it, and ``plotly.graph_objects.Figure`` takes it without its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abaton.store import Point

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
