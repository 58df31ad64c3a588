"""The learners of a study made again on a cluster: from the study's method and the rows that a task may use.

Only numbers travel. The roll, which knows people by the site's own ids, stays where the run was started: consents are
asked there before every task, and a worker is given the rows of those who are in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from abaton.engines import Remake
from abaton.federation.learners import LimitedLearner
from abaton.learning import Examples, Learner, Model
from abaton.study import Learning

MAKER = "abaton.federation.scaling:remade"


def remake(
    learning: Learning, seed: int, shape: tuple[int, int], sites: Mapping[str, tuple[int | None, bytes]]
) -> Remake:
    """How workers make the learners of a study.

    Args:
        learning: The study's method.
        seed: The run's.
        shape: How many columns and classes there are.
        sites: For each site the largest batch that it allows, and the secret that feeds its noise for privacy.
    """
    shared = {"learning": learning.model_dump_json(exclude_none=True), "seed": seed, "shape": shape}
    return Remake(
        MAKER,
        {
            name: {**shared, "name": name, "batch": batch, "secret": secret.hex()}
            for name, (batch, secret) in sites.items()
        },
    )


def remade(about: Mapping[str, Any], train: Examples, validation: Examples | None) -> Learner:
    """A site's learner on a worker; called by name."""
    learning, model = _method(about["learning"], *about["shape"])
    codec, secret = learning.pipeline(), bytes.fromhex(about["secret"])
    return LimitedLearner(
        about["name"], model, train, codec, about["seed"], validation, batch=about["batch"], secret=secret
    )


@lru_cache(maxsize=4)
def _method(text: str, features: int, classes: int) -> tuple[Learning, Model]:
    learning = Learning.model_validate(json.loads(text))
    return learning, learning.model(features=features, classes=classes)
