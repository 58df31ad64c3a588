"""Figures about codecs: which kernels an update touches, how error falls with bits, what accuracy costs.

Every function is pure: arrays in, a plotly figure out.
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
