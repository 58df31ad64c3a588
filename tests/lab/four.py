"""The smallest federation that tests run again and again: the four invented hospitals as tables, with a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from abaton.controller import Privacy, Rules, Synchronous, TrainSettings
from abaton.engines import Profile
from abaton.federation import Dossier, Federation, Holding
from abaton.kernels import Vector
from abaton.lab import federation_builder
from abaton.lab.synthetic_hospitals.patients import CLASSES, FEATURES, tables
from abaton.learners import Examples, Model, mlp
from abaton.metrics.predictions import measures

federation_builder.RECIPES = {**federation_builder.RECIPES, "four": "tests.lab.four:federation"}

TRAINING = TrainSettings(epochs=2, batch_size=32, learning_rate=0.1)

# The largest hospital has the slowest machines; the smallest is often out of reach.
PROFILES = {
    "athens": Profile(speed=20, bandwidth=1e6, latency=0.03),
    "kos": Profile(speed=200, bandwidth=2e5, latency=0.30, dropout=0.2),
    "pergamon": Profile(speed=100, bandwidth=1e6, latency=0.05),
    "trikala": Profile(speed=60, bandwidth=5e5, latency=0.10, dropout=0.05),
}

# With a privacy budget: updates are clipped to about their usual length, and get this much noise.
CLIP, NOISE, DELTA = 1.0, 10.0, 1e-5


def recipe(*, seed: int, rounds: int, scale: float, epsilon: float | None = None) -> dict[str, Any]:
    """What the store keeps so that the federation can be built again."""
    settings = {"seed": seed, "rounds": rounds, "scale": scale}
    return {"name": "four", "settings": settings if epsilon is None else {**settings, "epsilon": epsilon}}


def federation(*, seed: int, rounds: int, scale: float, epsilon: float | None = None) -> Federation:
    """The four hospitals, with a privacy budget for each if epsilon is given."""
    train, test = split(seed, scale)
    model = network()
    pooled = Examples(*(np.concatenate([getattr(s, part) for s in test.values()]) for part in ("x", "y")))
    private = None if epsilon is None else Privacy(epsilon, DELTA, NOISE)
    rules = Rules(
        len(train), rounds, pacing=Synchronous(quorum=2), seed=seed, training=TRAINING, privacy=private
    )
    codec = "raw" if private is None else f"clip(norm={CLIP}) | gaussian_noise(std={CLIP * NOISE}) | raw"
    made = recipe(seed=seed, rounds=rounds, scale=scale, epsilon=epsilon)
    dossier = Dossier(
        made["name"],
        made["settings"],
        use={"columns": list(FEATURES), "scale": {}, "classes": list(CLASSES)},
        observe=lambda vector: quality(model, vector, pooled),
    )
    return Federation(model, holdings(train), rules, codec, dossier=dossier)


def holdings(
    train: Mapping[str, Examples], validation: Mapping[str, Examples] | None = None
) -> dict[str, Holding]:
    """Each hospital's people on its own machine."""
    held = validation or {}
    return {name: Holding(rows, held.get(name), PROFILES[name]) for name, rows in train.items()}


def network() -> Model:
    """The network that the hospitals train."""
    return mlp(features=len(FEATURES), classes=2, hidden=(16,))


@cache
def split(seed: int, scale: float) -> tuple[Mapping[str, Examples], Mapping[str, Examples]]:
    """Each hospital's people for training, and a quarter held out for the test, the same of each class.

    Dealt once: the same federation is built again and again, and nobody changes its rows.
    """
    train, test = {}, {}
    for name, data in tables(seed, scale).items():
        rng, held = np.random.default_rng(seed), np.zeros(len(data), dtype=bool)
        for label in np.unique(data.y):
            rows = np.flatnonzero(data.y == label)
            held[rng.permutation(rows)[: round(0.25 * len(rows))]] = True
        train[name], test[name] = Examples(data.x[~held], data.y[~held]), Examples(data.x[held], data.y[held])
    return train, test


def quality(model: Model, vector: Vector, data: Examples) -> dict[str, float]:
    """Loss, accuracy and AUROC of a model on some examples."""
    return measures(model.score(vector, data), data.y)
