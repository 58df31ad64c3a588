"""The common job of all peers: data, initial model and settings, from NumPy only so that every peer can create them."""

from __future__ import annotations

import numpy as np

LEARNERS, PARTICIPANTS, EXAMPLES, FEATURES, HIDDEN, CLASSES = 100, 10, 180, 64, 32, 10
BATCH, RATE, SEED = 32, 0.05, 0


def sites() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs and labels of each learner: ten clusters of points, as large as the digits data."""
    rng = np.random.default_rng(SEED)
    centres = 0.5 * rng.normal(size=(CLASSES, FEATURES))
    tables = []
    for _ in range(LEARNERS + 10):  # the last ten are held out
        y = rng.integers(0, CLASSES, EXAMPLES)
        tables.append(((centres[y] + rng.normal(size=(EXAMPLES, FEATURES))).astype(np.float32), y))
    return tables


def initial() -> list[np.ndarray]:
    """Return weights and biases of the initial model, layer by layer."""
    rng = np.random.default_rng(SEED + 1)
    arrays = []
    for inputs, outputs in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)):
        bound = inputs**-0.5
        arrays.append(rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32))
        arrays.append(rng.uniform(-bound, bound, outputs).astype(np.float32))
    return arrays


def sample_rounds(rounds: int) -> list[list[int]]:
    """Return the learners of each round, for frameworks that accept them."""
    rng = np.random.default_rng(SEED + 2)
    return [rng.choice(LEARNERS, PARTICIPANTS, replace=False).tolist() for _ in range(rounds)]


def accuracy(arrays: list[np.ndarray]) -> float:
    """Return the accuracy on the held-out examples."""
    held_out = sites()[LEARNERS:]
    x, y = (np.concatenate([site[part] for site in held_out]) for part in (0, 1))
    w1, b1, w2, b2 = arrays
    return float(((np.maximum(x @ w1.T + b1, 0) @ w2.T + b2).argmax(1) == y).mean())
