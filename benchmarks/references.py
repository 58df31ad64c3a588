"""Metrics against scikit-learn, statsmodels and lifelines, and the measured coverage of every interval.

Differences are the largest over random and extreme inputs. Coverage is simulated with 50, 100 and 300 subjects, for
classifiers at prevalences of .03, .15 and .4 with an AUROC of .80 and .92; labels are random, so the number of cases
varies. A cell counts if the rule of the interval allows it in at least half of the samples; the others are not stated.
Weighted intervals are simulated with independent censoring: a third or half of the subjects is lost at a random time.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from abaton.benchmark import BenchmarkResult, at_most
from abaton.features.labels import censoring_weights
from abaton.metrics.calibration_curve import decision_curve, observed_expected_ratio, smooth_calibration
from abaton.metrics.classification import (
    BINS,
    MetricEstimate,
    count_scores,
    evaluate_classifier,
    wilson,
)
from abaton.metrics.classification_intervals import estimate_auroc
from abaton.metrics.logistic_fit import fit_line, fit_shift, log_odds, sigmoid
from abaton.metrics.meta_analysis import auroc_difference, combine_auroc, weighted_difference
from abaton.metrics.paired_bootstrap import compare_models, probability_statistic, regression_statistic
from abaton.metrics.regression import evaluate_sums, sum_errors
from abaton.metrics.survival import compare_survival_models, evaluate_survival, sum_pairs

Floats = NDArray[np.float64]

SIZES, PREVALENCES = (50, 100, 300), (0.03, 0.15, 0.4)
DISTANCES = (1.2, 2.0)  # of cases and controls in standard deviations: AUROC .80 and .92
SENSITIVITY = "sensitivity at specificity 0.9"
SAMPLES, PAIRED_SAMPLES, SURVIVAL_SAMPLES, RESAMPLES = 800, 800, 800, 200
COMPARED = "auroc", "auprc", "brier", "accuracy", "calibration intercept"
CURVE_SAMPLES, SITE_SAMPLES, GROUP_SAMPLES, WEIGHTED_SAMPLES, WEIGHTED_RESAMPLES = 800, 2000, 800, 600, 200
MIN_CASES = 10  # cases and controls from which on curves and ratios are stated
BAND = 0.93, 0.97
TRUE_SLOPE, SHIFT = 0.8, 0.3


class Coverage:
    """Number of samples, of intervals and of intervals with the true value, by interval and cell."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))

    def add(self, name: str, cell: str, estimate: MetricEstimate, truth: float) -> None:
        """Count an interval of a metric in a simulated cell."""
        counts = self.cells[name][cell]
        counts[0] += 1
        counts[1] += math.isfinite(estimate.low)
        counts[2] += estimate.low <= truth <= estimate.high

    def results(self) -> Iterator[BenchmarkResult]:
        """Yield the smallest and the largest coverage of each interval over the cells where it is stated."""
        for name, cells in self.cells.items():
            for cell, (samples, stated, hits) in cells.items():
                fraction = f"{hits / stated:.3f}" if stated else "-"
                print(f"{name} | {cell} | stated {stated / samples:.2f} | {fraction}", file=sys.stderr)
            stated_cells = [cell[1:] for cell in cells.values() if cell[1] >= cell[0] / 2]
            if not stated_cells:
                continue
            least, largest = (function(hits / n for n, hits in stated_cells) for function in (min, max))
            label, target = f"{name}: coverage in {len(stated_cells)} cells", f"{BAND[0]:g} to {BAND[1]:g}"
            # A cell may be outside by twice the standard error of its simulation.
            slacks = [(hits / n, 2 * math.sqrt(0.95 * 0.05 / n)) for n, hits in stated_cells]
            has_least = all(fraction >= BAND[0] - slack for fraction, slack in slacks)
            has_most = all(fraction <= BAND[1] + slack for fraction, slack in slacks)
            yield BenchmarkResult(f"{label}, least", least, "", target, has_least)
            yield BenchmarkResult(f"{label}, largest", largest, "", target, has_most)


