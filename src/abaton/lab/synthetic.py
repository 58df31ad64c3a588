"""A labelled set of small images drawn from a seed: no files, so that everything in the lab runs anywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.lab.dataset_files import Raw

CLASSES, SIDE, WRITERS = 10, 8, 40


def synthetic(seed: int = 1990, *, train: int = 4000, test: int = 1000) -> Raw:
    """Signs of ten kinds by forty writers, 8x8 grey pixels; each kind is written in one of two ways.

    >>> drawn = synthetic(train=100, test=20)
    >>> drawn.x_train.shape, np.bincount(drawn.y_train).tolist()
    ((100, 8, 8), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    rng = np.random.default_rng([seed, 8])
    signs = _smooth(rng, (CLASSES, 2))
    hands = 0.5 * _smooth(rng, (WRITERS,))
    count = train + test
    kinds = np.arange(count) % CLASSES
    writers = rng.integers(0, WRITERS, count)
    ways = rng.integers(0, 2, count)
    ink = signs[kinds, ways] + hands[writers] + 1.5 * rng.standard_normal((count, SIDE, SIDE))
    pixels = np.clip(128 + 40 * ink, 0, 255).astype(np.uint8)
    order = np.concatenate([rng.permutation(train), train + rng.permutation(test)])
    x, y, who = pixels[order], kinds[order], writers[order]
    return Raw(x[:train], y[:train], x[train:], y[train:], who[:train], tuple("ABCDEFGHIJ"))


def _smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Random patterns without sharp edges, of spread 1: a few slow waves in both directions."""
    place = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(4)[:, None] * place)
    pattern: NDArray[np.float64] = waves.T @ rng.standard_normal((*shape, 4, 4)) @ waves
    pattern /= pattern.std(axis=(-2, -1), keepdims=True)
    return pattern
