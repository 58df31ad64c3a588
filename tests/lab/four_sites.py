"""The smallest federation that tests run again and again: the four invented hospitals as tables, with a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from abaton.controller import DifferentialPrivacy, Strategy, SynchronousScheduler, TrainSettings
from abaton.engines import MachineProfile
from abaton.federation import Federation, LocalSite, RunMetadata
from abaton.lab import federation_builder
from abaton.lab.synthetic_hospitals.patients import CLASSES, FEATURES, tables
from abaton.layout import Vector
from abaton.metrics.predictions import score_metrics
from abaton.models import Examples, Model, mlp

federation_builder.RECIPES = {**federation_builder.RECIPES, "four": "tests.lab.four_sites:federation"}

TRAINING = TrainSettings(epochs=2, batch_size=32, learning_rate=0.1)

# The largest hospital has the slowest machines; the smallest is often out of reach.
PROFILES = {
    "athens": MachineProfile(speed=20, bandwidth=1e6, latency=0.03),
    "kos": MachineProfile(speed=200, bandwidth=2e5, latency=0.30, dropout_probability=0.2),
    "pergamon": MachineProfile(speed=100, bandwidth=1e6, latency=0.05),
    "trikala": MachineProfile(speed=60, bandwidth=5e5, latency=0.10, dropout_probability=0.05),
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
    private = None if epsilon is None else DifferentialPrivacy(epsilon, DELTA, NOISE)
    rules = Strategy(
        len(train),
        rounds,
        scheduler=SynchronousScheduler(quorum=2),
        seed=seed,
        training=TRAINING,
        privacy=private,
    )
    codec = "raw" if private is None else f"clip(norm={CLIP}) | gaussian_noise(std={CLIP * NOISE}) | raw"
    recipe_values = recipe(seed=seed, rounds=rounds, scale=scale, epsilon=epsilon)
    metadata = RunMetadata(
        recipe_values["name"],
        recipe_values["settings"],
        deployment={"columns": list(FEATURES), "scale": {}, "classes": list(CLASSES)},
        observe=lambda vector: quality(model, vector, pooled),
    )
    return Federation(model, local_sites(train), rules, codec, metadata=metadata)


def local_sites(
    train: Mapping[str, Examples], validation: Mapping[str, Examples] | None = None
) -> dict[str, LocalSite]:
    """Each hospital's people on its own machine."""
    validation_sets = validation or {}
    return {name: LocalSite(rows, validation_sets.get(name), PROFILES[name]) for name, rows in train.items()}


def network() -> Model:
    """The network that the hospitals train."""
    return mlp(features=len(FEATURES), classes=2, hidden=(16,))


@cache
def split(seed: int, scale: float) -> tuple[Mapping[str, Examples], Mapping[str, Examples]]:
    """Return each hospital's training examples and a stratified quarter of them as test examples.

    Cached, since the same federation is built many times and its rows do not change.
    """
    train, test = {}, {}
    for name, data in tables(seed, scale).items():
        rng, is_test = np.random.default_rng(seed), np.zeros(len(data), dtype=bool)
        for label in np.unique(data.y):
            rows = np.flatnonzero(data.y == label)
            is_test[rng.permutation(rows)[: round(0.25 * len(rows))]] = True
        train[name], test[name] = (
            Examples(data.x[~is_test], data.y[~is_test]),
            Examples(data.x[is_test], data.y[is_test]),
        )
    return train, test


def quality(model: Model, vector: Vector, data: Examples) -> dict[str, float]:
    """Loss, accuracy and AUROC of a model on some examples."""
    return score_metrics(model.score(vector, data), data.y)