def run() -> list[BenchmarkResult]:
    """Measure differences to references, then coverage; print every cell."""
    warnings.simplefilter("ignore")
    coverage = Coverage()
    for simulate in (
        _classifiers,
        _differences,
        _regressions,
        _regression_differences,
        _survival,
        _fractions,
        _curves,
        _meta_analyses,
        _group_differences,
        _overall_differences,
        _weighted,
    ):
        simulate(coverage)
    references = (
        _classifier_references,
        _calibration_references,
        _other_references,
        _weighted_references,
    )
    return [*(result for reference in references for result in reference()), *coverage.results()]


def _classifier_references() -> Iterator[BenchmarkResult]:
    """Yield the largest differences of classification metrics to scikit-learn."""
    from sklearn.metrics import (
        accuracy_score,
        average_precision_score,
        brier_score_loss,
        roc_auc_score,
        roc_curve,
    )

    rng = np.random.default_rng(1)
    largest: dict[str, float] = defaultdict(float)
    for _ in range(2000):
        labels, log_odds_ = _sample(rng, int(rng.choice([20, 100, 500])), float(rng.choice([0.1, 0.4])), 1.5)
        if labels.min() == labels.max():
            continue
        probabilities = np.round(sigmoid(log_odds_ * rng.choice([0.3, 1, 8])), int(rng.choice([1, 2, 16])))
        fpr, tpr, _ = roc_curve(labels, probabilities, drop_intermediate=False)
        reference = {
            "auroc": roc_auc_score(labels, probabilities),
            "auprc": average_precision_score(labels, probabilities),
            SENSITIVITY: tpr[fpr <= 0.1 + 1e-12].max(),
            "accuracy": accuracy_score(labels, probabilities >= 0.5),
            "brier": brier_score_loss(labels, probabilities),
        }
        estimates = evaluate_classifier(count_scores(probabilities, labels), resamples=0)
        for name, value in reference.items():
            largest[name] = max(largest[name], abs(estimates[name].value - value))
    for name, difference in largest.items():
        yield at_most(f"{name}: difference to scikit-learn, 2,000 inputs", float(difference), 1e-12, "")
    binned = 0.0
    for prevalence in (0.001, 0.0016, 0.01, 0.1, 0.5):
        for distance in (0.3, 0.5, 1.0, 2.0, 4.0):
            labels, log_odds_ = _sample(rng, 60_000, prevalence, distance)
            probabilities = sigmoid(log_odds_).astype(np.float32)
            estimate = evaluate_classifier(count_scores(probabilities, labels, bins=BINS), resamples=0)[
                "auroc"
            ]
            binned = max(binned, abs(estimate.value - roc_auc_score(labels, probabilities)))
    yield at_most("auroc in bins: difference at prevalences from .001 to .5", float(binned), 0.002, "")


def _calibration_references() -> Iterator[BenchmarkResult]:
    """Yield the largest differences of calibration slopes and intercepts to statsmodels."""
    import statsmodels.api as sm

    rng, slope_difference, shift_difference = np.random.default_rng(2), 0.0, 0.0
    compared = shifts = undetected = 0
    for _ in range(3000):
        n, slope = int(rng.choice([20, 60, 200, 1000])), float(rng.choice([0.1, 0.2, 0.3, 1, 2, 5]))
        x = rng.normal(rng.choice([0, -3, -8, -15]), rng.choice([0.1, 1, 4, 12]), n)
        probabilities = sigmoid(np.round(x) if rng.random() < 0.2 else x)
        x = log_odds(probabilities)
        y = rng.random(n) < sigmoid(rng.choice([-4, -2, 0]) + slope * (x - x.mean()))
        if rng.random() < 0.3:
            y = x > np.quantile(x, 0.8)
            y[rng.integers(n)] ^= rng.random() < 0.5
        if y.min() == y.max():
            continue
        counts = count_scores(probabilities, y.astype(int))
        arrays = log_odds(counts.scores), counts.cases[None], counts.controls[None]
        line, shift = fit_line(*arrays), fit_shift(*arrays)[0][0]
        shifts += 1
        is_separated = x[y].min() >= x[~y].max() or x[~y].min() >= x[y].max()
        undetected += is_separated != math.isnan(line.slope[0])
        family = sm.families.Binomial()
        reference = sm.GLM(y.astype(float), np.ones(n), family=family, offset=x).fit(start_params=[shift])
        shift_difference = max(shift_difference, abs(reference.params[0] - shift) / max(1, abs(shift)))
        if is_separated:
            continue
        design = np.stack([np.ones(n), (x - x.mean()) / x.std()], axis=1)
        fit = sm.Logit(y.astype(float), design).fit(disp=0, maxiter=300, tol=1e-13)
        if fit.mle_retvals["converged"]:
            compared += 1
            difference = abs(fit.params[1] / x.std() - line.slope[0]) / max(1, abs(line.slope[0]))
            slope_difference = max(slope_difference, difference)
    name = f"calibration slope: relative difference to statsmodels, {compared:,} inputs"
    yield at_most(name, float(slope_difference), 1e-8, "")
    yield at_most(f"calibration intercept: the same, {shifts:,} inputs", float(shift_difference), 1e-8, "")
    yield at_most("separated inputs not recognised, or others refused", int(undetected), 0, "")


