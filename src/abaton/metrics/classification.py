"""How good a model is in the words of clinicians: discrimination, calibration, sensitivity, each with its uncertainty.

Everything is computed from counts of cases and controls at each score. Counts over the same bins add up, so sites can
send them instead of subjects' scores, and the sum is judged as if all subjects were in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError

Floats = NDArray[np.float64]

BINS = 500
_TOGETHER = 100  # resamples drawn at once: memory stays small
_NEWTON_STEPS, _FLATTEST = 25, 1e-6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its confidence interval; not a number where it cannot be told."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreCounts:
    """How many cases and controls have which predicted chance.

    Attributes:
        scores: the chances, rising.
        cases, controls: how many subjects have each of them.
    """

    scores: Floats
    cases: Floats
    controls: Floats

    @property
    def subjects(self) -> int:
        """How many subjects were counted."""
        return int(self.cases.sum() + self.controls.sum())

    def curve(self) -> tuple[Floats, Floats]:
        """The ROC curve: false positive rate and sensitivity at every threshold, from none positive to all."""
        tp, fp = _above(self.cases[None]), _above(self.controls[None])
        return np.append(0.0, fp[0] / fp[0, -1]), np.append(0.0, tp[0] / tp[0, -1])

    def calibration(self, groups: int = 10) -> list[tuple[float, Estimate]]:
        """Mean predicted chance against the share of cases, in groups of about as many subjects each."""
        total = self.cases + self.controls
        number = np.minimum((np.cumsum(total) - total / 2) / total.sum() * groups, groups - 1).astype(int)
        found = []
        for each in np.unique(number[total > 0]):
            inside = number == each
            n, k = float(total[inside].sum()), float(self.cases[inside].sum())
            found.append((float((self.scores * total)[inside].sum() / n), wilson(k, n)))
        return found


def count_scores(chances: NDArray[np.floating], labels: NDArray[np.integer], *, bins: int = 0) -> ScoreCounts:
    """Count cases (label 1) and controls (label 0) at each predicted chance, exactly or in so many equal bins.

    >>> counts = count_scores(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    >>> auroc(counts.scores, counts.cases[None], counts.controls[None]).tolist()
    [0.75]
    """
    chances = np.asarray(chances, np.float64)
    if not np.isfinite(chances).all() or (len(chances) and not (chances.min() >= 0 and chances.max() <= 1)):
        raise SettingsError(
            "a predicted chance is not between 0 and 1", remedy="give chances, not raw outputs"
        )
    if bins:
        scores = (np.arange(bins) + 0.5) / bins
        place = np.minimum((chances * bins).astype(np.int64), bins - 1)
    else:
        scores, place = np.unique(chances, return_inverse=True)
    ill = np.asarray(labels).astype(bool)
    cases, controls = (np.bincount(place[who], minlength=len(scores)).astype(float) for who in (ill, ~ill))
    return ScoreCounts(scores, cases, controls)


def together(parts: Iterable[ScoreCounts]) -> ScoreCounts:
    """The counts of several sites as one; all must have used the same bins."""
    first, *others = parts
    if any(not np.array_equal(first.scores, other.scores) for other in others):
        raise SettingsError(
            "the sites counted in different bins", remedy="use the same number of bins everywhere"
        )
    return ScoreCounts(
        first.scores,
        first.cases + sum(other.cases for other in others),
        first.controls + sum(other.controls for other in others),
    )


# Each measure takes the scores and resampled counts, one row a resample, and gives one value a row.


def auroc(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """The chance that a case scores above a control, ties counted half."""
    tp, fp = _above(cases), _above(controls)
    before = np.concatenate([np.zeros((len(tp), 1)), tp[:, :-1]], axis=1)
    area = (controls[:, ::-1] * (tp + before) / 2).sum(1)
    return np.asarray(area / (tp[:, -1] * fp[:, -1]))


def auprc(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Average precision: the area under the precision-recall curve, without interpolation."""
    tp, fp = _above(cases), _above(controls)
    precision = tp / np.maximum(tp + fp, 1)
    return np.asarray((cases[:, ::-1] * precision).sum(1) / tp[:, -1])


def sensitivity_at(specificity: float) -> Callable[[Floats, Floats, Floats], Floats]:
    """The share of cases found by the threshold that leaves at least this share of the controls alone."""

    def measure(scores: Floats, cases: Floats, controls: Floats) -> Floats:
        tp, fp = _above(cases), _above(controls)
        allowed = fp <= (1 - specificity) * fp[:, -1:] + 1e-9
        return np.asarray(np.where(allowed, tp, 0).max(1) / tp[:, -1])

    return measure


def accuracy(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """The share of subjects for whom the likelier answer is the right one."""
    said = scores >= 0.5
    return np.asarray((cases * said + controls * ~said).sum(1) / (cases + controls).sum(1))


def brier(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """The mean squared distance of the predicted chance from what happened."""
    wrong = cases * (1 - scores) ** 2 + controls * scores**2
    return np.asarray(wrong.sum(1) / (cases + controls).sum(1))


def calibration_slope(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """The slope of the outcome on the predicted log odds: 1 is right, below 1 the predictions are too extreme."""
    return _recalibrated(scores, cases, controls)[:, 1]


def calibration_intercept(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """The log odds to add to every prediction so that their mean is right: above 0 means too few were foretold."""
    log_odds, total = _log_odds(scores), cases + controls
    shift = np.zeros(len(cases))
    for _ in range(_NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-(log_odds + shift[:, None])))
        bend = (total * chance * (1 - chance)).sum(1)
        shift += np.clip((cases - total * chance).sum(1) / np.maximum(bend, _FLATTEST), -4, 4)
    return shift


def recalibration(counts: ScoreCounts) -> tuple[float, float]:
    """Intercept and slope, on the scale of log odds, that make predictions right in the mean and in their spread.

    Where they cannot be told, or a higher prediction would become a lower one, nothing is changed: 0 and 1.
    """
    if not counts.cases.sum() or not counts.controls.sum():
        return 0.0, 1.0
    intercept, slope = _recalibrated(counts.scores, counts.cases[None], counts.controls[None])[0]
    return (float(intercept), float(slope)) if np.isfinite(intercept) and slope > 0 else (0.0, 1.0)


def net_benefit(counts: ScoreCounts, thresholds: Floats) -> tuple[Floats, Floats]:
    """The decision curve: the net benefit of treating whoever is above a threshold, and of treating everybody.

    Net benefit is the share of true positives less that of false ones, weighed by the odds of the threshold
    (Vickers and Elkin, 2006). Treating nobody has none.
    """
    n, above = counts.subjects, counts.scores[None] >= thresholds[:, None]
    odds = thresholds / (1 - thresholds)
    treated = (above * counts.cases).sum(1) / n - odds * (above * counts.controls).sum(1) / n
    return treated, counts.cases.sum() / n - odds * counts.controls.sum() / n


Measure = Callable[[Floats, Floats, Floats], Floats]


def measures_of(specificity: float) -> dict[str, Measure]:
    """All measures of a model that predicts an outcome, by their names."""
    return {
        "auroc": auroc,
        "auprc": auprc,
        f"sensitivity at specificity {specificity:g}": sensitivity_at(specificity),
        "calibration slope": calibration_slope,
        "calibration intercept": calibration_intercept,
        "accuracy": accuracy,
        "brier": brier,
    }


def judge(
    counts: ScoreCounts,
    *,
    specificity: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """All measures of a model that predicts an outcome, with bootstrap intervals (cases and controls apart).

    With cases only or controls only, what needs both cannot be told and is not a number.
    """
    measures = measures_of(specificity)
    if not counts.subjects:
        return dict.fromkeys(measures, Estimate(np.nan, np.nan, np.nan))
    if not counts.cases.sum() or not counts.controls.sum():
        unknown = Estimate(np.nan, np.nan, np.nan)
        told = {
            name: float(measures[name](counts.scores, counts.cases[None], counts.controls[None])[0])
            for name in ("accuracy", "brier")
        }
        alone = {name: Estimate(value, np.nan, np.nan) for name, value in told.items()}
        return {**dict.fromkeys(measures, unknown), **alone}
    chance = np.random.default_rng(seed)
    drawn: dict[str, list[Floats]] = {name: [] for name in measures}
    for begin in range(0, resamples, _TOGETHER):
        rows = min(_TOGETHER, resamples - begin)
        cases, controls = (_resampled(side, rows, chance) for side in (counts.cases, counts.controls))
        for name, measure in measures.items():
            drawn[name].append(measure(counts.scores, cases, controls))
    return {
        name: interval(
            float(measure(counts.scores, counts.cases[None], counts.controls[None])[0]),
            np.concatenate(drawn[name]) if resamples else np.empty(0),
            level,
        )
        for name, measure in measures.items()
    }


def judge_values(
    predicted: Floats, actual: Floats, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Measures of a model that predicts a value: mean and root mean squared error, explained share, slope."""
    if not len(actual):
        return dict.fromkeys(("mae", "rmse", "r2", "calibration slope"), Estimate(np.nan, np.nan, np.nan))
    predicted, actual = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    chance = np.random.default_rng(seed)
    rows = [_value_measures(predicted, actual)]
    for _ in range(resamples):
        some = chance.integers(0, len(actual), len(actual))
        rows.append(_value_measures(predicted[some], actual[some]))
    return {name: interval(rows[0][name], np.array([r[name] for r in rows[1:]]), level) for name in rows[0]}


def wilson(hits: float, n: float, z: float = 1.959964) -> Estimate:
    """A share with Wilson's interval, which stays inside 0 and 1 for small numbers, too.

    >>> print(wilson(0, 10))
    0.000 (0.000 to 0.278)
    """
    if not n:
        return Estimate(np.nan, np.nan, np.nan)
    share, bend = hits / n, z * z / n
    middle = (share + bend / 2) / (1 + bend)
    half = z / (1 + bend) * np.sqrt(share * (1 - share) / n + bend / (4 * n))
    return Estimate(share, max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def _value_measures(predicted: Floats, actual: Floats) -> Mapping[str, float]:
    wrong, spread = predicted - actual, actual - actual.mean()
    lean, total = predicted - predicted.mean(), float(np.dot(spread, spread))
    across = float(np.dot(lean, lean))
    return {
        "mae": float(np.abs(wrong).mean()),
        "rmse": float(np.sqrt(np.mean(wrong**2))),
        "r2": 1 - float(np.dot(wrong, wrong)) / total if total else np.nan,
        "calibration slope": float(np.dot(lean, spread)) / across if across else np.nan,
    }


def _above(counts: Floats) -> Floats:
    """How many score at or above each score, from the highest down."""
    return np.asarray(np.cumsum(counts[:, ::-1], axis=1))


def _resampled(counts: Floats, rows: int, chance: np.random.Generator) -> Floats:
    n = int(counts.sum())
    return chance.multinomial(n, counts / n, size=rows).astype(np.float64)


def interval(value: float, drawn: Floats, level: float) -> Estimate:
    """A number with the interval in which so large a share of the resampled ones lie."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return Estimate(value, np.nan, np.nan)
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high))


def _log_odds(scores: Floats) -> Floats:
    safe = np.clip(scores, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(safe / (1 - safe)))


def _recalibrated(scores: Floats, cases: Floats, controls: Floats) -> Floats:
    """Intercept and slope of a logistic regression of the outcome on the predicted log odds, by Newton's steps."""
    x, total = _log_odds(scores), cases + controls
    fit = np.tile([0.0, 1.0], (len(cases), 1))
    for _ in range(_NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(fit[:, :1] + fit[:, 1:] * x, -30, 30)))
        left, bend = cases - total * chance, total * chance * (1 - chance)
        g0, g1 = left.sum(1), (left * x).sum(1)
        h00, h01, h11 = bend.sum(1), (bend * x).sum(1), (bend * x * x).sum(1)
        wide = h00 * h11 - h01 * h01
        fits = wide > _FLATTEST  # one score only, or perfectly separated: no slope can be told
        wide = np.where(fits, wide, np.nan)
        fit = fit + np.clip(np.stack([(h11 * g0 - h01 * g1) / wide, (h00 * g1 - h01 * g0) / wide], 1), -4, 4)
    return np.where(np.abs(fit) < 100, fit, np.nan)
