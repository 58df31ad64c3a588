"""From measured numbers to a network's input: averaging images down, and scaling by the training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError

_CHUNK = 4096  # rows at a time: float copies of a large data set never exist twice


@dataclass(frozen=True, slots=True)
class Preparation:
    """How inputs are made ready.

    Attributes:
        side: images are averaged down to so many pixels a side; as they are if None.
        flat: each image becomes one row of numbers, for dense networks.
        normalise: mean 0 and spread 1 in the training data, by channel of an image or column of a table.
    """

    side: int | None = None
    flat: bool = False
    normalise: bool = True


def prepare(
    train: NDArray[Any], test: NDArray[Any], how: Preparation
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Inputs as float32: images [row, channel, y, x] or flat rows, tables [row, column].

    Images come as [row, y, x] or [row, y, x, channel]. Missing values of a table become the training mean.

    >>> x = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    >>> prepare(x, x, Preparation(side=2, flat=True, normalise=False))[0][0].tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    if train.shape[1:] != test.shape[1:] or train.ndim not in (2, 3, 4):
        raise SettingsError(
            f"training inputs have shape {train.shape}, test inputs {test.shape}",
            where="data set",
            remedy="give images [row, y, x] or [row, y, x, channel], or tables [row, column]",
        )
    shrink = _shrink(train.shape, how)
    made = [_convert(x, shrink) for x in (train, test)]
    if how.normalise or train.ndim == 2:
        _normalise(made, normalise=how.normalise)
    # Flat only now: a pixel that is nearly always black must not be scaled by its own tiny spread.
    first, second = (x.reshape(len(x), int(np.prod(x.shape[1:]))) if how.flat else x for x in made)
    return first, second


def averaging(before: int, after: int) -> NDArray[np.float32]:
    """The matrix that averages `before` pixels down to `after`; pixels on a border count by their part.

    >>> averaging(4, 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    edges = np.linspace(0, before, after + 1)
    left, right = edges[:-1, None], edges[1:, None]
    pixel = np.arange(before)
    part = np.clip(np.minimum(right, pixel + 1) - np.maximum(left, pixel), 0, None)
    made: NDArray[np.float32] = (part / part.sum(1, keepdims=True)).astype(np.float32)
    return made


def _shrink(
    shape: tuple[int, ...], how: Preparation
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    if how.side is None or len(shape) == 2:
        return None
    if not 1 <= how.side <= min(shape[1:3]):
        raise SettingsError(
            f"images of {shape[1]}x{shape[2]} cannot be averaged down to {how.side}x{how.side}",
            where="data set",
            remedy=f"use a side from 1 to {min(shape[1:3])}",
        )
    return averaging(shape[1], how.side), averaging(shape[2], how.side).T


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


def _normalise(made: list[NDArray[np.float32]], *, normalise: bool) -> None:
    train = made[0]
    axes = (0,) if train.ndim == 2 else (0, 2, 3)
    if not np.isfinite(train).any(axis=axes).all():
        raise SettingsError(
            "an input has no value in the whole training data",
            where="data set",
            remedy="leave out columns that are always empty",
        )
    mean = np.nanmean(train, axis=axes, dtype=np.float64, keepdims=True)
    spread = np.nanstd(train, axis=axes, dtype=np.float64, keepdims=True)
    scale = np.where(spread > 1e-6, spread, 1)
    for x in made:
        np.copyto(x, np.broadcast_to(mean.astype(np.float32), x.shape), where=~np.isfinite(x))
        if normalise:
            x -= mean.astype(np.float32)
            x /= scale.astype(np.float32)