def _other_references() -> Iterator[BenchmarkResult]:
    """Yield the largest differences of regression, survival and fractions to their references."""
    from lifelines.utils import concordance_index
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
    from statsmodels.stats.proportion import proportion_confint

    rng = np.random.default_rng(3)
    largest: dict[str, float] = defaultdict(float)
    references = {"rmse": root_mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}
    for _ in range(1000):
        centre, scale = float(rng.choice([0, 100, -5000])), float(rng.choice([0.01, 1, 50]))
        actual = rng.normal(centre, scale, 50)
        predicted = actual + scale * rng.standard_t(3, 50)
        estimates = evaluate_sums(sum_errors(predicted, actual, centre=centre))
        for name, reference in references.items():
            value = reference(actual, predicted)
            difference = abs(estimates[name].value - value) / max(1, abs(value))
            largest[name] = max(largest[name], difference)
        y = np.stack([rng.integers(1, 30, 60), rng.random(60) < 0.5], axis=1).astype(float)
        risk = np.round(rng.random(60), int(rng.choice([1, 8])))
        value = concordance_index(y[:, 0], -risk, y[:, 1])
        estimate = evaluate_survival(sum_pairs(risk, y))["concordance"].value
        largest["concordance of one site"] = max(largest["concordance of one site"], abs(estimate - value))
        n = int(rng.integers(1, 400))
        hits = int(rng.integers(0, n + 1))
        limits = np.array(proportion_confint(hits, n, method="wilson"))
        interval = np.array([wilson(hits, n).low, wilson(hits, n).high])
        largest["wilson's interval"] = max(largest["wilson's interval"], float(abs(limits - interval).max()))
    packages = {"concordance of one site": "lifelines", "wilson's interval": "statsmodels"}
    for name, difference in largest.items():
        package = packages.get(name, "scikit-learn")
        yield at_most(f"{name}: difference to {package}, 1,000 inputs", float(difference), 1e-6, "")


def _sample(
    rng: np.random.Generator, n: int, prevalence: float, distance: float
) -> tuple[NDArray[np.int64], Floats]:
    """Return random labels and their calibrated log odds: normal scores of cases and controls."""
    labels = (rng.random(n) < prevalence).astype(np.int64)
    scores = rng.normal(size=n) + distance * labels
    return labels, math.log(prevalence / (1 - prevalence)) + distance * scores - distance**2 / 2


