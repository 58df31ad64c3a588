"""What the community model is held against: each site alone, and all rows pooled in one place.

Pooling is for the lab alone: it needs the rows of all sites on one machine, which a federation is there
to avoid. Both kinds train on the validation rows, too, which the federation sets aside: they are not made weaker than
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from abaton.controller import TrainSettings
from abaton.study_run.consented_learner import Rows, examples
from abaton.study_run.preparation import Members
from abaton.learners import Examples, Model, train_model
from abaton.kernels import Vector

POOLED = "all data pooled"


def alone(name: str) -> str:
    """What the model of one site is called."""
    return f"{name} alone"


def baselines(
    members: Members, model: Model, settings: TrainSettings, epochs: int, seed: int
) -> dict[str, Vector]:
    """The models of every site alone and of all rows pooled, trained for so many epochs with the study's settings."""
    made = {
        alone(member.name): train_alone(model, member.rows, settings, epochs, seed) for member in members.each
    }
    pooled = _pool_examples([member.rows for member in members.each])
    return {**made, POOLED: _trained(model, pooled, settings, epochs, seed)}


def train_alone(model: Model, rows: Rows, settings: TrainSettings, epochs: int, seed: int) -> Vector:
    """The model of one site's own rows, which needs nobody else's: a site can train it for itself."""
    return _trained(model, _pool_examples([rows]), settings, epochs, seed)


def _trained(model: Model, data: Examples, settings: TrainSettings, epochs: int, seed: int) -> Vector:
    plain = replace(settings, epochs=epochs, adaptive=None, budget=0.0, steps=0, proximal=0.0)
    return train_model(model, model.initial(seed), data, plain, np.random.default_rng(seed)).vector


def _pool_examples(parts: Sequence[Rows]) -> Examples:
    listed = [examples(part) for rows in parts for part in (rows.train, rows.validation)]
    return Examples(np.concatenate([each.x for each in listed]), np.concatenate([each.y for each in listed]))
