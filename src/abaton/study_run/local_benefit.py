"""What each site gains: its own model on its own people against the community model there, found at the site itself.

A site trains a model on its own rows alone, makes the community model its own in the ways that the study names, and
asks all of them for its own test rows. It tells measures and paired differences with their intervals. No row, no score
and no model of its own leaves, and nothing is told where a class of the test rows is smaller than its smallest count.

The models that a site makes of a community model, in a file of the site: they stay there.

How they are made and compared is in :mod:`abaton.study_run.local_benefit`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import replacing, writing
from abaton.errors import SettingsError
from abaton.features import Scaled
from abaton.federation.run import COMMUNITY
from abaton.kernels import Vector
from abaton.learners import Examples, Model
from abaton.learners.personalisation import OwnModel, make_own
from abaton.metrics.classification import Estimate
from abaton.metrics.paired_bootstrap import (
    Compared,
    Statistic,
    chance_statistic,
    compare_models,
    value_statistic,
)
from abaton.metrics.predictions import is_timed
from abaton.metrics.survival import ComparedTimes, compare_times
from abaton.store import digest_of
from abaton.study import Learning
from abaton.study_run.consented_learner import Rows, examples, some
from abaton.study_run.evaluation import Judged, case_classes, measure_names, train_alone
from abaton.study_run.preparation import Member
from abaton.training import TrainSettings

OWN = "own"
"""What the model of a site's own rows alone is called beside what it makes of the community model."""

_MOST_EPOCHS, _MOST_RESAMPLES = 10_000, 10_000
_ERRORS = ("rmse", "mae", "brier")  # measures of which less is better
_UNWILLING = "the site makes no model of its own"


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


@dataclass(frozen=True, slots=True)
class Standing:
    """One model at a site, by the study's first measure.

    Attributes:
        value: Its measure.
        over_own: The same less that of the model of the site's own rows alone.
        over_community: The same less that of the community model.
        chosen: What was chosen for it on the site's validation subjects.
    """

    value: Estimate
    over_own: Estimate
    over_community: Estimate
    chosen: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """As plain values: a number that cannot be told is nothing."""
        parts = {
            name: list(_plain(getattr(self, name)).values())
            for name in ("value", "over_own", "over_community")
        }
        return {**parts, "chosen": dict(self.chosen)}


@dataclass(frozen=True, slots=True)
class SiteGain:
    """What a site found when it held the community model against its own.

    Attributes:
        told: Every model that was compared, the site's own and the community model first; nothing of too few people.
        why: Why the site tells nothing, or makes nothing of the community model.
        models: What the site made of the community model, by the way; it stays there.
    """

    told: Mapping[str, Standing] | None = None
    why: str = ""
    models: Mapping[str, OwnModel] = field(default_factory=dict)


def site_gain(
    member: Member,
    federation: Judged,
    learning: Learning,
    models: tuple[Model, Vector],
    inside: frozenset[str],
    settings: GainSettings,
) -> SiteGain:
    """A site's own model, the community model and what the site makes of it, on the site's own test rows.

    Args:
        member: The site.
        federation: What all sites judge by.
        learning: How the study trains and judges, and how the community model is made a site's own.
        models: What is trained, and the community model's weights.
        inside: Whose rows may be used.
        settings: How long to train, how to draw.
    """
    model, community = models
    rows = Rows(*(_inside(part, inside) for part in (member.rows.train, member.rows.validation)))
    test, classes = examples(_inside(member.test, inside)), federation.classes
    timed = is_timed(test.y)
    events = test.y[:, 1].astype(np.int64) if timed else test.y
    least = 2 if timed else len(classes)
    sizes = np.bincount(events, minlength=least) if classes or timed else np.array([len(test.y)])
    few = f"fewer than {member.floor} subjects to train or to test with"
    if len(rows.train.subjects) < member.floor:
        return SiteGain(why=few)
    training = _within(learning.rules(2).training, member)
    made, why = _made_own(
        member, learning, models, rows, replace(training, epochs=settings.epochs), federation, settings
    )
    if sizes.min() < member.floor:
        return SiteGain(why=few, models=made)
    own = train_alone(model, rows, training, settings.epochs, settings.seed)
    said = {
        name: model.score(vector, test).predictions for name, vector in ((OWN, own), (COMMUNITY, community))
    }
    for way, each in made.items():
        chances = each.predict(model, test.x, classes=bool(classes))
        said[way] = np.stack([1 - chances, chances], axis=1) if classes else chances
    found = _compared(said, test, federation, learning, settings)
    chosen = {way: each.chosen() for way, each in made.items()}
    told = {
        name: Standing(
            found.of(name),
            found.difference(name, OWN),
            found.difference(name, COMMUNITY),
            chosen.get(name, {}),
        )
        for name in said
    }
    return SiteGain(told, why, made)


def _made_own(
    member: Member,
    learning: Learning,
    models: tuple[Model, Vector],
    rows: Rows,
    training: TrainSettings,
    federation: Judged,
    settings: GainSettings,
) -> tuple[dict[str, OwnModel], str]:
    """What the site makes of the community model in each way that the study names, or why it makes nothing."""
    if not learning.personalise:
        return {}, ""
    if not member.file.document.limits.personalise:
        return {}, _UNWILLING
    if not len(rows.validation.subjects):
        return {}, "there is nobody to choose by"
    parts = {"train": examples(rows.train), "validation": examples(rows.validation)}
    classes = bool(federation.classes)
    return {
        way: make_own(way, *models, parts, training, classes=classes, seed=settings.seed)
        for way in learning.personalise
    }, ""


