"""Preprocessing of network inputs: downsampling of images, and scaling by the training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError

_CHUNK = 4096  # rows converted at a time, which limits memory


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """Settings of the preprocessing of inputs.

    Attributes:
        side: images are averaged down to this number of pixels per side; None keeps their size.
        flat: each image becomes one row, for dense networks.
        normalise: mean 0 and standard deviation 1 in the training data, by channel of an image or column of a table.
    """

    side: int | None = None
    flat: bool = False
    normalise: bool = True


def prepare(
    train: NDArray[Any], test: NDArray[Any], preprocessing: ImagePreprocessing
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Transform inputs to float32: images [row, channel, y, x] or flat rows, tables [row, column].

    Images come as [row, y, x] or [row, y, x, channel]. Missing values of a table become the training mean.

    >>> x = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    >>> prepare(x, x, ImagePreprocessing(side=2, flat=True, normalise=False))[0][0].tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    if train.shape[1:] != test.shape[1:] or train.ndim not in (2, 3, 4):
        raise SettingsError(
            f"training inputs have shape {train.shape}, test inputs {test.shape}",
            where="data set",
            remedy="give images [row, y, x] or [row, y, x, channel], or tables [row, column]",
        )
    shrink = _shrink_matrices(train.shape, preprocessing)
    converted = [_convert(x, shrink) for x in (train, test)]
    if preprocessing.normalise or train.ndim == 2:
        _normalise(converted, normalise=preprocessing.normalise)
    # Images are flattened after scaling: a nearly constant pixel must not be scaled by its own small deviation.
    first, second = (
        x.reshape(len(x), int(np.prod(x.shape[1:]))) if preprocessing.flat else x for x in converted
    )
    return first, second


def averaging_matrix(before: int, after: int) -> NDArray[np.float32]:
    """Return the matrix that averages an image side from `before` to `after` pixels, border pixels by fraction.

    >>> averaging_matrix(4, 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    edges = np.linspace(0, before, after + 1)
    left, right = edges[:-1, None], edges[1:, None]
    pixel = np.arange(before)
    part = np.clip(np.minimum(right, pixel + 1) - np.maximum(left, pixel), 0, None)
    weights: NDArray[np.float32] = (part / part.sum(1, keepdims=True)).astype(np.float32)
    return weights


def _shrink_matrices(
    shape: tuple[int, ...], preprocessing: ImagePreprocessing
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    if preprocessing.side is None or len(shape) == 2:
        return None
    if not 1 <= preprocessing.side <= min(shape[1:3]):
        raise SettingsError(
            f"images of {shape[1]}x{shape[2]} cannot be averaged down to {preprocessing.side}x{preprocessing.side}",
            where="data set",
            remedy=f"use a side from 1 to {min(shape[1:3])}",
        )
    return averaging_matrix(shape[1], preprocessing.side), averaging_matrix(shape[2], preprocessing.side).T


def _convert(
    x: NDArray[Any], shrink: tuple[NDArray[np.float32], NDArray[np.float32]] | None
) -> NDArray[np.float32]:
    parts: list[NDArray[np.float32]] = []
    for start in range(0, max(len(x), 1), _CHUNK):
        part = x[start : start + _CHUNK].astype(np.float32)
        if x.ndim > 2:
            part = part[:, None] if x.ndim == 3 else part.transpose(0, 3, 1, 2)
            part = part if shrink is None else np.matmul(shrink[0] @ part, shrink[1], dtype=np.float32)
        parts.append(np.ascontiguousarray(part))
    return np.concatenate(parts)


def _normalise(images: list[NDArray[np.float32]], *, normalise: bool) -> None:
    train = images[0]
    axes = (0,) if train.ndim == 2 else (0, 2, 3)
    if not np.isfinite(train).any(axis=axes).all():
        raise SettingsError(
            "an input has no value in the training data",
            where="data set",
            remedy="remove columns without values",
        )
    mean = np.nanmean(train, axis=axes, dtype=np.float64, keepdims=True)
    deviation = np.nanstd(train, axis=axes, dtype=np.float64, keepdims=True)
    scale = np.where(deviation > 1e-6, deviation, 1)
    for x in images:
        np.copyto(x, np.broadcast_to(mean.astype(np.float32), x.shape), where=~np.isfinite(x))
        if normalise:
            x -= mean.astype(np.float32)
            x /= scale.astype(np.float32)
