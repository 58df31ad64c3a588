"""Training and scoring of networks of dense layers, a whole epoch in one compiled call.

A network is a table of layers: inputs, outputs, where its weights and its bias (or −1) lie in the flat vector, and what
comes after it. Invariants:
(1) a call reads and writes one learner's arrays only, so its bits do not depend on who else is trained with it;
(2) labels are checked against the number of classes before they are used;
(3) nothing here is random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.learning.solvers import advance
from abaton.vectors import Vector
from abaton.vectors.jit import kernel

LINEAR, RELU, TANH, SIGMOID = 0, 1, 2, 3
INPUTS, OUTPUTS, WEIGHTS, BIAS, AFTER = 0, 1, 2, 3, 4
WRONG_LABEL = -1.0

Layers = NDArray[np.int64]
Array = NDArray[Any]


@kernel
def forward(layers: Layers, model: Vector, x: Array, room: Vector) -> None:
    """Every layer's output for some rows of inputs, one after the other in the room given."""
    rows, end, before = x.shape[0], 0, x
    for n in range(layers.shape[0]):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        at, bias = layers[n, WEIGHTS], layers[n, BIAS]
        weights = model[at : at + inputs * outputs].reshape(outputs, inputs)
        out = room[end : end + rows * outputs].reshape(rows, outputs)
        np.dot(before, weights.T, out)
        after = layers[n, AFTER]
        for i in range(rows):
            if bias >= 0:
                for j in range(outputs):
                    out[i, j] += model[bias + j]
            if after == RELU:
                for j in range(outputs):
                    if out[i, j] < 0:  # so that what is not a number stays so, and is refused later
                        out[i, j] = np.float32(0)
            elif after == TANH:
                for j in range(outputs):
                    out[i, j] = math.tanh(out[i, j])
            elif after == SIGMOID:
                for j in range(outputs):
                    out[i, j] = np.float32(1) / (np.float32(1) + math.exp(-out[i, j]))
        before = out
        end += rows * outputs


@kernel
def bend(after: int, out: Array, delta: Array) -> None:
    """Take a gradient back through what comes after a layer, from that layer's output."""
    one = np.float32(1)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            value = out[i, j]
            if after == RELU:
                delta[i, j] = np.float32(0) if value <= 0 else delta[i, j]
            elif after == TANH:
                delta[i, j] *= one - value * value
            elif after == SIGMOID:
                delta[i, j] *= value * (one - value)


@kernel
def class_loss(out: Array, labels: Array, delta: Array) -> float:
    """Cross-entropy summed over rows, and its gradient for their mean."""
    rows, classes = out.shape
    share, loss = np.float32(1) / np.float32(rows), 0.0
    for i in range(rows):
        label = labels[i]
        if label < 0 or label >= classes:
            return WRONG_LABEL
        top = out[i, 0]
        for j in range(1, classes):
            top = max(top, out[i, j])
        total = np.float32(0)
        for j in range(classes):
            delta[i, j] = math.exp(out[i, j] - top)
            total += delta[i, j]
        loss += np.float64(math.log(total) - (out[i, label] - top))
        for j in range(classes):
            delta[i, j] = delta[i, j] / total * share
        delta[i, label] -= share
    return loss


@kernel
def value_loss(out: Array, values: Array, delta: Array) -> float:
    """Squared error summed over rows, and its gradient for their mean."""
    rows, loss = out.shape[0], 0.0
    scale = np.float32(2) / np.float32(rows)
    for i in range(rows):
        wrong = out[i, 0] - values[i]
        loss += np.float64(wrong) * np.float64(wrong)
        delta[i, 0] = wrong * scale
    return loss


