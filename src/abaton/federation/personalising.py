"""What each site could make of the community model, judged on its own test subjects beside the model of its own rows.

The models are made where the rows are and stay there: measures, a paired difference and what was chosen are told, and
nothing of fewer cases or controls than the site's smallest count. A site says no with `limits.personalise`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.control import TrainSettings
from abaton.errors import SettingsError
from abaton.federation.judging import Judged, counted, judged
from abaton.federation.learners import examples, some
from abaton.federation.members import Member
from abaton.federation.run import COMMUNITY
from abaton.files import replacing
from abaton.learning import Examples, Model, train_model
from abaton.learning.clinical import Estimate
from abaton.learning.owning import OwnModel, make_own
from abaton.learning.paired import auroc_difference, error_difference
from abaton.records.features import Scaled
from abaton.store import digest_of, writing
from abaton.study import Learning
from abaton.vectors import Vector

OWN = "own"
"""What the model of a site's own rows alone is called beside what it makes of the community model."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SiteOwn:
    """What a site made: what it tells, and the models that stay with it.

    Attributes:
        lines: One for each model, as plain values; none if the site does not say.
        models: By their way.
        why: Why there is nothing.
    """

    lines: Sequence[Mapping[str, Any]] = ()
    models: Mapping[str, OwnModel] | None = None
    why: str = ""


def site_own(
    member: Member,
    learning: Learning,
    federation: Judged,
    model: Model,
    community: Vector,
    inside: frozenset[str],
    settings: TrainSettings,
    *,
    seed: int,
    resamples: int = 1000,
) -> SiteOwn:
    """Make the community model a site's own in every way that the study names, and judge it.

    Args:
        member: The site.
        learning: The study's.
        federation: What all sites judge by.
        model: What was trained.
        community: The community model.
        inside: Whose rows may be used.
        settings: How a model is trained on the site's rows, for as many epochs as the busiest site has trained.
        seed: Decides the order of the rows, and who is drawn again.
        resamples: How often, for the intervals.
    """
    limits = member.file.document.limits
    if not limits.personalise:
        return SiteOwn(why="the site makes no model of its own")
    train, held, test = (
        _of(part, inside) for part in (member.rows.train, member.rows.validation, member.test)
    )
    if len(train) < member.floor or not len(held) or len(test) < member.floor:
        return SiteOwn(why=f"fewer than {member.floor} subjects to train or to test with")
    classes = bool(federation.classes)
    plain = replace(settings, batch_size=min(settings.batch_size, limits.batch or settings.batch_size))
    rows = {"train": train, "validation": held}
    made: dict[str, OwnModel] = {
        way: make_own(way, model, community, rows, plain, classes=classes, seed=seed)
        for way in learning.personalise
    }
    whole = OwnModel(COMMUNITY, community)
    alone = OwnModel(OWN, _alone(model, rows, plain, seed))
    said = {
        name: each.predict(model, test.x, classes=classes)
        for name, each in {OWN: alone, COMMUNITY: whole, **made}.items()
    }
    few = classes and min(int((test.y == i).sum()) for i in (0, 1)) < member.floor
    drawn = (seed, resamples)
    lines = [
        {
            "site": member.name,
            "model": name,
            "chosen": made[name].chosen() if name in made else {},
            **_measured(learning, federation, member.floor, predicted, test, drawn),
            "gain": None if few else _gain(predicted, said[OWN], test, federation, learning),
            "over_community": None if few else _gain(predicted, said[COMMUNITY], test, federation, learning),
        }
        for name, predicted in said.items()
    ]
    return SiteOwn(lines, made)


def _alone(model: Model, rows: Mapping[str, Examples], settings: TrainSettings, seed: int) -> Vector:
    """The model of the site's own rows, those for validation included: it is not made weaker than it is."""
    both = [rows["train"], rows["validation"]]
    data = Examples(np.concatenate([each.x for each in both]), np.concatenate([each.y for each in both]))
    plain = replace(settings, adaptive=None, budget=0.0, steps=0, proximal=0.0)
    return train_model(model, model.initial(seed), data, plain, np.random.default_rng(seed)).vector


def _measured(
    learning: Learning, federation: Judged, floor: int, said: Floats, test: Examples, drawn: tuple[int, int]
) -> dict[str, Any]:
    """The study's measures of a model at one site, and of how many subjects; nothing of small numbers."""
    predicted = np.stack([1 - said, said], axis=1) if federation.classes else said
    told = counted(predicted, test.y, federation, 1)  # they stay at the site
    ((_, measures, number),) = judged(learning, federation.classes, [told], floor, drawn)
    return {"measures": measures, "subjects": number}


def _gain(
    said: Floats, other: Floats, test: Examples, federation: Judged, learning: Learning
) -> dict[str, Any] | None:
    """How much better one model is than another on the same subjects, with its interval."""
    level = learning.evaluation.confidence
    if federation.classes:
        found = auroc_difference(said, other, test.y == 1, level=level)
        return _plain("auroc", found)
    deviation = federation.label[1]
    found = error_difference(said * deviation, other * deviation, test.y * deviation, level=level)
    return _plain("mae", found)


def _plain(measure: str, found: Estimate) -> dict[str, Any] | None:
    values = asdict(found)
    return {"measure": measure, **values} if all(map(math.isfinite, values.values())) else None


def _of(table: Scaled, inside: frozenset[str]) -> Examples:
    return examples(some(table, np.array([subject in inside for subject in table.subjects], dtype=bool)))


def personal_told(sites: Mapping[str, SiteOwn]) -> dict[str, Any]:
    """What all sites told, as plain values."""
    return {
        "lines": [dict(line) for each in sites.values() for line in each.lines],
        "left_out": {name: each.why for name, each in sites.items() if each.why},
    }


def own_path(states: Path, site: str) -> Path:
    """Where a site keeps what it made of a run's community model."""
    return states / f"{digest_of(site.encode())[:32]}.own.safetensors"


def keep_own(path: Path, models: Mapping[str, OwnModel]) -> None:
    """Keep a site's own models in a file of the site: what was trained further, and what was chosen."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    about = {}
    for way, each in models.items():
        if each.tuned is not None:
            arrays[way] = np.ascontiguousarray(each.tuned)
        about[way] = {"weight": each.weight, "line": list(each.line)}
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(save(arrays, metadata={"models": json.dumps(about)}))


def kept_own(path: Path, way: str, community: Vector) -> OwnModel:
    """What a site made of a community model.

    Raises:
        SettingsError: There is no such model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = json.loads(file.metadata()["models"])[way]
            tuned = file.get_tensor(way) if way in file.keys() else None  # noqa: SIM118
        intercept, slope = about["line"]
        return OwnModel(way, community, tuned, float(about["weight"]), (float(intercept), float(slope)))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"there is no model of the site's own, made by '{way}'",
            where=str(path),
            remedy=f'write personalise = ["{way}"] under [learning] and run the study',
        ) from error
