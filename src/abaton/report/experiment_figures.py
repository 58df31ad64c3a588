"""Figures about policies: accuracy over simulated time, what travelled, staleness, validation cycles, cost of a mix.

Every function is pure: numbers in, a Plotly figure out. A policy has the same colour and line in all of them.

Figures about codecs: which kernels an update touches, how error falls with bits, what accuracy costs.

Every function is pure: arrays in, a plotly figure out.

The picture of a partition: how many examples of which class each learner holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.layout import Layout, Vector


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


_SIGNS = ("circle", "square", "diamond")  # ten colours come again, each time with another sign


def kernel_map(vector: Vector, layout: Layout, tensor: str) -> NDArray[np.float32]:
    """The magnitudes of a convolution with one column for each kernel, as in Fig. 1 and 2 of the SSTC paper.

    >>> from abaton.kernels import Layout, Role, Tensor
    >>> layout = Layout([Tensor("conv", (4, 2, 3, 3), Role.CONV)])
    >>> kernel_map(layout.zeros(), layout, "conv").shape
    (9, 8)
    """
    part = layout.view(vector, tensor)
    if part.ndim < 3:
        raise SettingsError(f"tensor '{tensor}' has no kernels", remedy="choose a convolution")
    kernels = part.reshape(part.shape[0] * part.shape[1], -1)
    return np.abs(kernels).T


def heat_maps(maps: Mapping[str, NDArray[np.float32]], *, title: str) -> Any:
    """One heat map under the other, such as an update, after STC, and after SSTC."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(maps), cols=1, shared_xaxes=True, subplot_titles=list(maps))
    top = max((float(values.max(initial=0)) for values in maps.values()), default=1.0) or 1.0
    scale = {"title": {"text": "size of change", "side": "right"}, "thickness": 14}
    for row, values in enumerate(maps.values(), 1):
        drawn = {"colorscale": "Viridis", "showscale": row == 1, "colorbar": scale}
        figure.add_heatmap(z=values, zmin=0, zmax=top, **drawn, row=row, col=1)
        figure.update_yaxes(title_text="place in kernel", row=row, col=1)
    figure.update_xaxes(title_text="kernel", row=len(maps), col=1)
    return figure.update_layout(title=title, template="plotly_white", height=120 + 220 * len(maps))


def error_curves(curves: Mapping[str, Curve], *, title: str = "Error and size of every codec") -> Any:
    """Relative error against bits for each number, both logarithmic; lower and further left is better."""
    figure = _lines(curves, title)
    figure.update_xaxes(title_text="bits for each number, as sent", type="log")
    return figure.update_yaxes(title_text="relative squared error", type="log", exponentformat="power")


def accuracy_curves(curves: Mapping[str, Curve], *, title: str = "Test accuracy against bytes sent") -> Any:
    """Accuracy against bytes sent so far, one line for each codec."""
    figure = _lines(curves, title)
    figure.update_xaxes(title_text="bytes sent by all learners", type="log")
    return figure.update_yaxes(title_text="test accuracy", tickformat=".0%")


def _lines(curves: Mapping[str, Curve], title: str) -> Any:
    from plotly.graph_objects import Figure, Scatter

    figure = Figure(layout={"title": title, "template": "plotly_white", "height": 520})
    for i, (name, points) in enumerate(curves.items()):
        x, y = ([point[axis] for point in points] for axis in (0, 1))
        figure.add_trace(
            Scatter(x=x, y=y, name=name, mode="lines+markers", marker={"symbol": _SIGNS[i // 10 % 3]})
        )
    return figure


_BARS = 20  # more classes than this cannot be told apart by colour: they become a map


def partition_figure(
    rows: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    *,
    title: str = "",
    groups: Mapping[str, str] | None = None,
) -> Any:
    """Draw a partition: a bar a learner, coloured by class; with many classes a map of learners and classes.

    Args:
        rows: one line a learner with `learner` and `counts` (class -> examples), as `Partition.table` gives them.
        classes: all classes, in order.
        title: what is written above.
        groups: the group (fast, slow) of each learner, written behind its name.

    Returns:
        A Plotly figure.
    """
    import plotly.graph_objects as go

    names = [_name(row["learner"], groups) for row in rows]
    counts = [[int(row["counts"].get(name, 0)) for name in classes] for row in rows]
    figure = go.Figure()
    if len(classes) <= _BARS:
        for j, name in enumerate(classes):
            figure.add_bar(
                x=names,
                y=[row[j] for row in counts],
                name=name,
                marker_color=_colour(j, len(classes)),
                hovertemplate="%{x}<br>class " + name + ": %{y} examples<extra></extra>",
            )
        figure.update_layout(barmode="stack", yaxis_title="examples", legend_title_text="class")
    else:
        figure.add_heatmap(
            x=names,
            y=list(classes),
            z=[[row[j] or None for row in counts] for j in range(len(classes))],
            colorscale="Viridis",
            colorbar_title_text="examples",
            hovertemplate="%{x}<br>class %{y}: %{z} examples<extra></extra>",
        )
        figure.update_layout(yaxis={"title": "class", "type": "category", "autorange": "reversed"})
    figure.update_layout(
        title_text=title,
        template="plotly_white",
        xaxis={"title": "learner, by size", "type": "category"},
        height=460 if len(classes) <= _BARS else max(460, 9 * len(classes) + 160),
        margin={"l": 60, "r": 20, "t": 60 if title else 20, "b": 60},
    )
    return figure


def _name(learner: str, groups: Mapping[str, str] | None) -> str:
    return f"{learner} ({groups[learner]})" if groups and learner in groups else learner


def _colour(j: int, classes: int) -> str:
    # Evenly around the colour circle, every second one darker, so that neighbours differ without colour vision, too.
    return f"hsl({round(360 * j / max(classes, 1))}, 60%, {42 if j % 2 else 62}%)"
