"""Personal models of a site: the community model recalibrated, fine-tuned, or interpolated with a fine-tuned model.

Personal models do not leave the site. The interpolation weight is the mean over all weights by validation likelihood,
because the best of several weights is unstable with few validation subjects; it is then close to 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.layout import Vector
from abaton.metrics.logistic_fit import fit_line, log_odds, sigmoid
from abaton.models.base import Examples, Model, concatenate_examples, train_model
from abaton.training import TrainSettings

Floats = NDArray[np.float64]

RECALIBRATE, FINE_TUNE, INTERPOLATE = "recalibrate", "fine-tune", "interpolate"
METHODS = (RECALIBRATE, FINE_TUNE, INTERPOLATE)

_GRID = np.linspace(0.0, 1.0, 21)
_PRIOR_PRECISION = 1.0, 4.0  # of intercept and slope: standard deviations of 1 and 0.5
_NO_CHANGE = 0.0, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """Community model adapted by a site.

    Attributes:
        method: Method of personalisation.
        community: The community model.
        fine_tuned: The community model fine-tuned on the site's rows; None if it was only recalibrated.
        weight: Weight of the fine-tuned model, from 0 to 1.
        calibration: Intercept and slope of the recalibration as fitted, on the scale of log odds or of values; NaN
            if they are not estimable. A slope of 0 or below would reverse the order of predictions: it is reported
            but not applied.
    """

    method: str
    community: Vector
    fine_tuned: Vector | None = None
    weight: float = 0.0
    calibration: tuple[float, float] = _NO_CHANGE

    @property
    def applied_calibration(self) -> tuple[float, float]:
        """Intercept and slope that the personal model applies: 0 and 1 unless the fitted slope is above 0."""
        return self.calibration if self.calibration[1] > 0 else _NO_CHANGE

    def predict(self, model: Model, x: NDArray[Any], *, is_classification: bool) -> Floats:
        """Predict with a site's personal model: probabilities of the second of two classes, or values."""
        predictor = _linear_predictor(model, self.community, x, is_classification=is_classification)
        if self.fine_tuned is not None:
            predictor = (
                self.weight
                * _linear_predictor(model, self.fine_tuned, x, is_classification=is_classification)
                + (1 - self.weight) * predictor
            )
        intercept, slope = self.applied_calibration
        predictor = intercept + slope * predictor
        return sigmoid(predictor) if is_classification else predictor

    def selected(self) -> dict[str, float]:
        """Return the personalisation parameters that were selected on the site's validation subjects.

        None for a recalibration that is not estimable.
        """
        if self.method == INTERPOLATE:
            return {"weight": self.weight}
        if self.method != RECALIBRATE or not np.isfinite(self.calibration).all():
            return {}
        return {"intercept": self.calibration[0], "slope": self.calibration[1]}


def personalise_model(
    method: str,
    model: Model,
    community: Vector,
    rows: Mapping[str, Examples],
    settings: TrainSettings,
    *,
    is_classification: bool,
    seed: int,
) -> PersonalModel:
    """Return a personal model of a site by a personalisation method.

    Args:
        method: One of :data:`METHODS`.
        model: The model.
        community: The community model.
        rows: The site's rows: `train`, and `validation`, on which the community model was not trained.
        settings: Settings of fine-tuning.
        is_classification: Whether the outcome is one of two classes; a value otherwise.
        seed: Seed of the order of rows.
    """
    train, validation = rows["train"], rows["validation"]
    all_rows = concatenate_examples([train, validation])
    fine_tuning = replace(settings, update_thresholds=None, time_budget_seconds=0.0, steps=0, proximal_mu=0.0)

    def fine_tune(data: Examples) -> Vector:
        return train_model(model, community, data, fine_tuning, np.random.default_rng(seed)).vector

    match method:
        case "recalibrate":
            return PersonalModel(
                method,
                community,
                calibration=_fit_calibration(
                    _linear_predictor(model, community, validation.x, is_classification=is_classification),
                    validation.y,
                    validation.weights,
                    is_classification=is_classification,
                ),
            )
        case "fine-tune":
            return PersonalModel(method, community, fine_tune(all_rows), 1.0)
        case "interpolate":
            local_predictor, community_predictor = (
                _linear_predictor(model, vector, validation.x, is_classification=is_classification)
                for vector in (fine_tune(train), community)
            )
            return PersonalModel(
                method,
                community,
                fine_tune(all_rows),
                interpolation_weight(
                    local_predictor,
                    community_predictor,
                    validation.y,
                    validation.relative_weights,
                    is_classification=is_classification,
                ),
            )
    raise SettingsError(
        f"there is no personalisation '{method}'",
        where="personalise",
        remedy=f"choose from {', '.join(METHODS)}",
    )


def interpolation_weight(
    first: Floats,
    second: Floats,
    y: NDArray[Any],
    row_weights: Floats | None = None,
    *,
    is_classification: bool,
) -> float:
    """Return the first model's weight in personalisation by interpolation, from predictions for held-out subjects.

    >>> y = np.array([0, 1] * 200)
    >>> good, bad = np.where(y, 2.0, -2.0), np.zeros(400)
    >>> interpolation_weight(good, bad, y, is_classification=True) > 0.9
    True
    >>> interpolation_weight(bad, bad, y, is_classification=True)
    0.5
    """
    interpolated = _GRID[:, None] * first + (1 - _GRID[:, None]) * second
    if is_classification:
        losses = np.logaddexp(0.0, np.where(y == 1, -interpolated, interpolated))
        log_likelihood = -(losses if row_weights is None else losses * row_weights).sum(axis=1)
    else:
        squared_error = ((interpolated - y) ** 2).mean(axis=1)
        log_likelihood = -len(y) / 2 * np.log(np.maximum(squared_error, 1e-12))
    likelihood = np.exp(log_likelihood - log_likelihood.max())
    return float((likelihood * _GRID).sum() / likelihood.sum())


def _linear_predictor(model: Model, vector: Vector, x: NDArray[Any], *, is_classification: bool) -> Floats:
    """Return predictions on the scale of personalisation by interpolation: log odds of the second class, or values."""
    labels = np.zeros(len(x), np.int64 if is_classification else np.float32)
    predictions = model.score(vector, Examples(x, labels)).predictions
    if not is_classification:
        return np.asarray(predictions, np.float64).reshape(-1)
    return log_odds(predictions[:, 1])


def _fit_calibration(
    predictor: Floats, y: NDArray[Any], row_weights: NDArray[Any] | None = None, *, is_classification: bool
) -> tuple[float, float]:
    """Return intercept and slope of personalisation by calibration, shrunk to 0 and 1 with few subjects.

    NaN for values if there are fewer than three subjects or one distinct prediction.
    """
    if is_classification:
        is_case, order = np.asarray(y, np.float64), np.argsort(predictor, kind="stable")
        weights = np.ones(len(y)) if row_weights is None else row_weights
        cases, controls = ((weights * members)[None, order] for members in (is_case, 1 - is_case))
        fit = fit_line(predictor[order], cases, controls, prior_precision=_PRIOR_PRECISION)
        return float(fit.intercept[0]), float(fit.slope[0])
    squared_sum = float(((predictor - predictor.mean()) ** 2).sum())
    if len(y) < 3 or not squared_sum:
        return math.nan, math.nan
    slope = float(((predictor - predictor.mean()) * (y - np.mean(y))).sum()) / squared_sum
    return float(np.mean(y) - slope * predictor.mean()), slope
