"""Plotly figures of experiments: strategies, partitions and codecs."""

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
    """Return accuracy against simulated time, one panel per environment, one line per strategy (Fig. 5 to 8).

    Args:
        curves: Points of each strategy, by environment.
        title: Title of the figure.
    """
    from plotly.subplots import make_subplots

    columns = min(3, len(curves)) or 1
    grid_rows = -(-len(curves) // columns) or 1
    figure = make_subplots(rows=grid_rows, cols=columns, subplot_titles=list(curves))
    strategies = list(
        dict.fromkeys(strategy for strategy_curves in curves.values() for strategy in strategy_curves)
    )
    shown: set[str] = set()
    for index, strategy_curves in enumerate(curves.values()):
        for strategy, points in strategy_curves.items():
            style = strategies.index(strategy) % len(_COLOURS)
            figure.add_scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                name=strategy,
                legendgroup=strategy,
                showlegend=strategy not in shown,
                mode="lines",
                line={"color": _COLOURS[style], "dash": _DASHES[style]},
                row=index // columns + 1,
                col=index % columns + 1,
            )
            shown.add(strategy)
    figure.update_xaxes(title_text="simulated time (s)")
    figure.update_yaxes(title_text="accuracy", tickformat=".0%", rangemode="tozero")
    return figure.update_layout(title_text=title, template="plotly_white", height=100 + 320 * grid_rows)


