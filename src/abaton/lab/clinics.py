"""The smallest federation of the lab: four clinics learn together who is ill, and none shows a patient's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from abaton.control import Privacy, Rules, Synchronous, TrainSettings
from abaton.engines import Profile
from abaton.federation import Dossier, Federation, Holding
from abaton.lab.cohort import FEATURES, cohort, held_out
from abaton.learning import Examples, Model, mlp, train_model
from abaton.learning.metrics import measures
from abaton.vectors import Vector

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
    return {"name": "clinics", "settings": settings if epsilon is None else {**settings, "epsilon": epsilon}}


def federation(*, seed: int, rounds: int, scale: float, epsilon: float | None = None) -> Federation:
    """The four-hospital federation, with a privacy budget for each hospital if epsilon is given."""
    train, test = split(seed, scale)
    model = network()
    pooled = together(test)
    private = None if epsilon is None else Privacy(epsilon, DELTA, NOISE)
    rules = Rules(
        len(train), rounds, pacing=Synchronous(quorum=2), seed=seed, training=TRAINING, privacy=private
    )
    codec = "raw" if private is None else f"clip(norm={CLIP}) | gaussian_noise(std={CLIP * NOISE}) | raw"
    made = recipe(seed=seed, rounds=rounds, scale=scale, epsilon=epsilon)
    dossier = Dossier(
        made["name"],
        made["settings"],
        use={"columns": list(FEATURES), "scale": {}, "classes": ["well", "ill"]},
        observe=lambda vector: quality(model, vector, pooled),
    )
    return Federation(model, holdings(train), rules, codec, dossier=dossier)


def holdings(
    train: Mapping[str, Examples], validation: Mapping[str, Examples] | None = None
) -> dict[str, Holding]:
    """Each hospital's patients on its own machine."""
    held = validation or {}
    return {name: Holding(rows, held.get(name), PROFILES[name]) for name, rows in train.items()}


def network() -> Model:
    """The network that the hospitals train."""
    return mlp(features=len(FEATURES), classes=2, hidden=(16,))


def split(seed: int, scale: float) -> tuple[dict[str, Examples], dict[str, Examples]]:
    """Each hospital's patients for training, and a quarter held out for the test."""
    halves = {name: held_out(data, 0.25, seed) for name, data in cohort(seed, scale).items()}
    return {name: train for name, (train, _) in halves.items()}, {
        name: test for name, (_, test) in halves.items()
    }


def together(sites: Mapping[str, Examples]) -> Examples:
    """All hospitals' examples in one pile, which only a simulation may do."""
    return Examples(
        np.concatenate([s.x for s in sites.values()]), np.concatenate([s.y for s in sites.values()])
    )


def quality(model: Model, vector: Vector, data: Examples) -> dict[str, float]:
    """Loss, accuracy and AUROC of a model on some examples."""
    return measures(model.score(vector, data), data.y)


def comparison(community: Vector, *, seed: int, rounds: int, scale: float) -> list[dict[str, Any]]:
    """How the community model does against each hospital alone and against all data in one pile.

    Every model is trained for the same number of epochs and judged on the held-out patients of all hospitals.
    """
    train, test = split(seed, scale)
    model, judged = network(), together(test)

    def alone(data: Examples) -> Vector:
        settings = TrainSettings(TRAINING.epochs * rounds, TRAINING.batch_size, TRAINING.learning_rate)
        return train_model(model, model.initial(seed), data, settings, np.random.default_rng(seed)).vector

    rows = [
        {"model": f"{name} alone", "examples": len(data), **quality(model, alone(data), judged)}
        for name, data in train.items()
    ]
    pile = together(train)
    rows.append({"model": "community", "examples": len(pile), **quality(model, community, judged)})
    rows.append(
        {"model": "all data in one pile", "examples": len(pile), **quality(model, alone(pile), judged)}
    )
    return rows