def _true_metrics(prevalence: float, distance: float) -> dict[str, float]:
    """Return the metrics of the simulated classifier by numerical integration."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    x = np.linspace(-9, 12, 200_001)
    case_density, control_density = (norm.pdf(x - mean) * (x[1] - x[0]) for mean in (distance, 0.0))
    weights = prevalence * case_density, (1 - prevalence) * control_density
    predictor = math.log(prevalence / (1 - prevalence)) + distance * x - distance**2 / 2
    predictor = (predictor - SHIFT) / TRUE_SLOPE
    p = sigmoid(predictor)
    tp, fp = prevalence * norm.sf(x - distance), (1 - prevalence) * norm.sf(x)
    return {
        "auroc": float(norm.cdf(distance / math.sqrt(2))),
        "auprc": float((case_density * tp / (tp + fp)).sum()),
        SENSITIVITY: float(norm.sf(norm.ppf(0.9) - distance)),
        "calibration slope": TRUE_SLOPE,
        "calibration intercept": brentq(
            lambda shift: float((sum(weights) * sigmoid(predictor + shift)).sum()) - prevalence, -20, 20
        ),
        "accuracy": float((weights[0] * (p >= 0.5) + weights[1] * (p < 0.5)).sum()),
        "brier": float((weights[0] * (1 - p) ** 2 + weights[1] * p**2).sum()),
    }


def _classifiers(coverage: Coverage) -> None:
    """Simulate the intervals of all classification metrics."""
    for distance in DISTANCES:
        rng = np.random.default_rng([4, int(10 * distance)])
        for prevalence in PREVALENCES:
            truth = _true_metrics(prevalence, distance)
            for n in SIZES:
                cell = f"{n} subjects, prevalence {prevalence}, distance {distance}"
                for seed in range(SAMPLES):
                    labels, predictor = _sample(rng, n, prevalence, distance)
                    counts = count_scores(sigmoid((predictor - SHIFT) / TRUE_SLOPE), labels)
                    estimates = evaluate_classifier(counts, resamples=RESAMPLES, seed=seed)
                    for name, estimate in estimates.items():
                        coverage.add(name, cell, estimate, truth[name])


def _differences(coverage: Coverage) -> None:
    """Simulate paired differences of two equally good classifiers; the truth is 0."""
    for distance in DISTANCES:
        rng = np.random.default_rng([5, int(10 * distance)])
        for n, prevalence in ((50, 0.4), (100, 0.15), (100, 0.4), (300, 0.15)):
            cell = f"{n} subjects, prevalence {prevalence}, distance {distance}"
            for seed in range(PAIRED_SAMPLES):
                labels = (rng.random(n) < prevalence).astype(np.int64)
                shared = rng.normal(size=n) + distance * labels
                models = {}
                for name in ("one", "two"):
                    score = (shared + 0.6 * rng.normal(size=n)) / math.sqrt(1.36)
                    effect = distance / math.sqrt(1.36)
                    p = sigmoid(math.log(prevalence / (1 - prevalence)) + effect * score - effect**2 / 2)
                    models[name] = np.stack([1 - p, p], axis=1)
                statistics = {
                    f"{name} {metric}": probability_statistic(p, labels, [1], metric)
                    for metric in COMPARED
                    for name, p in models.items()
                }
                comparison = compare_models(statistics, labels, resamples=RESAMPLES, seed=seed)
                for metric in COMPARED:
                    difference = comparison.difference(f"one {metric}", f"two {metric}")
                    coverage.add(f"difference of {metric}", cell, difference, 0.0)


def _regression_differences(coverage: Coverage) -> None:
    """Simulate paired differences of two equally good regressions; the truth is 0."""
    rng = np.random.default_rng(9)
    for n in SIZES:
        for seed in range(PAIRED_SAMPLES):
            actual = rng.normal(size=n)
            shared = rng.normal(size=n)
            errors = [0.5 * shared + 0.5 * rng.normal(size=n) for _ in range(2)]
            for metric in ("rmse", "mae", "r2"):
                statistics = {
                    name: regression_statistic(actual + error, actual, metric)
                    for name, error in zip(("one", "two"), errors, strict=True)
                }
                comparison = compare_models(statistics, np.zeros(n, np.int64), resamples=RESAMPLES, seed=seed)
                difference = comparison.difference("one", "two")
                coverage.add(f"difference of {metric}", f"{n} subjects", difference, 0.0)


def _regressions(coverage: Coverage) -> None:
    """Simulate the intervals of regression metrics: normal, heavy-tailed and heteroscedastic errors."""
    rng = np.random.default_rng(6)
    errors: Mapping[str, Callable[[Floats], Floats]] = {
        "normal": lambda values: rng.normal(size=values.shape),
        "t with 8 degrees": lambda values: rng.standard_t(8, values.shape),
        "heteroscedastic": lambda values: rng.normal(size=values.shape) * np.exp(0.3 * values),
    }
    for kind, draw in errors.items():
        for scale in (0.4, 1.0, 1.3):
            population = rng.normal(size=4_000_000)
            error = scale * draw(population)
            mse = float((error**2).mean())
            truth = {"rmse": math.sqrt(mse), "mae": float(abs(error).mean()), "r2": 1 - mse}
            for n in SIZES:
                for _ in range(SAMPLES):
                    actual = rng.normal(size=n)
                    estimates = evaluate_sums(sum_errors(actual + scale * draw(actual), actual))
                    for name, estimate in estimates.items():
                        coverage.add(name, f"{n} subjects, {kind}, scale {scale}", estimate, truth[name])


def _survival(coverage: Coverage) -> None:
    """Simulate the interval of the concordance and of the difference of two equally good models."""
    rng = np.random.default_rng(7)

    def sample(n: int, effect: float, end: float) -> tuple[Floats, Floats, Floats]:
        x = rng.normal(size=n)
        time, censored = rng.exponential(np.exp(-effect * x)), rng.uniform(0, end, n)
        y = np.stack([np.minimum(time, censored), time <= censored], axis=1)
        return x + 0.5 * rng.normal(size=n), x + 0.5 * rng.normal(size=n), y

    for effect, end in ((0.8, 0.35), (0.8, 1.2), (1.8, 0.35)):
        population = [sample(3000, effect, end) for _ in range(12)]
        truth = float(
            np.mean([evaluate_survival(sum_pairs(risk, y))["concordance"].value for risk, _, y in population])
        )
        for n in SIZES:
            cell = f"{n} subjects, effect {effect}, {np.mean([y[:, 1].mean() for _, _, y in population]):.0%} events"
            for _ in range(SURVIVAL_SAMPLES):
                one, two, y = sample(n, effect, end)
                comparison = compare_survival_models({"one": one, "two": two}, y)
                coverage.add("concordance", cell, comparison.estimate("one"), truth)
                coverage.add("difference of concordance", cell, comparison.difference("one", "two"), 0.0)


def _fractions(coverage: Coverage) -> None:
    """Simulate Wilson's interval of a fraction."""
    rng = np.random.default_rng(8)
    for n in SIZES:
        for p in PREVALENCES:
            for hits in rng.binomial(n, p, 20_000):
                coverage.add("wilson's interval", f"{n} subjects, fraction {p}", wilson(float(hits), n), p)


