"""Evaluation from what sites release: how often there is a result, its bias, coverage and width.

Calibrated predictions with an AUROC of .856 at all sites. Compared are exact scores in one place, microaggregated
scores, each site's AUROC with noise combined by inverse variance, and bounded sums with noise
of c times the bound, once on the total (as in a secure sum) or at each site. Class sizes have noise of standard
deviation 3, in the same place.

Microaggregation: a site with at least 15 cases and controls releases its scores in groups of five, each at its mean
bin; the centre spreads a group half-way to its neighbours before it adds the sites' histograms.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.benchmark import BenchmarkResult
from abaton.metrics.bounded_sums import (
    BoundedContributions,
    SlopeLine,
    auroc_contributions,
    brier_contributions,
    calibration_contributions,
    slope_contributions,
)
from abaton.metrics.classification import (
    MetricEstimate,
    ScoreHistogram,
    bin_indices,
    bin_scores,
    count_scores,
    evaluate_classifier,
    merge_histograms,
)
from abaton.metrics.logistic_fit import sigmoid
from abaton.metrics.noisy_estimates import (
    ReleasedSizes,
    ReleasedSum,
    estimate_brier,
    estimate_intercept,
    estimate_pairs,
    estimate_slope,
    pairs_error,
)

Floats = NDArray[np.float64]
Site = tuple[Floats, NDArray[np.int64]]

SAMPLES = 1000
AUROC = 0.856
SEPARATION = NormalDist().inv_cdf(AUROC) * math.sqrt(2)
TABLE_SD = 3.0
BINS, GROUP_SIZE, MIN_CLASS_COUNT = 4000, 5, 15  # of microaggregation
METRICS = ("auroc", "calibration intercept", "brier", "calibration slope")
BY_SUMS = ("sums c=1", "sums c=2", "sums at sites c=1", "sums at sites c=2")
METHODS = ("exact", "microaggregated", "site estimates", *BY_SUMS)


@dataclass(frozen=True, slots=True)
class Setting:
    """Sites of one simulation.

    Attributes:
        sites, rows: Number of sites, and subjects of each.
        prevalence: Fraction of cases.
        fraction: Fraction of the subjects that are evaluated, a subgroup.
        targets: Methods whose AUROC, intercept and Brier score must be unbiased and covered.
    """

    sites: int
    rows: int
    prevalence: float
    fraction: float = 1.0
    targets: Sequence[str] = ()

    def __str__(self) -> str:
        group = "" if self.fraction == 1 else f", subgroup of {100 * self.fraction:g} %"
        return f"{self.sites} x {self.rows}, {self.prevalence:g}{group}"


SETTINGS = (
    Setting(4, 50, 0.03),
    Setting(4, 100, 0.03),
    Setting(4, 300, 0.03),
    Setting(4, 50, 0.15),
    Setting(4, 100, 0.15, targets=BY_SUMS),
    Setting(4, 300, 0.15, targets=BY_SUMS),
    Setting(10, 50, 0.03),
    Setting(10, 100, 0.03),
    Setting(10, 50, 0.15),
    Setting(10, 100, 0.15, targets=BY_SUMS),
    Setting(4, 100, 0.15, 0.3, targets=BY_SUMS[:1]),
    Setting(10, 100, 0.15, 0.3, targets=BY_SUMS[:3]),
    Setting(4, 300, 0.15, 0.3, targets=BY_SUMS),
)


@dataclass(slots=True)
class Summary:
    """Estimates of one metric by one method over all samples."""

    values: list[float] = field(default_factory=list)
    is_covered: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, estimate: MetricEstimate, truth: float) -> None:
        """Add an estimate, if there is one with an interval."""
        if math.isfinite(estimate.value) and math.isfinite(estimate.high - estimate.low):
            self.values.append(estimate.value - truth)
            self.is_covered.append(estimate.low <= truth <= estimate.high)
            self.widths.append(estimate.high - estimate.low)

    def cell(self) -> str:
        """Return released %, bias, coverage and width."""
        if len(self.values) < SAMPLES / 100:
            return "never"
        released = 100 * len(self.values) / SAMPLES
        return f"{released:.0f} / {self.bias:+.3f} / {self.coverage:.2f} / {float(np.mean(self.widths)):.2f}"

    @property
    def bias(self) -> float:
        """Mean difference to the true value."""
        return float(np.mean(self.values))

    @property
    def bias_error(self) -> float:
        """Standard error of the bias in this simulation."""
        return float(np.std(self.values) / math.sqrt(len(self.values)))

    @property
    def coverage(self) -> float:
        """Fraction of intervals with the true value."""
        return float(np.mean(self.is_covered))


def run() -> list[BenchmarkResult]:
    """Simulate all settings and print their tables."""
    results = []
    tables: dict[str, list[str]] = {metric: [] for metric in METRICS}
    for number, setting in enumerate(SETTINGS):
        summaries = simulate(setting, np.random.default_rng(number))
        for metric in METRICS:
            cells = [summaries[metric, method].cell() for method in METHODS]
            tables[metric].append(" | ".join([str(setting), *cells]))
        results += list(_results(setting, summaries))
    for metric, rows in tables.items():
        print(f"{metric}: released % / bias / coverage / width", file=sys.stderr)
        print("\n".join([" | ".join(["setting", *METHODS]), *rows, ""]), file=sys.stderr)
    return results


def _results(setting: Setting, summaries: dict[tuple[str, str], Summary]) -> Iterator[BenchmarkResult]:
    """Yield bias and coverage with targets; two standard errors of the simulation are allowed."""
    for metric in METRICS:
        for method in METHODS:
            summary, is_target = summaries[metric, method], method in setting.targets and metric != METRICS[3]
            if len(summary.values) < SAMPLES / 100:
                continue
            slack = 2 * math.sqrt(0.95 * 0.05 / len(summary.values))
            holds = (
                abs(summary.bias) < 0.01 + 2 * summary.bias_error,
                0.92 - slack <= summary.coverage <= 0.98 + slack,
            )
            label = f"{setting}: {metric}, {method}"
            for name, value, target, is_met in zip(
                ("bias", "coverage"),
                (summary.bias, summary.coverage),
                ("< .01", ".92 to .98"),
                holds,
                strict=True,
            ):
                unit = "difference" if name == "bias" else "fraction"
                yield BenchmarkResult(
                    f"{label}: {name}",
                    value,
                    unit,
                    target if is_target else None,
                    is_met if is_target else None,
                )


def simulate(setting: Setting, rng: np.random.Generator) -> dict[tuple[str, str], Summary]:
    """Return the estimates of all methods over the samples of a setting."""
    summaries: dict[tuple[str, str], Summary] = defaultdict(Summary)
    true_brier = float(np.mean([(p - y) @ (p - y) / len(y) for p, y in [_draw(10**6, setting, rng)]]))
    truths = dict(zip(METRICS, (AUROC, 0.0, true_brier, 1.0), strict=True))
    for _ in range(SAMPLES):
        sites = [_draw(setting.rows, setting, rng) for _ in range(setting.sites)]
        for method, estimates in _estimates(sites, rng):
            for metric, estimate in estimates.items():
                summaries[metric, method].add(estimate, truths[metric])
    return summaries


def _draw(rows: int, setting: Setting, rng: np.random.Generator) -> Site:
    """Draw predictions and outcomes of a site's evaluated subjects."""
    n = rows if setting.fraction == 1 else int(rng.binomial(rows, setting.fraction))
    labels = (rng.random(n) < setting.prevalence).astype(np.int64)
    scores = rng.normal(size=n) + SEPARATION * labels
    base = math.log(setting.prevalence / (1 - setting.prevalence))
    return sigmoid(base + SEPARATION * scores - SEPARATION**2 / 2), labels


