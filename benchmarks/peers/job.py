"""The common job of all peers: data, first model and settings, from NumPy alone so that every peer can make them."""

from __future__ import annotations

import numpy as np

LEARNERS, PARTICIPANTS, EXAMPLES, FEATURES, HIDDEN, CLASSES = 100, 10, 180, 64, 32, 10
BATCH, RATE, SEED = 32, 0.05, 0


def sites() -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of each learner: ten clouds of points, as large as the digits data."""
    rng = np.random.default_rng(SEED)
    centres = 0.5 * rng.normal(size=(CLASSES, FEATURES))
    made = []
    for _ in range(LEARNERS + 10):  # the last ten are held out
        y = rng.integers(0, CLASSES, EXAMPLES)
        made.append(((centres[y] + rng.normal(size=(EXAMPLES, FEATURES))).astype(np.float32), y))
    return made


def initial() -> list[np.ndarray]:
    """Weights and biases of the first model, layer by layer."""
    rng = np.random.default_rng(SEED + 1)
    arrays = []
    for inputs, outputs in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)):
        bound = inputs**-0.5
        arrays.append(rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32))
        arrays.append(rng.uniform(-bound, bound, outputs).astype(np.float32))
    return arrays


def chosen(rounds: int) -> list[list[int]]:
    """Who takes part in each round, for those who can be told."""
    rng = np.random.default_rng(SEED + 2)
    return [rng.choice(LEARNERS, PARTICIPANTS, replace=False).tolist() for _ in range(rounds)]


def accuracy(arrays: list[np.ndarray]) -> float:
    """How many of the held-out examples a model gets right."""
    held_out = sites()[LEARNERS:]
    x, y = (np.concatenate([site[part] for site in held_out]) for part in (0, 1))
    w1, b1, w2, b2 = arrays
    return float(((np.maximum(x @ w1.T + b1, 0) @ w2.T + b2).argmax(1) == y).mean())
