"""Dense networks, recognised in a PyTorch module and trained by compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from abaton.errors import SettingsError
from abaton.layout import Layout, Vector
from abaton.models import dense_kernels
from abaton.models.base import Examples
from abaton.models.optimisers import LocalOptimiser
from abaton.models.sampling import Order

_ACTIVATIONS = {nn.ReLU: dense_kernels.RELU, nn.Tanh: dense_kernels.TANH, nn.Sigmoid: dense_kernels.SIGMOID}
_SCORE_BATCH = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DenseNetwork:
    """Sequence of dense layers on a flat vector.

    Attributes:
        layers: Layer table of the kernels.
        is_flattening: Whether inputs of any shape are flattened to rows.
        is_classification: Whether targets are labels; values otherwise.
    """

    layers: NDArray[np.int64]
    is_flattening: bool
    is_classification: bool

    def accepts(self, x: NDArray[Any]) -> bool:
        """Return whether inputs have the shape of the dense network's first layer."""
        return (x.ndim == 2 or self.is_flattening) and math.prod(x.shape[1:]) == int(
            self.layers[0, dense_kernels.INPUTS]
        )

    def epoch(
        self, model: Vector, data: Examples, order: Order, optimiser: LocalOptimiser, learning_rate: float
    ) -> float:
        """Train a dense network in place on the rows in ``order``; return the sum of their losses."""
        settings, losses = optimiser.settings, np.zeros(1)
        arrays = (model, optimiser.anchor, optimiser.first, optimiser.second)
        models, anchor, first, second = (array.reshape(1, -1) for array in arrays)
        weights = data.relative_weights
        dense_kernels.train_epoch(
            self.layers, models, self.as_rows(data.x), np.asarray(data.y, np.float64),
            dense_kernels.NO_WEIGHTS if weights is None else weights, order, np.array([0, len(order)]),
            self.class_count, settings.batch_size, anchor, first, second, optimiser.kind,
            np.array([optimiser.steps]), learning_rate, settings.momentum, settings.proximal_mu,
            settings.max_grad_norm, losses, dense_kernels.NO_PREDICTIONS,
        )  # fmt: skip
        if losses[0] == dense_kernels.INVALID_LABEL:
            raise SettingsError(
                "a label is not one of the model's classes",
                where="labels",
                remedy=f"number the classes from 0 to {self.layers[-1, dense_kernels.OUTPUTS] - 1}",
            )
        optimiser.steps += -(-len(order) // settings.batch_size)
        return float(losses[0])

    def outputs(self, model: Vector, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the dense network's outputs for all inputs."""
        predictions = np.empty((len(x), int(self.layers[-1, dense_kernels.OUTPUTS])), np.float32)
        models, no_state = np.require(model, requirements="W").reshape(1, -1), dense_kernels.NO_PREDICTIONS
        dense_kernels.train_epoch(
            self.layers, models, self.as_rows(x), np.empty(0), dense_kernels.NO_WEIGHTS, np.arange(len(x)),
            np.array([0, len(x)]), 0, _SCORE_BATCH, models, no_state, no_state, 0, np.zeros(1, np.int64), 0.0, 0.0,
            0.0, 0.0, np.zeros(1), predictions,
        )  # fmt: skip
        return predictions

    def as_rows(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return inputs of a dense network as a float32 matrix, without a copy if possible."""
        return np.ascontiguousarray(x, dtype=np.float32).reshape(len(x), -1)

    @property
    def class_count(self) -> int:
        """Number of classes of the dense network; 0 if the targets are values."""
        return int(self.layers[-1, dense_kernels.OUTPUTS]) if self.is_classification else 0


def as_dense_network(module: nn.Module, layout: Layout, *, is_classification: bool) -> DenseNetwork | None:
    """Return a PyTorch module as a dense network, or None if it is not one.

    Supported are `Linear`, and `Sequential` of `Linear`, `ReLU`, `Tanh`, `Sigmoid`, `Flatten` and `Identity` with at
    most one activation after each `Linear`, all parameters trainable, none shared, and no hooks.

    >>> from abaton.models.torch_model import layout_of
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> as_dense_network(net, layout_of(net), is_classification=True).layers.tolist()
    [[4, 3, 0, 12, 1, 7], [3, 2, 15, 21, 0, 9]]
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2))
    >>> as_dense_network(net, layout_of(net), is_classification=True) is None
    True
    """
    if layout.trained is not layout:
        return None
    layers: list[list[int]] = []
    is_flattening, parameter_count = False, 0
    for name, leaf in _leaf_modules(module, ""):
        if leaf._forward_hooks or leaf._forward_pre_hooks or leaf._backward_hooks:
            return None
        if type(leaf) is nn.Linear:
            weights, bias = layout_start(layout, f"{name}weight"), layout_start(layout, f"{name}bias")
            if weights is None or (leaf.bias is not None and bias is None):
                return None  # shared
            if layers and layers[-1][dense_kernels.OUTPUTS] != leaf.in_features:
                return None
            total = leaf.out_features + (layers[-1][dense_kernels.TOTAL] if layers else leaf.in_features)
            sizes, starts = [leaf.in_features, leaf.out_features], [weights, -1 if bias is None else bias]
            layers.append([*sizes, *starts, dense_kernels.LINEAR, total])
            parameter_count += leaf.weight.numel() + (0 if leaf.bias is None else leaf.bias.numel())
        elif (
            type(leaf) in _ACTIVATIONS
            and layers
            and layers[-1][dense_kernels.ACTIVATION] == dense_kernels.LINEAR
        ):
            layers[-1][dense_kernels.ACTIVATION] = _ACTIVATIONS[type(leaf)]
        elif type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1):
            is_flattening = is_flattening or not layers
        elif type(leaf) is not nn.Identity:
            return None
    if (
        not layers
        or parameter_count != layout.size
        or (not is_classification and layers[-1][dense_kernels.OUTPUTS] != 1)
    ):
        return None
    return DenseNetwork(np.array(layers, np.int64), is_flattening, is_classification)


def layout_start(layout: Layout, name: str) -> int | None:
    """Return the start of a dense layer's tensor in the flat vector, or None."""
    return layout.slice(name).start if any(t.name == name for t in layout) else None


def _leaf_modules(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the leaf modules of a possible dense network in order, with the prefix of their parameters."""
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        yield name, module
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from _leaf_modules(child, f"{name}{key}.")
