"""Networks made only of dense layers, recognised in a module and trained by compiled loops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from abaton.errors import SettingsError
from abaton.kernels import Layout, Vector
from abaton.models import dense_kernels
from abaton.models.base import Examples
from abaton.models.optimisers import Solver
from abaton.models.sampling import Order

_AFTER = {nn.ReLU: dense_kernels.RELU, nn.Tanh: dense_kernels.TANH, nn.Sigmoid: dense_kernels.SIGMOID}
_SCORE_BATCH = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DenseNetwork:
    """A stack of dense layers over a flat vector.

    Attributes:
        layers: the table that the kernels read.
        flattens: whether inputs of any shape are made rows first.
        classes: whether labels are classes; values otherwise.
    """

    layers: NDArray[np.int64]
    flattens: bool
    classes: bool

    def takes(self, x: NDArray[Any]) -> bool:
        """Whether inputs have the shape that the first layer wants."""
        return (x.ndim == 2 or self.flattens) and math.prod(x.shape[1:]) == int(
            self.layers[0, dense_kernels.INPUTS]
        )

    def epoch(self, model: Vector, data: Examples, order: Order, solver: Solver, rate: float) -> float:
        """Train a model, in place, on the examples named in order; the sum of their losses."""
        s, losses = solver.settings, np.zeros(1)
        kept = (model, solver.anchor, solver.first, solver.second)
        one, anchor, first, second = (each.reshape(1, -1) for each in kept)
        dense_kernels.epochs(
            self.layers, one, self.rows(data.x), np.asarray(data.y, np.float64), order,
            np.array([0, len(order)]), self.labels, s.batch_size, anchor, first, second, solver.kind,
            np.array([solver.steps]), rate, s.momentum, s.proximal, s.clip, losses, dense_kernels.NOTHING,
        )  # fmt: skip
        if losses[0] == dense_kernels.WRONG_LABEL:
            raise SettingsError(
                "a label is not one of the model's classes",
                where="labels",
                remedy=f"number the classes from 0 to {self.layers[-1, dense_kernels.OUTPUTS] - 1}",
            )
        solver.steps += -(-len(order) // s.batch_size)
        return float(losses[0])

    def outputs(self, model: Vector, x: NDArray[Any]) -> NDArray[np.float32]:
        """The network's outputs for all inputs."""
        made = np.empty((len(x), int(self.layers[-1, dense_kernels.OUTPUTS])), np.float32)
        one, none = np.require(model, requirements="W").reshape(1, -1), dense_kernels.NOTHING
        dense_kernels.epochs(
            self.layers, one, self.rows(x), np.empty(0), np.arange(len(x)), np.array([0, len(x)]), 0, _SCORE_BATCH,
            one, none, none, 0, np.zeros(1, np.int64), 0.0, 0.0, 0.0, 0.0, np.zeros(1), made,
        )  # fmt: skip
        return made

    def rows(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Inputs as the first layer takes them: without a copy, if they are so already."""
        return np.ascontiguousarray(x, dtype=np.float32).reshape(len(x), -1)

    @property
    def labels(self) -> int:
        """How many labels there are; none if the targets are values."""
        return int(self.layers[-1, dense_kernels.OUTPUTS]) if self.classes else 0


def dense_network(module: nn.Module, layout: Layout, *, classes: bool) -> DenseNetwork | None:
    """The module as a stack of dense layers, or nothing if it is anything else.

    It is one if it is a `Linear`, or a `Sequential` of `Linear`, `ReLU`, `Tanh`, `Sigmoid`, `Flatten` and `Identity`
    with at most one of the three functions after each `Linear`, everything trained, nothing used twice, no hooks.

    >>> from abaton.models.torch_model import layout_of
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> dense_network(net, layout_of(net), classes=True).layers.tolist()
    [[4, 3, 0, 12, 1, 7], [3, 2, 15, 21, 0, 9]]
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2))
    >>> dense_network(net, layout_of(net), classes=True) is None
    True
    """
    rows: list[list[int]] = []
    flattens, used = False, 0
    for name, part in _parts(module, ""):
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks:
            return None
        if type(part) is nn.Linear:
            weights, bias = layout_start(layout, f"{name}weight"), layout_start(layout, f"{name}bias")
            if weights is None or (part.bias is not None and bias is None):
                return None  # used twice, or not trained
            if rows and rows[-1][dense_kernels.OUTPUTS] != part.in_features:
                return None
            total = part.out_features + (rows[-1][dense_kernels.TOTAL] if rows else part.in_features)
            sizes, places = [part.in_features, part.out_features], [weights, -1 if bias is None else bias]
            rows.append([*sizes, *places, dense_kernels.LINEAR, total])
            used += part.weight.numel() + (0 if part.bias is None else part.bias.numel())
        elif type(part) in _AFTER and rows and rows[-1][dense_kernels.AFTER] == dense_kernels.LINEAR:
            rows[-1][dense_kernels.AFTER] = _AFTER[type(part)]
        elif type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            flattens = flattens or not rows
        elif type(part) is not nn.Identity:
            return None
    if not rows or used != layout.size or (not classes and rows[-1][dense_kernels.OUTPUTS] != 1):
        return None
    return DenseNetwork(np.array(rows, np.int64), flattens, classes)


def layout_start(layout: Layout, name: str) -> int | None:
    """Where a tensor begins in the flat vector, if it is there."""
    return layout.slice(name).start if any(t.name == name for t in layout) else None


def _parts(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The module's parts in order, with the prefix of their parameters' names."""
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        yield name, module
        return
    for key, part in module._modules.items():
        if part is not None:
            yield from _parts(part, f"{name}{key}.")