@kernel
def backward(
    layers: Layers, model: Vector, x: Array, room: Vector, delta: Vector, spare: Vector, slope: Vector
) -> None:
    """The gradient of the mean loss, from the last layer's gradient (in `delta`) back to the first."""
    rows, end = x.shape[0], 0
    for n in range(layers.shape[0]):
        end += rows * layers[n, OUTPUTS]
    for n in range(layers.shape[0] - 1, -1, -1):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        at, bias, begin = layers[n, WEIGHTS], layers[n, BIAS], end - rows * outputs
        out = room[begin:end].reshape(rows, outputs)
        change = delta[: rows * outputs].reshape(rows, outputs)
        if layers[n, AFTER] != LINEAR:
            bend(layers[n, AFTER], out, change)
        before = x if n == 0 else room[begin - rows * inputs : begin].reshape(rows, inputs)
        np.dot(change.T, before, slope[at : at + inputs * outputs].reshape(outputs, inputs))
        if bias >= 0:
            slope[bias : bias + outputs] = 0
            for i in range(rows):
                for j in range(outputs):
                    slope[bias + j] += change[i, j]
        if n > 0:
            weights = model[at : at + inputs * outputs].reshape(outputs, inputs)
            np.dot(change, weights, spare[: rows * inputs].reshape(rows, inputs))
            delta, spare, end = spare, delta, begin


@kernel
def epoch(
    layers: Layers,
    model: Vector,
    x: Array,
    labels: Array,
    values: Array,
    order: Array,
    batch: int,
    anchor: Vector,
    first: Vector,
    second: Vector,
    kind: int,
    steps: int,
    rate: float,
    momentum: float,
    proximal: float,
    longest: float,
) -> float:
    """Train a model, in place, for one epoch in the given order; the summed loss, or −1 for a wrong label.

    Either labels or values are given, the other is empty: one compiled form serves both.
    """
    count, widest, total = len(order), 0, 0
    for n in range(layers.shape[0]):
        widest, total = max(widest, layers[n, OUTPUTS]), total + layers[n, OUTPUTS]
    most = min(batch, count)
    room, slope = np.empty(most * total, np.float32), np.empty(model.size, np.float32)
    delta, spare = np.empty(most * widest, np.float32), np.empty(most * widest, np.float32)
    seen = np.empty((most, x.shape[1]), np.float32)
    label, value = np.empty(most, np.int64), np.empty(most, np.float32)
    outputs, loss = layers[-1, OUTPUTS], 0.0
    for begin in range(0, count, batch):
        rows = min(batch, count - begin)
        for i in range(rows):
            row = order[begin + i]
            seen[i] = x[row]
            if labels.size:
                label[i] = labels[row]
            else:
                value[i] = values[row]
        forward(layers, model, seen[:rows], room)
        out = room[rows * (total - outputs) : rows * total].reshape(rows, outputs)
        change = delta[: rows * outputs].reshape(rows, outputs)
        if labels.size:
            added = class_loss(out, label[:rows], change)
            if added == WRONG_LABEL:
                return WRONG_LABEL
        else:
            added = value_loss(out, value[:rows], change)
        loss += added
        backward(layers, model, seen[:rows], room, delta, spare, slope)
        steps += 1
        advance(model, slope, anchor, first, second, kind, steps, rate, momentum, proximal, longest)
    return loss


@kernel
def outputs_of(layers: Layers, model: Vector, x: Array, batch: int, made: Array) -> None:
    """The last layer's output for every row of inputs."""
    total = 0
    for n in range(layers.shape[0]):
        total += layers[n, OUTPUTS]
    outputs = layers[-1, OUTPUTS]
    most = min(batch, x.shape[0])
    room, seen = np.empty(most * total, np.float32), np.empty((most, x.shape[1]), np.float32)
    for begin in range(0, x.shape[0], batch):
        rows = min(batch, x.shape[0] - begin)
        seen[:rows] = x[begin : begin + rows]
        forward(layers, model, seen[:rows], room)
        made[begin : begin + rows] = room[rows * (total - outputs) : rows * total].reshape(rows, outputs)
