"""Training and scoring of networks of dense layers, a whole epoch in one compiled call.

A network is a table of layers: inputs, outputs, where its weights and its bias (or −1) lie in the flat vector, what
comes after it, and how many numbers a row has from the inputs up to its outputs. Invariants:
(1) a call reads and writes one learner's arrays only, so its bits do not depend on who else is trained with it;
(2) labels are checked against the number of classes before they are used;
(3) nothing here is random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.models.optimisers import advance
from abaton.kernels import Vector
from abaton.kernels.jit import inner, kernel, spelled

LINEAR, RELU, TANH, SIGMOID = 0, 1, 2, 3
INPUTS, OUTPUTS, WEIGHTS, BIAS, AFTER, TOTAL = 0, 1, 2, 3, 4, 5
WRONG_LABEL = -1.0

Layers = NDArray[np.int64]
Array = NDArray[Any]

NOTHING = np.empty((1, 0), np.float32)


@inner
def matrix(vector: Vector, begin: int, rows: int, columns: int) -> Array:
    """A part of a flat vector, row by row."""
    return vector[begin : begin + rows * columns].reshape(rows, columns)


@spelled
def forward(layers: Layers, model: Vector, rows: int, room: Vector) -> None:
    """Every layer's output for some rows of inputs, one after the other in the room that begins with the inputs."""
    begin = 0
    for n in range(layers.shape[0]):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        bias, after = layers[n, BIAS], layers[n, AFTER]
        before, begin = begin, begin + rows * inputs
        weights = matrix(model, layers[n, WEIGHTS], outputs, inputs)
        out = matrix(room, begin, rows, outputs)
        np.dot(matrix(room, before, rows, inputs), weights.T, out)
        # Loops count from 0 over views: the compiler then knows that no place is negative.
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


@spelled
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


@spelled
def class_loss(out: Array, targets: Array, rows: Array, delta: Array) -> float:
    """Cross-entropy summed over rows, and its gradient for their mean."""
    count, classes = out.shape
    share, loss = np.float32(1) / np.float32(count), 0.0
    for i in range(count):
        label = np.int64(targets[rows[i]])
        if label < 0 or label >= classes:
            loss = WRONG_LABEL
            break
        top = out[i, 0]
        for j in range(1, classes):
            top = out[i, j] if out[i, j] > top else top
        total = np.float32(0)
        for j in range(classes):
            delta[i, j] = math.exp(out[i, j] - top)
            total += delta[i, j]
        loss += np.float64(math.log(total) - (out[i, label] - top))
        for j in range(classes):
            delta[i, j] = delta[i, j] / total * share
        delta[i, label] -= share
    return loss


@spelled
def value_loss(out: Array, targets: Array, rows: Array, delta: Array) -> float:
    """Squared error summed over rows, and its gradient for their mean."""
    count, loss = out.shape[0], 0.0
    scale = np.float32(2) / np.float32(count)
    for i in range(count):
        wrong = out[i, 0] - np.float32(targets[rows[i]])
        loss += np.float64(wrong) * np.float64(wrong)
        delta[i, 0] = wrong * scale
    return loss


@spelled
def backward(layers: Layers, model: Vector, rows: int, room: Vector, delta: Vector, slope: Vector) -> None:
    """The gradient of the mean loss, from the last layer's gradient back to the first.

    Gradients of outputs are in one half of `delta` or the other in turn; the last layer's begins it.
    """
    here, there, end = 0, delta.size // 2, rows * layers[-1, TOTAL]
    for n in range(layers.shape[0] - 1, -1, -1):
        inputs, outputs = layers[n, INPUTS], layers[n, OUTPUTS]
        at, bias, begin = layers[n, WEIGHTS], layers[n, BIAS], end - rows * outputs
        change = matrix(delta, here, rows, outputs)
        if layers[n, AFTER] != LINEAR:
            bend(layers[n, AFTER], matrix(room, begin, rows, outputs), change)
        before = matrix(room, begin - rows * inputs, rows, inputs)
        np.dot(change.T, before, matrix(slope, at, outputs, inputs))
        if bias >= 0:
            for j in range(outputs):
                slope[bias + j] = 0
            for i in range(rows):
                for j in range(outputs):
                    slope[bias + j] += change[i, j]
        if n > 0:
            np.dot(change, matrix(model, at, outputs, inputs), matrix(delta, there, rows, inputs))
            here, there, end = there, here, begin


@kernel
def epochs(
    layers: Layers,
    models: Array,
    x: Array,
    targets: Array,
    order: Array,
    places: Array,
    classes: int,
    batch: int,
    anchors: Array,
    firsts: Array,
    seconds: Array,
    kind: int,
    begun: Array,
    rate: float,
    momentum: float,
    proximal: float,
    longest: float,
    losses: Array,
    made: Array,
) -> None:
    """Train some models, in place, for an epoch each, or look what they make of their rows.

    Model k has the rows `order[places[k]:places[k + 1]]`.
    Targets are values if `classes` is 0, labels below it otherwise. The summed loss is −1 where a label was wrong; such
    a model is not trained again. If there is room for the last layer's outputs in `made`, they are all that is wanted,
    and nothing is trained. One compiled form serves all this, because compiling is what a first run waits for.
    """
    total, outputs = layers[-1, TOTAL], layers[-1, OUTPUTS]
    most = batch if batch < order.size else order.size
    room, slope = np.empty(most * total, np.float32), np.empty(models.shape[1], np.float32)
    delta = np.empty(2 * most * total, np.float32)
    for k in range(models.shape[0]):
        if losses[k] == WRONG_LABEL:
            continue
        model, anchor, first, second = models[k], anchors[k], firsts[k], seconds[k]
        steps, loss = begun[k], 0.0
        for begin in range(places[k], places[k + 1], batch):
            rows = batch if begin + batch < places[k + 1] else places[k + 1] - begin
            last = rows * (total - outputs)
            mine, seen = order[begin : begin + rows], matrix(room, 0, rows, x.shape[1])
            for i in range(rows):
                row = mine[i]
                for j in range(x.shape[1]):
                    seen[i, j] = x[row, j]
            forward(layers, model, rows, room)
            out, change = matrix(room, last, rows, outputs), matrix(delta, 0, rows, outputs)
            if made.size > 0:
                for i in range(rows):
                    for j in range(outputs):
                        made[begin + i, j] = out[i, j]
                continue
            if classes > 0:  # noqa: SIM108 (what is spelled out stands in a statement of its own)
                added = class_loss(out, targets, mine, change)
            else:
                added = value_loss(out, targets, mine, change)
            if added == WRONG_LABEL:
                loss = WRONG_LABEL
                break
            loss += added
            backward(layers, model, rows, room, delta, slope)
            steps += 1
            advance(model, slope, anchor, first, second, kind, steps, rate, momentum, proximal, longest)
        losses[k] = loss