def _weighted_references() -> Iterator[BenchmarkResult]:
    """Yield the largest differences of weighted metrics to scikit-learn and statsmodels, of weights to lifelines."""
    import statsmodels.api as sm
    from lifelines import KaplanMeierFitter
    from sklearn.metrics import accuracy_score, average_precision_score, brier_score_loss, roc_auc_score

    rng = np.random.default_rng(10)
    largest: dict[str, float] = defaultdict(float)
    for i in range(1000):
        labels, predictor = _sample(rng, int(rng.choice([20, 100, 500])), float(rng.choice([0.1, 0.4])), 1.5)
        weights = rng.uniform(1, 5, len(labels))
        if labels.min() == labels.max():
            continue
        p = np.round(sigmoid(predictor), int(rng.choice([1, 2, 16])))
        estimates = evaluate_classifier(count_scores(p, labels, weights=weights), resamples=0)
        reference = {
            "auroc": roc_auc_score(labels, p, sample_weight=weights),
            "auprc": average_precision_score(labels, p, sample_weight=weights),
            "accuracy": accuracy_score(labels, p >= 0.5, sample_weight=weights),
            "brier": brier_score_loss(labels, p, sample_weight=weights),
        }
        for name, value in reference.items():
            key = "AUROC, AUPRC, accuracy, Brier score: difference to scikit-learn"
            largest[key] = max(largest[key], abs(estimates[name].value - value))
        slope = estimates["calibration slope"].value
        if i % 4 == 0 and math.isfinite(slope) and abs(slope) < 10:
            design = np.stack([np.ones(len(p)), log_odds(p)], axis=1)
            fit = sm.GLM(labels, design, family=sm.families.Binomial(), freq_weights=weights).fit(tol=1e-13)
            key = "calibration slope: difference to statsmodels"
            largest[key] = max(largest[key], abs(fit.params[1] - slope))
        days = rng.integers(1, 40, len(labels)).astype(float)
        events, lost = (
            (days < 40) & (labels == 1),
            (days < 40) & (labels == 0) & (rng.random(len(labels)) < 0.3),
        )
        days[~events & ~lost] = 40.0
        computed = censoring_weights(list(zip(days, events, strict=True)), lost.tolist(), math.inf)
        # lifelines has no rule for ties of events and censoring: events are moved ahead of the day.
        curve = KaplanMeierFitter().fit(days - 0.5 * events, lost)
        expected = np.where(lost, 0.0, 1 / curve.survival_function_at_times(days - 0.5 * events).to_numpy())
        key = "censoring weights: relative difference to lifelines"
        largest[key] = max(largest[key], float((abs(computed - expected) / np.maximum(expected, 1)).max()))
    for name, difference in largest.items():
        yield at_most(f"weighted {name}, 1,000 inputs", float(difference), 1e-8, "")