def exchanges(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """Return update requests, models exchanged and models exchanged for evaluation, by strategy (Fig. 9).

    Args:
        rows: One row per environment and strategy with `requests`, `exchanged` and `evaluations`.
        title: Title of the figure.
    """
    from plotly.subplots import make_subplots

    environments = list(dict.fromkeys(row["environment"] for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    figure = make_subplots(rows=len(environments), cols=1, subplot_titles=environments)
    groups = ("requests", "exchanged", "evaluations")
    names = ("update requests", "models exchanged", "models exchanged for evaluation")
    for row in rows:
        figure.add_bar(
            x=list(names),
            y=[row[group] for group in groups],
            name=row["strategy"],
            legendgroup=row["strategy"],
            showlegend=row["environment"] == environments[0],
            marker_color=_COLOURS[strategies.index(row["strategy"]) % len(_COLOURS)],
            row=environments.index(row["environment"]) + 1,
            col=1,
        )
    figure.update_yaxes(title_text="count")
    return figure.update_layout(
        title_text=title, template="plotly_white", barmode="group", height=100 + 300 * len(environments)
    )


def staleness_boxes(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """Return the staleness of each learner's first cycles, coloured by group (Fig. 4).

    Args:
        rows: One row per learner with `learner`, `group` and `staleness`.
        title: Title of the figure.
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
    """Return the validation loss after every epoch, one panel per learner, one line per cycle (Fig. 3).

    Args:
        cycles: Losses by epoch of each cycle, by learner.
        title: Title of the figure.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=max(1, len(cycles)), subplot_titles=list(cycles))
    for index, learner_cycles in enumerate(cycles.values(), 1):
        epoch = 0
        for number, losses in enumerate(learner_cycles):
            figure.add_scatter(
                x=list(range(epoch + 1, epoch + len(losses) + 1)),
                y=list(losses),
                mode="lines+markers",
                name=f"cycle {number + 1}",
                showlegend=False,
                line={"color": _COLOURS[number % 2]},
                row=1,
                col=index,
            )
            epoch += len(losses)
    figure.update_xaxes(title_text="local epoch")
    figure.update_yaxes(title_text="validation loss")
    return figure.update_layout(title_text=title, template="plotly_white", height=440)


def community_cost(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Any:
    """Return the time to compute the community model by number of learners, with and without cache (Fig. 2).

    Args:
        rows: One row per network and number of learners with `cached` and `full` in milliseconds.
        title: Title of the figure.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=2, subplot_titles=["with cache", "without cache"], shared_yaxes=True)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    for index, key in enumerate(("cached", "full"), 1):
        for colour_index, network in enumerate(networks):
            network_rows = [row for row in rows if row["network"] == network and row[key] is not None]
            figure.add_scatter(
                x=[row["learners"] for row in network_rows],
                y=[row[key] for row in network_rows],
                name=network,
                legendgroup=network,
                showlegend=index == 1,
                mode="lines+markers",
                line={"color": _COLOURS[colour_index % len(_COLOURS)]},
                row=1,
                col=index,
            )
    figure.update_xaxes(title_text="learners", type="log")
    figure.update_yaxes(title_text="time (ms)", type="log")
    return figure.update_layout(title_text=title, template="plotly_white", height=440)


_SYMBOLS = ("circle", "square", "diamond")  # the ten colours repeat with another symbol


def kernel_map(vector: Vector, layout: Layout, tensor: str) -> NDArray[np.float32]:
    """Return the magnitudes of a convolution with one column per kernel, as in Fig. 1 and 2 of the SSTC paper.

    >>> from abaton.layout import Layout, Tensor, TensorRole
    >>> layout = Layout([Tensor("conv", (4, 2, 3, 3), TensorRole.CONV)])
    >>> kernel_map(layout.zeros(), layout, "conv").shape
    (9, 8)
    """
    kernels_array = layout.view(vector, tensor)
    if kernels_array.ndim < 3:
        raise SettingsError(f"tensor '{tensor}' has no kernels", remedy="choose a convolution")
    kernels = kernels_array.reshape(kernels_array.shape[0] * kernels_array.shape[1], -1)
    return np.abs(kernels).T


def heat_maps(maps: Mapping[str, NDArray[np.float32]], *, title: str) -> Any:
    """Return a codec experiment's heat maps below each other, such as an update, after STC, and after SSTC."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(maps), cols=1, shared_xaxes=True, subplot_titles=list(maps))
    top = max((float(values.max(initial=0)) for values in maps.values()), default=1.0) or 1.0
    scale = {"title": {"text": "magnitude", "side": "right"}, "thickness": 14}
    for row, values in enumerate(maps.values(), 1):
        style = {"colorscale": "Viridis", "showscale": row == 1, "colorbar": scale}
        figure.add_heatmap(z=values, zmin=0, zmax=top, **style, row=row, col=1)
        figure.update_yaxes(title_text="index in kernel", row=row, col=1)
    figure.update_xaxes(title_text="kernel", row=len(maps), col=1)
    return figure.update_layout(title=title, template="plotly_white", height=120 + 220 * len(maps))


def error_curves(curves: Mapping[str, Curve], *, title: str = "Error and size by codec") -> Any:
    """Return the codec experiment's figure of relative error against bits per value, both logarithmic."""
    figure = _lines(curves, title)
    figure.update_xaxes(title_text="bits per value", type="log")
    return figure.update_yaxes(title_text="relative squared error", type="log", exponentformat="power")


def accuracy_curves(curves: Mapping[str, Curve], *, title: str = "Test accuracy against bytes sent") -> Any:
    """Return the codec experiment's figure of accuracy against bytes sent, one line per codec."""
    figure = _lines(curves, title)
    figure.update_xaxes(title_text="bytes sent by all learners", type="log")
    return figure.update_yaxes(title_text="test accuracy", tickformat=".0%")


def _lines(curves: Mapping[str, Curve], title: str) -> Any:
    from plotly.graph_objects import Figure, Scatter

    figure = Figure(layout={"title": title, "template": "plotly_white", "height": 520})
    for i, (name, points) in enumerate(curves.items()):
        x, y = ([point[axis] for point in points] for axis in (0, 1))
        figure.add_trace(
            Scatter(x=x, y=y, name=name, mode="lines+markers", marker={"symbol": _SYMBOLS[i // 10 % 3]})
        )
    return figure


_MAX_BAR_CLASSES = 20  # more classes are not distinguishable by colour: use a heat map


def partition_figure(
    rows: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    *,
    title: str = "",
    groups: Mapping[str, str] | None = None,
) -> Any:
    """Return a figure of a partition: one bar per learner by class, or a heat map for many classes.

    Args:
        rows: One row per learner with `learner` and `counts` (class -> examples), as in `Partition.table`.
        classes: All classes, in order.
        title: Title of the figure.
        groups: Group (fast, slow) of each learner, shown after its name.

    Returns:
        A Plotly figure.
    """
    import plotly.graph_objects as go

    names = [_name(row["learner"], groups) for row in rows]
    counts = [[int(row["counts"].get(name, 0)) for name in classes] for row in rows]
    figure = go.Figure()
    if len(classes) <= _MAX_BAR_CLASSES:
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
        height=460 if len(classes) <= _MAX_BAR_CLASSES else max(460, 9 * len(classes) + 160),
        margin={"l": 60, "r": 20, "t": 60 if title else 20, "b": 60},
    )
    return figure


def _name(learner: str, groups: Mapping[str, str] | None) -> str:
    return f"{learner} ({groups[learner]})" if groups and learner in groups else learner


def _colour(j: int, classes: int) -> str:
    # Even hues, every second one darker: neighbours differ without colour vision, too.
    return f"hsl({round(360 * j / max(classes, 1))}, 60%, {42 if j % 2 else 62}%)"
