"""Compiled training and scoring of dense networks, one epoch per call.

A network is a table of layers: inputs, outputs, start of the weights and of the bias (or −1) in the flat vector,
activation, and values per row from the inputs up to the layer's outputs. Invariants:
(1) a call reads and writes one learner's arrays only, so its bits do not depend on other learners;
(2) labels are checked against the number of classes before they are used;
(3) the kernels use no randomness.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import expanded, inner, kernel
from abaton.layout import Vector
from abaton.models.optimisers import optimiser_step

LINEAR, RELU, TANH, SIGMOID = 0, 1, 2, 3
INPUTS, OUTPUTS, WEIGHTS, BIAS, ACTIVATION, TOTAL = 0, 1, 2, 3, 4, 5
INVALID_LABEL = -1.0

Layers = NDArray[np.int64]
Array = NDArray[Any]

NO_PREDICTIONS = np.empty((1, 0), np.float32)
NO_WEIGHTS = np.empty(0)


@inner
def matrix_view(vector: Vector, start: int, rows: int, columns: int) -> Array:
    """Return a slice of a dense network's flat vector as a matrix in row order."""
    return vector[start : start + rows * columns].reshape(rows, columns)


@expanded
def forward(layers: Layers, model: Vector, rows: int, buffer: Vector) -> None:
    """Compute the outputs of all dense layers; ``buffer`` has the inputs, then the outputs layer by layer."""
    start = 0
    for n in range(layers.shape[0]):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        bias, activation = layers[n, BIAS], layers[n, ACTIVATION]
        input_start, start = start, start + rows * inputs
        weights = matrix_view(model, layers[n, WEIGHTS], outputs, inputs)
        out = matrix_view(buffer, start, rows, outputs)
        np.dot(matrix_view(buffer, input_start, rows, inputs), weights.T, out)
        # Loops count from 0 over views: the compiler then knows that no index is negative.
        for i in range(rows):
            if bias >= 0:
                for j in range(outputs):
                    out[i, j] += model[bias + j]
            if activation == RELU:
                for j in range(outputs):
                    if out[i, j] < 0:  # keeps NaN, which is refused later
                        out[i, j] = np.float32(0)
            elif activation == TANH:
                for j in range(outputs):
                    out[i, j] = math.tanh(out[i, j])
            elif activation == SIGMOID:
                for j in range(outputs):
                    out[i, j] = np.float32(1) / (np.float32(1) + math.exp(-out[i, j]))


@expanded
def activation_backward(activation: int, out: Array, delta: Array) -> None:
    """Multiply a gradient by the derivative of a dense layer's activation, computed from its output."""
    one = np.float32(1)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            value = out[i, j]
            if activation == RELU:
                delta[i, j] = np.float32(0) if value <= 0 else delta[i, j]
            elif activation == TANH:
                delta[i, j] *= one - value * value
            elif activation == SIGMOID:
                delta[i, j] *= value * (one - value)


@expanded
def class_loss(out: Array, targets: Array, weights: Array, rows: Array, delta: Array) -> float:
    """Compiled kernel: return the cross-entropy summed over rows; set ``delta`` to the gradient of the mean."""
    count, classes = out.shape
    mean_scale, loss = np.float32(1) / np.float32(count), 0.0
    for i in range(count):
        label = np.int64(targets[rows[i]])
        if label < 0 or label >= classes:
            loss = INVALID_LABEL
            break
        weight = weights[rows[i]] if weights.size > 0 else 1.0
        scale = mean_scale * np.float32(weight)
        peak = out[i, 0]
        for j in range(1, classes):
            peak = out[i, j] if out[i, j] > peak else peak
        total = np.float32(0)
        for j in range(classes):
            delta[i, j] = math.exp(out[i, j] - peak)
            total += delta[i, j]
        loss += weight * np.float64(math.log(total) - (out[i, label] - peak))
        for j in range(classes):
            delta[i, j] = delta[i, j] / total * scale
        delta[i, label] -= scale
    return loss


@expanded
def squared_loss(out: Array, targets: Array, weights: Array, rows: Array, delta: Array) -> float:
    """Compiled kernel: return the squared error summed over rows; set ``delta`` to the gradient of the mean."""
    count, loss = out.shape[0], 0.0
    scale = np.float32(2) / np.float32(count)
    for i in range(count):
        weight = weights[rows[i]] if weights.size > 0 else 1.0
        error = out[i, 0] - np.float32(targets[rows[i]])
        loss += weight * (np.float64(error) * np.float64(error))
        delta[i, 0] = error * scale * np.float32(weight)
    return loss


