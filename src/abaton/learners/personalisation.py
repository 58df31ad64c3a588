"""A community model made a site's own: recalibrated, trained further, or mixed with what the site's own rows say.

Nothing of it leaves the site. The mixture's weight is the mean of all weights, each counted by how likely it makes the
validation subjects' outcomes: with few of them it stays near the middle, where neither model can do much harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.kernels import Vector
from abaton.models.base import Examples, Model, train_model
from abaton.training import TrainSettings

Floats = NDArray[np.float64]

RECALIBRATE, FINE_TUNE, INTERPOLATE = "recalibrate", "fine-tune", "interpolate"
WAYS = (RECALIBRATE, FINE_TUNE, INTERPOLATE)

_GRID = np.linspace(0.0, 1.0, 21)
_SAFE = 1e-6
_NEWTON_STEPS, _SLOPE_PRIOR = 25, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class OwnModel:
    """What a site makes of a community model.

    Attributes:
        way: How it was made.
        community: The community model.
        tuned: The same, trained further on the site's rows; none if it was only recalibrated.
        weight: How much the tuned one counts, from 0 to 1.
        line: Intercept and slope by which what it says is corrected, on the scale of log odds or of values.
    """

    way: str
    community: Vector
    tuned: Vector | None = None
    weight: float = 0.0
    line: tuple[float, float] = (0.0, 1.0)

    def predict(self, model: Model, x: NDArray[Any], *, classes: bool) -> Floats:
        """Chances of the second of two classes, or values."""
        said = _said(model, self.community, x, classes=classes)
        if self.tuned is not None:
            said = self.weight * _said(model, self.tuned, x, classes=classes) + (1 - self.weight) * said
        said = self.line[0] + self.line[1] * said
        return _chances(said) if classes else said

    def chosen(self) -> dict[str, float]:
        """What was chosen on the site's validation subjects, as plain values."""
        if self.way == INTERPOLATE:
            return {"weight": self.weight}
        return {"intercept": self.line[0], "slope": self.line[1]} if self.way == RECALIBRATE else {}


def make_own(
    way: str,
    model: Model,
    community: Vector,
    rows: Mapping[str, Examples],
    settings: TrainSettings,
    *,
    classes: bool,
    seed: int,
) -> OwnModel:
    """Make a community model a site's own.

    Args:
        way: One of :data:`WAYS`.
        model: What was trained.
        community: The community model.
        rows: The site's rows: `train`, and `validation`, which the community model has not seen.
        settings: How it is trained further.
        classes: Whether one of two classes is foretold, or a value.
        seed: Decides the order of the rows.
    """
    train, held = rows["train"], rows["validation"]
    everything = Examples(np.concatenate([train.x, held.x]), np.concatenate([train.y, held.y]))
    plain = replace(settings, adaptive=None, budget=0.0, steps=0, proximal=0.0)

    def tuned(data: Examples) -> Vector:
        return train_model(model, community, data, plain, np.random.default_rng(seed)).vector

    match way:
        case "recalibrate":
            return OwnModel(
                way,
                community,
                line=_line(_said(model, community, held.x, classes=classes), held.y, classes=classes),
            )
        case "fine-tune":
            return OwnModel(way, community, tuned(everything), 1.0)
        case "interpolate":
            inner, outer = (_said(model, each, held.x, classes=classes) for each in (tuned(train), community))
            return OwnModel(
                way, community, tuned(everything), mixture_weight(inner, outer, held.y, classes=classes)
            )
    raise SettingsError(f"there is no way '{way}'", where="personalise", remedy=f"choose {', '.join(WAYS)}")


def mixture_weight(first: Floats, second: Floats, y: NDArray[Any], *, classes: bool) -> float:
    """How much the first of two models should count, given what both say of subjects that neither has seen.

    >>> ill = np.array([0, 1] * 200)
    >>> good, bad = np.where(ill, 2.0, -2.0), np.zeros(400)
    >>> mixture_weight(good, bad, ill, classes=True) > 0.9, mixture_weight(bad, bad, ill, classes=True)
    (True, 0.5)
    """
    mixed = _GRID[:, None] * first + (1 - _GRID[:, None]) * second
    if classes:
        likely = -np.logaddexp(0.0, np.where(y == 1, -mixed, mixed)).sum(axis=1)
    else:
        wrong = ((mixed - y) ** 2).mean(axis=1)
        likely = -len(y) / 2 * np.log(np.maximum(wrong, 1e-12))
    share = np.exp(likely - likely.max())
    return float((share * _GRID).sum() / share.sum())


def _said(model: Model, vector: Vector, x: NDArray[Any], *, classes: bool) -> Floats:
    """What a model says on the scale on which models are mixed: log odds of the second class, or values."""
    labels = np.zeros(len(x), np.int64 if classes else np.float32)
    told = model.score(vector, Examples(x, labels)).predictions
    if not classes:
        return np.asarray(told, np.float64).reshape(-1)
    chances = np.clip(np.asarray(told[:, 1], np.float64), _SAFE, 1 - _SAFE)
    return np.asarray(np.log(chances / (1 - chances)))


def _line(said: Floats, y: NDArray[Any], *, classes: bool) -> tuple[float, float]:
    """Intercept and slope that fit best, held near 0 and 1 where few subjects say otherwise."""
    if classes:
        return _held_line(said, np.asarray(y, np.float64))
    spread = float(((said - said.mean()) ** 2).sum())
    if len(y) < 3 or not spread:
        return 0.0, 1.0
    slope = float(((said - said.mean()) * (y - np.mean(y))).sum()) / spread
    return float(np.mean(y) - slope * said.mean()), slope


def _held_line(said: Floats, ill: Floats) -> tuple[float, float]:
    """A logistic regression of the outcome on log odds, by Newton's steps, with a normal prior around no change."""
    sides = np.stack([np.ones_like(said), said])
    fit, before, tight = np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.diag([1.0, 1.0 / _SLOPE_PRIOR**2])
    for _ in range(_NEWTON_STEPS):
        chance = _chances(fit @ sides)
        pull = sides @ (ill - chance) - tight @ (fit - before)
        bend = (sides * (chance * (1 - chance))) @ sides.T + tight
        fit = fit + np.clip(np.linalg.solve(bend, pull), -1, 1)
    return float(fit[0]), float(max(fit[1], 0.0))


def _chances(log_odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -30, 30))))
