"""Figures about policies: accuracy over simulated time, what travelled, staleness, validation cycles, cost of a mix.

Every function is pure: numbers in, a Plotly figure out. A policy has the same colour and line in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Curve = Sequence[tuple[float, float]]

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")


def accuracy_over_time(curves: Mapping[str, Mapping[str, Curve]], *, title: str = "") -> Any:
    """Accuracy against simulated seconds, one small picture an environment, one line a policy (Fig. 5 to 8).

    Args:
        curves: for each environment, each policy's points.
        title: what is written above.
    """
    from plotly.subplots import make_subplots

    columns = min(3, len(curves)) or 1
    lines = -(-len(curves) // columns) or 1
    figure = make_subplots(rows=lines, cols=columns, subplot_titles=list(curves))
    policies = list(dict.fromkeys(policy for mine in curves.values() for policy in mine))
    shown: set[str] = set()
    for place, mine in enumerate(curves.values()):
        for policy, points in mine.items():
            look = policies.index(policy) % len(_COLOURS)
            figure.add_scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                name=policy,
                legendgroup=policy,
                showlegend=policy not in shown,
                mode="lines",
                line={"color": _COLOURS[look], "dash": _DASHES[look]},
                row=place // columns + 1,
                col=place % columns + 1,
            )
            shown.add(policy)
    figure.update_xaxes(title_text="simulated seconds")
    figure.update_yaxes(title_text="accuracy", tickformat=".0%", rangemode="tozero")
    return figure.update_layout(title_text=title, template="plotly_white", height=100 + 320 * lines)


def exchanges(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """Update requests, models exchanged, and models exchanged for evaluation, for each policy (Fig. 9).

    Args:
        rows: one line for each environment and policy with `requests`, `exchanged` and `evaluations`.
        title: what is written above.
    """
    from plotly.subplots import make_subplots

    places = list(dict.fromkeys(row["environment"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figure = make_subplots(rows=len(places), cols=1, subplot_titles=places)
    groups = ("requests", "exchanged", "evaluations")
    names = ("update requests", "models exchanged", "models exchanged for evaluation")
    for row in rows:
        figure.add_bar(
            x=list(names),
            y=[row[group] for group in groups],
            name=row["policy"],
            legendgroup=row["policy"],
            showlegend=row["environment"] == places[0],
            marker_color=_COLOURS[policies.index(row["policy"]) % len(_COLOURS)],
            row=places.index(row["environment"]) + 1,
            col=1,
        )
    figure.update_yaxes(title_text="number")
    return figure.update_layout(
        title_text=title, template="plotly_white", barmode="group", height=100 + 300 * len(places)
    )


def staleness_boxes(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """How stale each learner's first cycles were, fast and slow learners apart (Fig. 4).

    Args:
        rows: one line a learner with `learner`, `group` and `staleness`.
        title: what is written above.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    groups = list(dict.fromkeys(row["group"] for row in rows))
    for row in rows:
        figure.add_box(
            y=row["staleness"],
            name=row["learner"],
            legendgroup=row["group"],
            marker_color=_COLOURS[groups.index(row["group"]) % len(_COLOURS)],
            boxmean="sd",
        )
    figure.update_yaxes(title_text="effective staleness (steps)")
    return figure.update_layout(title_text=title, template="plotly_white", showlegend=False, height=460)


def validation_cycles(cycles: Mapping[str, Sequence[Sequence[float]]], *, title: str = "") -> Any:
    """The validation loss after every epoch, one picture a learner, a line for each cycle (Fig. 3).

    Args:
        cycles: for each learner its cycles, in order, each a loss for every epoch.
        title: what is written above.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=max(1, len(cycles)), subplot_titles=list(cycles))
    for place, mine in enumerate(cycles.values(), 1):
        epoch = 0
        for number, losses in enumerate(mine):
            figure.add_scatter(
                x=list(range(epoch + 1, epoch + len(losses) + 1)),
                y=list(losses),
                mode="lines+markers",
                name=f"cycle {number + 1}",
                showlegend=False,
                line={"color": _COLOURS[number % 2]},
                row=1,
                col=place,
            )
            epoch += len(losses)
    figure.update_xaxes(title_text="local epoch")
    figure.update_yaxes(title_text="validation loss")
    return figure.update_layout(title_text=title, template="plotly_white", height=440)


def community_cost(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """Time to compute the community model against the number of learners, with and without the cache (Fig. 2).

    Args:
        rows: one line for each network and number of learners with `cached` and `full` in milliseconds.
        title: what is written above.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, subplot_titles=["with cache", "without"], shared_yaxes=True)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    for place, key in enumerate(("cached", "full"), 1):
        for number, network in enumerate(networks):
            mine = [row for row in rows if row["network"] == network and row[key] is not None]
            figure.add_scatter(
                x=[row["learners"] for row in mine],
                y=[row[key] for row in mine],
                name=network,
                legendgroup=network,
                showlegend=place == 1,
                mode="lines+markers",
                line={"color": _COLOURS[number % len(_COLOURS)]},
                row=1,
                col=place,
            )
    figure.update_xaxes(title_text="learners", type="log")
    figure.update_yaxes(title_text="milliseconds", type="log")
    return figure.update_layout(title_text=title, template="plotly_white", height=440)