@expanded
def backward(
    layers: Layers, model: Vector, rows: int, buffer: Vector, delta: Vector, gradient: Vector
) -> None:
    """Compute the gradient of the mean loss of a dense network, from the last layer to the first.

    Gradients of outputs alternate between the two halves of `delta`; the last layer's is in the first half.
    """
    current, other, end = 0, delta.size // 2, rows * layers[-1, TOTAL]
    for n in range(layers.shape[0] - 1, -1, -1):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        weights_start, bias, start = layers[n, WEIGHTS], layers[n, BIAS], end - rows * outputs
        output_gradient = matrix_view(delta, current, rows, outputs)
        if layers[n, ACTIVATION] != LINEAR:
            activation_backward(
                layers[n, ACTIVATION], matrix_view(buffer, start, rows, outputs), output_gradient
            )
        inputs_view = matrix_view(buffer, start - rows * inputs, rows, inputs)
        np.dot(output_gradient.T, inputs_view, matrix_view(gradient, weights_start, outputs, inputs))
        if bias >= 0:
            for j in range(outputs):
                gradient[bias + j] = 0
            for i in range(rows):
                for j in range(outputs):
                    gradient[bias + j] += output_gradient[i, j]
        if n > 0:
            np.dot(
                output_gradient,
                matrix_view(model, weights_start, outputs, inputs),
                matrix_view(delta, other, rows, inputs),
            )
            current, other, end = other, current, start


@kernel
def train_epoch(
    layers: Layers,
    models: Array,
    x: Array,
    targets: Array,
    weights: Array,
    order: Array,
    row_offsets: Array,
    classes: int,
    batch_size: int,
    anchors: Array,
    first_states: Array,
    second_states: Array,
    optimiser: int,
    step_counts: Array,
    learning_rate: float,
    momentum: float,
    proximal_mu: float,
    max_grad_norm: float,
    losses: Array,
    predictions: Array,
) -> None:
    """Train dense networks in place for one epoch each, or compute their predictions, in one compiled call.

    Model k has the rows `order[row_offsets[k]:row_offsets[k + 1]]`.
    Targets are values if `classes` is 0, labels below `classes` otherwise. `weights` has the weight of each row in the
    loss, or is empty. The summed loss is −1 where a label is
    invalid; such a model is not trained further. If `predictions` is not empty, it is filled with the outputs of the
    last layer and no model is trained. One kernel does both, because compilation delays a first run.
    """
    total, outputs = layers[-1, TOTAL], layers[-1, OUTPUTS]
    max_rows = batch_size if batch_size < order.size else order.size
    buffer, gradient = np.empty(max_rows * total, np.float32), np.empty(models.shape[1], np.float32)
    delta = np.empty(2 * max_rows * total, np.float32)
    for k in range(models.shape[0]):
        if losses[k] == INVALID_LABEL:
            continue
        model, anchor, first, second = models[k], anchors[k], first_states[k], second_states[k]
        steps, loss = step_counts[k], 0.0
        for start in range(row_offsets[k], row_offsets[k + 1], batch_size):
            rows = batch_size if start + batch_size < row_offsets[k + 1] else row_offsets[k + 1] - start
            output_start = rows * (total - outputs)
            batch_rows, inputs = order[start : start + rows], matrix_view(buffer, 0, rows, x.shape[1])
            for i in range(rows):
                row = batch_rows[i]
                for j in range(x.shape[1]):
                    inputs[i, j] = x[row, j]
            forward(layers, model, rows, buffer)
            out, output_gradient = (
                matrix_view(buffer, output_start, rows, outputs),
                matrix_view(delta, 0, rows, outputs),
            )
            if predictions.size > 0:
                for i in range(rows):
                    for j in range(outputs):
                        predictions[start + i, j] = out[i, j]
                continue
            if classes > 0:
                batch_loss = class_loss(out, targets, weights, batch_rows, output_gradient)
            else:
                batch_loss = squared_loss(out, targets, weights, batch_rows, output_gradient)
            if batch_loss == INVALID_LABEL:
                loss = INVALID_LABEL
                break
            loss += batch_loss
            backward(layers, model, rows, buffer, delta, gradient)
            steps += 1
            optimiser_step(
                model,
                gradient,
                anchor,
                first,
                second,
                optimiser,
                steps,
                learning_rate,
                momentum,
                proximal_mu,
                max_grad_norm,
            )
        losses[k] = loss