def _estimates(
    sites: Sequence[Site], rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, MetricEstimate]]]:
    """Yield the metrics by each method; exact and microaggregated ones without slope at small cost."""
    yield "exact", _from_histogram(count_scores(*(np.concatenate(part) for part in zip(*sites, strict=True))))
    released = [histogram for site in sites if (histogram := release_histogram(*site))]
    if released:
        yield "microaggregated", _from_histogram(merge_histograms(released))
    yield "site estimates", {"auroc": _by_site_estimates(sites, rng)}
    fixed = {
        metric: [contribute(*site) for site in sites]
        for metric, contribute in zip(
            METRICS[:3], (auroc_contributions, calibration_contributions, brier_contributions), strict=True
        )
    }
    cases = float(sum(labels.sum() for _, labels in sites))
    controls = float(sum(len(labels) for _, labels in sites)) - cases
    for method, (multiplier, parts) in zip(
        BY_SUMS, ((1, 1), (2, 1), (1, len(sites)), (2, len(sites))), strict=True
    ):
        yield method, _by_sums(sites, fixed, (cases, controls), multiplier * math.sqrt(parts), parts, rng)


def _by_sums(
    sites: Sequence[Site],
    fixed: dict[str, list[BoundedContributions]],
    counts: tuple[float, float],
    noise: float,
    parts: int,
    rng: np.random.Generator,
) -> dict[str, MetricEstimate]:
    """Return the metrics from sums with noise; `noise` is its standard deviation over the bound, of the total."""
    sd = TABLE_SD * math.sqrt(parts)
    cases, controls = np.array(counts) + sd * rng.normal(size=2)
    sizes = ReleasedSizes(float(cases), float(controls), sd, len(sites))

    def total(contributions: Sequence[BoundedContributions], factor: float = 1.0) -> ReleasedSum:
        values = np.sum([part.rows.sum(0) for part in contributions], axis=0)
        total_sd = factor * noise * contributions[0].bound
        return ReleasedSum(values + total_sd * rng.normal(size=len(values)), total_sd)

    def slope_sum(line: SlopeLine, factor: float) -> ReleasedSum:
        return total([slope_contributions(*site, line) for site in sites], factor)

    estimators: Sequence[Callable[[ReleasedSum, ReleasedSizes], MetricEstimate]] = (
        estimate_pairs,
        estimate_intercept,
        estimate_brier,
    )
    estimates = {
        metric: estimate(total(fixed[metric]), sizes)
        for metric, estimate in zip(METRICS[:3], estimators, strict=True)
    }
    return {**estimates, "calibration slope": estimate_slope(slope_sum, sizes)}