def _model_probabilities(predictor: Floats) -> Floats:
    """Return the predictions of the simulated, miscalibrated model from true log odds."""
    return sigmoid((predictor - SHIFT) / TRUE_SLOPE)


def _net_benefit(threshold: float, prevalence: float, distance: float) -> float:
    """Return the true net benefit of the simulated model at a threshold."""
    from scipy.stats import norm

    cut = SHIFT + TRUE_SLOPE * math.log(threshold / (1 - threshold))
    score = (cut - math.log(prevalence / (1 - prevalence)) + distance**2 / 2) / distance
    true, false = prevalence * norm.sf(score - distance), (1 - prevalence) * norm.sf(score)
    return float(true - threshold / (1 - threshold) * false)


def _add_curves(
    coverage: Coverage,
    prefix: str,
    cell: str,
    sample: tuple[NDArray[np.int64], Floats, Floats | None],
    population: tuple[float, float],
) -> None:
    """Count the ratio of observed to expected cases, and points of the calibration and the decision curve."""
    labels, predictor, weights = sample
    p, is_stated = _model_probabilities(predictor), MIN_CASES <= labels.sum() <= len(labels) - MIN_CASES
    unknown = MetricEstimate(math.nan, math.nan, math.nan)
    w = np.ones(len(p)) if weights is None else weights
    truth = float((w * sigmoid(predictor)).sum() / (w * p).sum())  # the case mix is taken as given
    ratio = observed_expected_ratio(p, labels, weights=weights) if is_stated else unknown
    coverage.add(f"{prefix}O:E", cell, ratio, truth)
    curve = smooth_calibration(p, labels, weights=weights) if is_stated else None
    for i in (20, 50, 80):
        band = unknown if curve is None else MetricEstimate(curve.observed[i], curve.low[i], curve.high[i])
        true_risk = 0.0
        if curve is not None:
            true_risk = float(sigmoid(SHIFT + TRUE_SLOPE * log_odds(curve.predicted[i : i + 1]))[0])
        coverage.add(f"{prefix}calibration curve", cell, band, true_risk)
    thresholds = population[0] * np.array([0.5, 1.0, 2.0])
    decision = decision_curve(p, labels, thresholds, weights=weights)
    for i, threshold in enumerate(thresholds.tolist()):
        band = MetricEstimate(decision.model[i], decision.low[i], decision.high[i]) if is_stated else unknown
        coverage.add(f"{prefix}decision curve", cell, band, _net_benefit(threshold, *population))


def _curves(coverage: Coverage) -> None:
    """Simulate O:E and the bands of calibration and decision curves."""
    for distance in DISTANCES:
        rng = np.random.default_rng([11, int(10 * distance)])
        for prevalence in PREVALENCES:
            for n in SIZES:
                cell = f"{n} subjects, prevalence {prevalence}, distance {distance}"
                for _ in range(CURVE_SAMPLES):
                    labels, predictor = _sample(rng, n, prevalence, distance)
                    _add_curves(coverage, "", cell, (labels, predictor, None), (prevalence, distance))


def _site_auroc(rng: np.random.Generator, logit: float) -> tuple[float, float]:
    """Return the true AUROC of a simulated site on a logit, and the distance of its cases and controls."""
    from scipy.stats import norm

    auroc = float(sigmoid(np.array([logit]))[0])
    return auroc, math.sqrt(2) * float(norm.ppf(auroc))


def _meta_analyses(coverage: Coverage) -> None:
    """Simulate the random-effects mean of the sites' AUROC."""
    rng, mean = np.random.default_rng(12), 1.5
    for sites in (5, 8):
        for tau in (0.0, 0.2, 0.5):
            cell = f"{sites} sites, tau {tau}"
            for _ in range(SITE_SAMPLES):
                estimates = []
                for _ in range(sites):
                    _, distance = _site_auroc(rng, rng.normal(mean, tau))
                    labels, predictor = _sample(rng, int(rng.choice([100, 200, 400])), 0.25, distance)
                    counts = count_scores(sigmoid(predictor), labels)
                    estimates.append(estimate_auroc(counts.cases, counts.controls))
                combined = combine_auroc(estimates)
                assert combined is not None
                truth, _ = _site_auroc(rng, mean)
                coverage.add("random-effects mean of AUROC", cell, combined.mean, truth)


