"""The picture of a partition: how many examples of which class each learner holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