def _by_site_estimates(sites: Sequence[Site], rng: np.random.Generator) -> MetricEstimate:
    """Return the AUROCs of sites with enough subjects and little noise, combined by inverse variance."""
    known = []
    for probabilities, labels in sites:
        contributions = auroc_contributions(probabilities, labels)
        total = ReleasedSum(contributions.rows.sum(0) + rng.normal(size=2), 1.0)
        cases, controls = np.array([labels.sum(), (1 - labels).sum()]) + TABLE_SD * rng.normal(size=2)
        value, error, _ = pairs_error(total, ReleasedSizes(float(cases), float(controls), TABLE_SD))
        if math.isfinite(value) and error > 0:
            known.append((value, error))
    if not known:
        return MetricEstimate(math.nan, math.nan, math.nan)
    values, errors = np.array(known).T
    weights = errors**-2 / (errors**-2).sum()
    mean, half_width = float(weights @ values), 1.96 * float(np.sqrt((errors**-2).sum() ** -1))
    return MetricEstimate(mean, mean - half_width, mean + half_width)


def _from_histogram(histogram: ScoreHistogram) -> dict[str, MetricEstimate]:
    """Return the metrics of a histogram of all sites."""
    estimates = evaluate_classifier(histogram, resamples=0)
    return {metric: estimates[metric] for metric in METRICS}


def release_histogram(probabilities: Floats, labels: NDArray[np.int64]) -> ScoreHistogram | None:
    """Return the histogram that the centre restores from a site's groups; None with a small class."""
    bins, is_case = bin_indices(probabilities, BINS), labels == 1
    if min(is_case.sum(), (~is_case).sum()) < MIN_CLASS_COUNT:
        return None
    cases, controls = (merge_scores(bins[members]) for members in (is_case, ~is_case))
    return ScoreHistogram(bin_scores(BINS), spread_groups(cases), spread_groups(controls))


def merge_scores(bins: NDArray[np.int64]) -> Floats:
    """Return the number of subjects at the mean bin of each group of neighbouring scores."""
    merged = np.zeros(BINS)
    for group in np.array_split(np.sort(bins), len(bins) // GROUP_SIZE):
        merged[int(np.rint(group.mean()))] += len(group)
    return merged


def spread_groups(counts: Floats) -> Floats:
    """Return counts with each group spread evenly to half of the distance to its neighbours."""
    spread, bins = np.zeros(len(counts)), np.flatnonzero(counts)
    if len(bins) < 2:
        return counts
    between = (bins[1:] + bins[:-1]) / 2
    edges = np.concatenate([[2 * bins[0] - between[0]], between, [2 * bins[-1] - between[-1]]])
    for i, group_bin in enumerate(bins):
        points = int(counts[group_bin])
        targets = np.rint(edges[i] + (np.arange(points) + 0.5) / points * (edges[i + 1] - edges[i]))
        np.add.at(spread, np.clip(targets, 0, len(counts) - 1).astype(np.int64), 1.0)
    return spread