def _compared(
    said: Mapping[str, NDArray[Any]],
    test: Examples,
    federation: Judged,
    learning: Learning,
    settings: GainSettings,
) -> Compared | ComparedTimes:
    """What some models say of the same subjects, compared by the study's first measure."""
    name, classes, level = measure_names(learning)[0], federation.classes, learning.evaluation.confidence
    if is_timed(test.y):
        return compare_times(said, test.y, level=level)
    statistics: dict[str, Statistic]
    if classes:
        cases, at = case_classes(classes), learning.evaluation.specificity
        statistics = {
            each: chance_statistic(chances, test.y, cases, name, specificity=at)
            for each, chances in said.items()
        }
    else:
        mean, deviation = federation.label
        actual = np.asarray(test.y, np.float64) * deviation + mean
        statistics = {
            each: value_statistic(values.reshape(-1).astype(np.float64) * deviation + mean, actual, name)
            for each, values in said.items()
        }
    strata = test.y if classes else np.zeros(len(test.y), np.int64)
    return compare_models(statistics, strata, level=level, resamples=settings.resamples, seed=settings.seed)


def _inside(table: Scaled, inside: frozenset[str]) -> Scaled:
    return some(table, np.array([subject in inside for subject in table.subjects], dtype=bool))


def _within(training: TrainSettings, member: Member) -> TrainSettings:
    """The study's settings, with batches no larger than the site allows."""
    most = member.file.document.limits.batch
    return training if most is None else replace(training, batch_size=min(training.batch_size, most))


def with_gains(
    learning: Learning, evaluation: Mapping[str, Any], found: Mapping[str, SiteGain]
) -> dict[str, Any]:
    """What is kept with a run: how models were judged, what each site gains, and what it makes of the model if asked.

    Args:
        learning: How the study judges.
        evaluation: How models were judged over all sites.
        found: What each site found.
    """
    told = {"evaluation": {**evaluation, "gains": gains_row(learning, found)}}
    if not learning.personalise:
        return told
    people = {
        line["subset"]: line["subjects"]
        for line in evaluation["lines"]
        if line["of"] == "site" and line["model"] == COMMUNITY
    }
    return {**told, "personal": personal_row(learning, found, people)}


def gains_row(learning: Learning, gains: Mapping[str, SiteGain]) -> dict[str, Any]:
    """What sites gain as it is kept with a run: by which measure, and for each site the two models and the difference.

    Args:
        learning: How the study judges.
        gains: What each site found.
    """
    sites: dict[str, Any] = {}
    for site, found in gains.items():
        sites[site] = None
        if found.told is not None:
            community = found.told[COMMUNITY]
            pair = {OWN: found.told[OWN].value, COMMUNITY: community.value, "difference": community.over_own}
            sites[site] = {name: _plain(estimate) for name, estimate in pair.items()}
    return {"measure": measure_names(learning)[0], "sites": sites}


def personal_row(
    learning: Learning, gains: Mapping[str, SiteGain], people: Mapping[str, Any]
) -> dict[str, Any]:
    """What sites make of the community model as it is kept with a run: a line for each site and model.

    Here a gain is how much better a model is, so that of errors it is how much smaller they are.

    Args:
        learning: How the study judges.
        gains: What each site found.
        people: Of how many test subjects each site tells.
    """
    measure = measure_names(learning)[0]

    def better(estimate: Estimate) -> dict[str, Any]:
        turned = Estimate(-estimate.value, -estimate.high, -estimate.low)
        return {"measure": measure, **_plain(turned if measure in _ERRORS else estimate)}

    lines = [
        {
            "site": site,
            "model": model,
            "chosen": dict(each.chosen),
            "measures": {measure: _plain(each.value)},
            "subjects": people.get(site, "–"),
            "gain": better(each.over_own),
            "over_community": better(each.over_community),
        }
        for site, found in gains.items()
        if not found.why and found.told is not None
        for model, each in found.told.items()
    ]
    return {"lines": lines, "left_out": {site: found.why for site, found in gains.items() if found.why}}


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(estimate).items()}


def own_path(folder: Path, name: str) -> Path:
    """Where a site keeps what it made of a community model: by its name in a run's folder, by the run's in its own."""
    return folder / f"{digest_of(name.encode())[:32]}.own.safetensors"


def keep_own(path: Path, models: Mapping[str, OwnModel]) -> None:
    """Keep a site's own models of one community model in a file of the site: both weights, and what was chosen."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    about = {}
    for way, each in models.items():
        arrays[COMMUNITY] = np.ascontiguousarray(each.community)
        if each.tuned is not None:
            arrays[way] = np.ascontiguousarray(each.tuned)
        about[way] = {"weight": each.weight, "line": list(each.line)}
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(save(arrays, metadata={"models": json.dumps(about)}))


def kept_own(path: Path, way: str) -> OwnModel:
    """What a site made of a community model.

    Raises:
        SettingsError: There is no such model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = json.loads(file.metadata()["models"])[way]
            community = file.get_tensor(COMMUNITY)
            tuned = file.get_tensor(way) if way in file.keys() else None  # noqa: SIM118
        intercept, slope = about["line"]
        return OwnModel(way, community, tuned, float(about["weight"]), (float(intercept), float(slope)))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"there is no model of the site's own, made by '{way}'",
            where=str(path),
            remedy=f'write personalise = ["{way}"] under [learning] and run the study',
        ) from error
