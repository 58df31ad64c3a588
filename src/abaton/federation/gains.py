"""What each site gains: its own model on its own people against the community model there, found at the site itself.

A site trains its own model on its own rows, asks both models for its own test rows, and tells nine numbers: both
measures and their difference, each with its interval. No row, no score and no model of its own leaves, and nothing is
told where a class of the test rows is smaller than the site's smallest count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from abaton.control import TrainSettings
from abaton.federation.baselines import train_alone
from abaton.federation.judging import Judged, case_classes, measure_names
from abaton.federation.learners import Rows, examples, some
from abaton.federation.members import Member
from abaton.learning import Model
from abaton.learning.metrics import is_timed
from abaton.learning.pairing import Pair, chance_statistic, compare_pair, value_statistic
from abaton.learning.times import compare_times
from abaton.study import Learning
from abaton.vectors import Vector

_MOST_EPOCHS, _MOST_RESAMPLES = 10_000, 10_000


@dataclass(frozen=True, slots=True)
class GainSettings:
    """How long a site trains its own model, and how the interval is drawn.

    Attributes:
        epochs: As many as the busiest learner of the run trained.
        seed: Decides first weights, order of the rows and who is drawn again.
        resamples: How often.
    """

    epochs: int
    seed: int
    resamples: int

    def bounded(self) -> GainSettings:
        """The same, but no more work than a site does for whoever asks."""
        return GainSettings(min(self.epochs, _MOST_EPOCHS), self.seed, min(self.resamples, _MOST_RESAMPLES))


def site_gain(
    member: Member,
    federation: Judged,
    learning: Learning,
    models: tuple[Model, Vector],
    inside: frozenset[str],
    settings: GainSettings,
) -> Pair | None:
    """A site's own model and the community model on the site's own test rows; None of too few people.

    Args:
        member: The site.
        federation: What all sites judge by.
        learning: How the study trains and judges.
        models: What is trained, and the community model's weights.
        inside: Whose rows may be used.
        settings: How long to train, how to draw.
    """
    model, community = models
    mine = np.array([subject in inside for subject in member.test.subjects], dtype=bool)
    test = examples(some(member.test, mine))
    rows = Rows(*(_inside(part, inside) for part in (member.rows.train, member.rows.validation)))
    classes = federation.classes
    timed = is_timed(test.y)
    events = test.y[:, 1].astype(np.int64) if timed else test.y
    least = 2 if timed else len(classes)
    sizes = np.bincount(events, minlength=least) if classes or timed else np.array([len(test.y)])
    if sizes.min() < member.floor or len(rows.train.subjects) < member.floor:
        return None
    training = _within(learning.rules(2).training, member)
    own = train_alone(model, rows, training, settings.epochs, settings.seed)
    name, level = measure_names(learning)[0], learning.evaluation.confidence
    asked = tuple(model.score(vector, test).predictions for vector in (own, community))
    if timed:
        return compare_times(asked, test.y, level=level)
    if classes:
        cases = case_classes(classes)
        at = learning.evaluation.specificity
        first, second = (chance_statistic(p, test.y, cases, name, specificity=at) for p in asked)
    else:
        mean, deviation = federation.label
        actual = np.asarray(test.y, np.float64) * deviation + mean
        values = (p.reshape(-1).astype(np.float64) * deviation + mean for p in asked)
        first, second = (value_statistic(each, actual, name) for each in values)
    strata = test.y if classes else np.zeros(len(test.y), np.int64)
    return compare_pair(first, second, strata, level=level, resamples=settings.resamples, seed=settings.seed)


def _inside(table: Any, inside: frozenset[str]) -> Any:
    return some(table, np.array([subject in inside for subject in table.subjects], dtype=bool))


def _within(training: TrainSettings, member: Member) -> TrainSettings:
    """The study's settings, with batches no larger than the site allows."""
    most = member.file.document.limits.batch
    return training if most is None else replace(training, batch_size=min(training.batch_size, most))


def gains_row(learning: Learning, gains: Mapping[str, Sequence[Sequence[float]] | None]) -> dict[str, Any]:
    """What sites gain as it is kept with a run: by which measure, and for each site the two models and the difference.

    Args:
        learning: How the study judges.
        gains: For each site :meth:`Pair.row`, or None where too few people were tested.
    """
    names = ("own", "community", "difference")
    sites: dict[str, Any] = {}
    for site, told in gains.items():
        sites[site] = None if told is None else dict(zip(names, map(_plain, told), strict=True))
    return {"measure": measure_names(learning)[0], "sites": sites}


def _plain(numbers: Sequence[float]) -> dict[str, float | None]:
    keys = ("value", "low", "high")
    return {key: value if math.isfinite(value) else None for key, value in zip(keys, numbers, strict=True)}