def _group_differences(coverage: Coverage) -> None:
    """Simulate the difference of the AUROCs of two groups of subjects (MOVER)."""
    from scipy.stats import norm

    rng = np.random.default_rng(13)
    for n, prevalence in ((50, 0.4), (100, 0.15), (100, 0.4), (300, 0.15)):
        for distances in ((1.2, 1.2), (2.0, 1.2), (2.0, 2.0)):
            cell = f"{n} subjects a group, prevalence {prevalence}, distances {distances}"
            one, other = (float(norm.cdf(distance / math.sqrt(2))) for distance in distances)
            for _ in range(GROUP_SAMPLES):
                estimates = []
                for distance in distances:
                    labels, predictor = _sample(rng, n, prevalence, distance)
                    counts = count_scores(sigmoid(predictor), labels)
                    estimates.append(evaluate_classifier(counts, resamples=0)["auroc"])
                coverage.add("difference of groups", cell, auroc_difference(*estimates), one - other)


def _overall_differences(coverage: Coverage) -> None:
    """Simulate the mean paired difference of AUROC over sites, some too small for an interval of their own."""
    rng = np.random.default_rng(14)
    for sizes, prevalence in (((60, 100, 160, 200), 0.15), ((40, 60, 80), 0.4)):
        cell = f"sites of {sizes} subjects, prevalence {prevalence}"
        for seed in range(PAIRED_SAMPLES):
            differences, errors, rarer = [], [], []
            for n in sizes:
                labels = (rng.random(n) < prevalence).astype(np.int64)
                if min(labels.sum(), n - labels.sum()) < 5:
                    continue
                shared = rng.normal(size=n) + 1.2 * labels
                statistics = {}
                for name in ("one", "two"):
                    p = sigmoid(shared + 0.6 * rng.normal(size=n) - 2)
                    statistics[name] = probability_statistic(np.stack([1 - p, p], 1), labels, [1], "auroc")
                comparison = compare_models(statistics, labels, resamples=RESAMPLES, seed=seed)
                differences.append(comparison.difference("one", "two").value)
                errors.append(comparison.standard_error("one", "two"))
                rarer.append(int(min(labels.sum(), n - labels.sum())))
            coverage.add("overall difference", cell, weighted_difference(differences, errors, rarer), 0.0)


def _weighted(coverage: Coverage) -> None:
    """Simulate the intervals of all classification metrics with inverse probability of censoring weights."""
    for lost in (0.33, 0.5):
        rng = np.random.default_rng([15, int(100 * lost)])
        for n, prevalence, distance in ((150, 0.4, 1.2), (300, 0.15, 2.0), (600, 0.15, 1.2), (600, 0.4, 2.0)):
            truth = _true_metrics(prevalence, distance)
            cell = f"{n} subjects, prevalence {prevalence}, distance {distance}, {lost:.0%} lost"
            for seed in range(WEIGHTED_SAMPLES):
                labels, predictor = _sample(rng, n, prevalence, distance)
                event = np.where(labels == 1, rng.uniform(0, 1, n), 2.0)
                end = np.where(rng.random(n) < lost, rng.uniform(0, 1, n), 2.0)
                is_lost = end < np.minimum(event, 1.0)
                times = np.minimum(np.minimum(event, end), 1.0)
                weights = censoring_weights(
                    list(zip(times.tolist(), (event <= np.minimum(end, 1.0)).tolist(), strict=True)),
                    is_lost.tolist(),
                )
                labels, predictor, weights = labels[~is_lost], predictor[~is_lost], weights[~is_lost]
                counts = count_scores(_model_probabilities(predictor), labels, weights=weights)
                estimates = evaluate_classifier(counts, resamples=WEIGHTED_RESAMPLES, seed=seed)
                for name, estimate in estimates.items():
                    coverage.add(f"weighted {name}", cell, estimate, truth[name])
                sample = labels, predictor, weights
                _add_curves(coverage, "weighted ", cell, sample, (prevalence, distance))
