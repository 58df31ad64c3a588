"""Evaluation of models on test rows: sites release counts, the coordinator adds them and computes metrics.

A site releases counts of cases and controls in bins of the predicted probability, sums of errors, or counts of
concordant pairs, never the score of one subject: neighbouring scores are merged into groups of at least
`min_cell_count` subjects. It releases nothing about fewer subjects than `min_cell_count`, and nothing by an input with
one group that small, because that group could be found by differencing.

Baselines of the community model are the local-only model of each site and, in the lab only, the model of all rows
pooled on one machine. Both also train on the validation rows, so that they are not weaker than necessary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.disclosure.rounding import microaggregate, spread_within_groups
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.metrics.classification import (
    BINS,
    MetricEstimate,
    ScoreHistogram,
    count_scores,
    evaluate_classifier,
    merge_histograms,
    recalibration,
)
from abaton.metrics.predictions import is_survival_label
from abaton.metrics.regression import RegressionSums, add_errors, evaluate_sums, sum_errors
from abaton.metrics.survival import ConcordanceSums, add_pairs, evaluate_survival, sum_pairs
from abaton.models import Examples, Model, train_model
from abaton.study import LearningSection
from abaton.study_run.consented_learner import SubjectRows, to_examples
from abaton.study_run.preparation import PreparedSite, PreparedSites
from abaton.training import TrainSettings

ALL_SITES = "all sites"

EligibleSubjectsOf = Callable[[PreparedSite], frozenset[str]]
"""Returns the subjects of a site whose records may be used."""

_LOCAL_PREFIX = "model/"  # prefix of personal layers in a learner's state
_CURVE_POINTS = 101  # a finer curve would disclose scores of single subjects


@dataclass(frozen=True, slots=True)
class EvaluationGroup:
    """Group of subjects with common results: all, those of one site, or those of one category of an input."""

    name: str
    grouping: str


GroupCounts = Sequence[ScoreHistogram] | RegressionSums | ConcordanceSums
"""Histograms of each class (one against the rest), sums of errors, or concordance sums of survival times."""

SiteCounts = Mapping[EvaluationGroup, GroupCounts]
"""Counts that a site releases about a model, by group."""


class EvaluationTarget(Protocol):
    """Outcome of a study: its classes, or the mean and standard deviation of its scaled values."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of a study's evaluation; none for regression and survival."""

    @property
    def label(self) -> tuple[float, float]:
        """Mean and standard deviation of the label values in a study's evaluation."""


def local_layers(learner: Learner | None) -> dict[str, Vector]:
    """Return the personal layers and other local parts of a learner's state, for the study's evaluation."""
    state = {} if learner is None else learner.local_state
    return {
        name.removeprefix(_LOCAL_PREFIX): values
        for name, values in state.items()
        if name.startswith(_LOCAL_PREFIX)
    }


def evaluate_at_site(
    site: PreparedSite,
    federation: EvaluationTarget,
    model: Model,
    vector: Vector,
    subjects: frozenset[str],
    local: Mapping[str, Vector] | None = None,
) -> SiteCounts:
    """Return the evaluation counts that a site releases about a model, combined with the site's local layers."""
    eligible = np.array([subject in subjects for subject in site.test.subjects], dtype=bool)
    if eligible.sum() < site.min_cell_count:
        return {}
    data = to_examples(site.test)
    predicted = model.score(vector, data, local).predictions
    counts: dict[EvaluationGroup, GroupCounts] = {}
    for group, rows in evaluation_groups(site, eligible):
        counts[group] = count_predictions(predicted[rows], data.y[rows], federation, site.min_cell_count)
    return counts


def evaluation_groups(
    site: PreparedSite, eligible: NDArray[np.bool_]
) -> list[tuple[EvaluationGroup, NDArray[np.bool_]]]:
    """Return the evaluation groups about which a site may release counts, each with a mask of eligible rows."""
    subsets = [(EvaluationGroup(ALL_SITES, "all"), eligible), (EvaluationGroup(site.name, "site"), eligible)]
    for name, groups in site.groups.items():
        labels = np.array(groups, object)
        sizes = Counter(labels[eligible].tolist())
        if min(sizes.values()) >= site.min_cell_count:
            subsets += [
                (EvaluationGroup(f"{name}: {group}", name), eligible & (labels == group))
                for group in sorted(sizes)
            ]
    return subsets


def count_predictions(
    predicted: NDArray[Any], actual: NDArray[Any], federation: EvaluationTarget, min_cell_count: int
) -> GroupCounts:
    """Return releasable evaluation counts of predictions: histograms of probabilities, error or concordance sums."""
    if is_survival_label(actual):
        return sum_pairs(predicted, actual, min_cell_count)
    if not federation.classes:
        mean, std = federation.label
        values = np.asarray(actual, np.float64) * std + mean
        return sum_errors(predicted.reshape(-1).astype(np.float64) * std + mean, values, centre=mean)
    return [
        _merge_small_bins(
            count_scores(np.clip(predicted[:, i], 0, 1), actual == i, bins=BINS), min_cell_count
        )
        for i in case_classes(federation.classes)
    ]


def _merge_small_bins(counts: ScoreHistogram, min_cell_count: int) -> ScoreHistogram:
    """Return an evaluation histogram in groups of at least `min_cell_count`; smaller totals are suppressed."""
    histograms = []
    for histogram in (counts.cases, counts.controls):
        merged = np.zeros_like(histogram)
        bins = np.repeat(np.arange(len(histogram), dtype=np.int64), histogram.astype(np.int64))
        for group_bin, size in microaggregate(bins, min_cell_count):
            merged[group_bin] += size
        histograms.append(merged)
    return ScoreHistogram(counts.scores, *histograms)


def case_classes(classes: Sequence[str]) -> Sequence[int]:
    """Return the indices of the case classes of an evaluation: the second of two, each of more."""
    return [1] if len(classes) == 2 else range(len(classes))


def evaluate_models(
    learning: LearningSection,
    prepared: PreparedSites,
    model: Model,
    models: Mapping[str, Vector],
    eligible_subjects: EligibleSubjectsOf,
    *,
    seed: int = 0,
    bootstrap_resamples: int = 1000,
    local: Mapping[str, Mapping[str, Vector]] | None = None,
) -> dict[str, Any]:
    """Evaluate several models by group: return all metrics as JSON values, with ROC curves and calibration.

    Args:
        learning: The study's learning section.
        prepared: The sites.
        model: The model definition.
        models: Model vectors by name.
        eligible_subjects: Returns the subjects whose test rows may be used.
        seed: Seed of the bootstrap.
        bootstrap_resamples: Number of bootstrap samples for the intervals.
        local: Local layers by site.
    """
    subjects, layers = {site.name: eligible_subjects(site) for site in prepared.sites}, local or {}
    counts = {
        name: [
            evaluate_at_site(site, prepared, model, vector, subjects[site.name], layers.get(site.name))
            for site in prepared.sites
        ]
        for name, vector in models.items()
    }
    min_cell_count = max(site.min_cell_count for site in prepared.sites)
    return evaluate_counts(
        learning,
        prepared.classes,
        min_cell_count,
        counts,
        seed=seed,
        bootstrap_resamples=bootstrap_resamples,
    )


def evaluate_counts(
    learning: LearningSection,
    classes: Sequence[str],
    min_cell_count: int,
    models: Mapping[str, Sequence[SiteCounts]],
    *,
    seed: int = 0,
    bootstrap_resamples: int = 1000,
) -> dict[str, Any]:
    """Evaluate several models from the sites' counts; nothing below `min_cell_count` subjects."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    recalibrations: dict[str, dict[str, Any]] = {}
    bootstrap = seed, bootstrap_resamples
    for name, site_counts in models.items():
        for group in sorted({group for counts in site_counts for group in counts}, key=group_order):
            expanded = [expand_groups(counts[group]) for counts in site_counts if group in counts]
            for case, metrics, subjects in evaluate_group(
                learning, classes, expanded, min_cell_count, bootstrap
            ):
                group_name = f"{group.name}, {case}" if case else group.name
                rows.append(
                    {
                        "model": name, "group": group_name, "grouping": group.grouping, "subjects": subjects,
                        "sites": len(expanded), "metrics": metrics,
                    }
                )  # fmt: skip
            if group.grouping == "all" and len(classes) == 2:
                merged = merge_histograms(
                    histograms[0]
                    for histograms in expanded
                    if not isinstance(histograms, RegressionSums | ConcordanceSums)
                )
                curves[name] = _curves(merged, min_cell_count, learning.metrics)
                recalibrations[name] = _recalibration(merged, min_cell_count)
    return {
        "rows": rows,
        "curves": curves,
        "recalibration": recalibrations,
        "min_cell_count": min_cell_count,
        **({"concordance_pairs": "within sites"} if learning.task == "survival" else {}),
    }


def _recalibration(counts: ScoreHistogram, min_cell_count: int) -> dict[str, Any]:
    """Return the recalibration of an evaluation as JSON values; its status says if and why it is not applicable."""
    if not has_enough_cases(counts, min_cell_count):
        return {"intercept": None, "slope": None, "status": "too few"}
    line = recalibration(counts)
    values = {key: value if math.isfinite(value) else None for key, value in asdict(line).items()}
    return {**values, "status": line.status}


def expand_groups(counts: GroupCounts) -> GroupCounts:
    """Return evaluation counts with merged groups spread out again, as an approximation of single subjects."""
    if isinstance(counts, RegressionSums | ConcordanceSums):
        return counts
    return [
        ScoreHistogram(
            histogram.scores,
            spread_within_groups(histogram.cases, histogram.controls),
            spread_within_groups(histogram.controls, histogram.cases),
        )
        for histogram in counts
    ]


def group_order(group: EvaluationGroup) -> tuple[int, str]:
    """Return the sort key of evaluation groups: all subjects first, then sites, then categories of inputs."""
    return {"all": 0, "site": 1}.get(group.grouping, 2), group.name


def evaluate_group(
    learning: LearningSection,
    classes: Sequence[str],
    site_counts: Sequence[GroupCounts],
    min_cell_count: int,
    bootstrap: tuple[int, int],
) -> list[tuple[str, dict[str, Any] | None, str]]:
    """Evaluate one group: return each case class with the study's metrics and the number of subjects.

    Metrics of groups below `min_cell_count` are None.
    """
    evaluation, names, (seed, bootstrap_resamples) = learning.evaluation, metric_names(learning), bootstrap
    sums = [part for part in site_counts if isinstance(part, RegressionSums)]
    if sums:
        total = add_errors(sums)
        metrics = None
        if total.subjects >= min_cell_count:
            metrics = _to_json_value(evaluate_sums(total, level=evaluation.confidence_level), names)
        return [("", metrics, _format_count(total.subjects, min_cell_count))]
    pairs = [part for part in site_counts if isinstance(part, ConcordanceSums)]
    if pairs:
        total_pairs = add_pairs(pairs)
        is_small = min(total_pairs.events, total_pairs.subjects - total_pairs.events) < min_cell_count
        metrics = None
        if not is_small:
            estimates = evaluate_survival(total_pairs, level=evaluation.confidence_level)
            metrics = _to_json_value(estimates, names)
        return [("", metrics, _format_count(total_pairs.subjects, min_cell_count))]
    histograms = [part for part in site_counts if not isinstance(part, RegressionSums | ConcordanceSums)]
    results: list[tuple[str, dict[str, Any] | None, str]] = []
    for i in range(len(histograms[0])):
        counts = merge_histograms(part[i] for part in histograms)
        metrics = None
        if has_enough_cases(counts, min_cell_count):
            settings = {"specificity": evaluation.specificity, "level": evaluation.confidence_level}
            estimates = evaluate_classifier(
                [part[i] for part in histograms], seed=seed, resamples=bootstrap_resamples, **settings
            )
            metrics = _to_json_value(estimates, names)
        case = classes[i] if len(histograms[0]) > 1 else ""
        results.append((case, metrics, _format_count(counts.subjects, min_cell_count)))
    return results


def has_enough_cases(counts: ScoreHistogram, min_cell_count: int) -> bool:
    """Return whether both cases and controls of an evaluation reach `min_cell_count`."""
    return bool(min(counts.cases.sum(), counts.controls.sum()) >= min_cell_count)


def _curves(counts: ScoreHistogram, min_cell_count: int, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the evaluation curves of the metrics that the study names."""
    if not has_enough_cases(counts, min_cell_count):
        return {}
    fpr, tpr = counts.curve()
    x = np.linspace(0, 1, _CURVE_POINTS)
    bins = max(2, min(10, counts.subjects // (2 * min_cell_count)))
    points = [[predicted, asdict(fraction)] for predicted, fraction in counts.calibration(bins)]
    curves = {
        "auroc": {"roc": [x.tolist(), np.interp(x, fpr, tpr).tolist()]},
        "calibration": {"calibration": points},
    }
    return {key: value for name, curve in curves.items() if name in metrics for key, value in curve.items()}


def metric_names(learning: LearningSection) -> list[str]:
    """Return the metric names of the study's evaluation as they appear in results, in the study's order.

    >>> metric_names(LearningSection(evaluation={"metrics": ["brier", "calibration"]}))
    ['brier', 'calibration slope', 'calibration intercept']
    """
    result_names = {
        "calibration": ("calibration slope", "calibration intercept"),
        "sensitivity": (f"sensitivity at specificity {learning.evaluation.specificity:g}",),
        "r_squared": ("r2",),
    }
    return [name for metric in learning.metrics for name in result_names.get(metric, (metric,))]


def _to_json_value(estimates: Mapping[str, MetricEstimate], names: Sequence[str]) -> dict[str, Any]:
    """Return estimates of the evaluation as JSON values; None for values that are not finite."""
    return {
        name: {key: value if math.isfinite(value) else None for key, value in asdict(estimates[name]).items()}
        for name in names
    }


def _format_count(count: int, min_cell_count: int) -> str:
    return f"<{min_cell_count}" if 0 < count < min_cell_count else str(count)


POOLED = "all data pooled"


def local_only_name(name: str) -> str:
    """Return the name of a site's local-only model in the study's evaluation."""
    return f"{name} (local only)"


def train_baselines(
    prepared: PreparedSites, model: Model, settings: TrainSettings, epochs: int, seed: int
) -> dict[str, Vector]:
    """Train the evaluation's baselines with the study's settings: every site's local-only and the pooled model."""
    models = {
        local_only_name(site.name): train_local_only(model, site.rows, settings, epochs, seed)
        for site in prepared.sites
    }
    pooled = _pool_examples([site.rows for site in prepared.sites])
    return {**models, POOLED: _train(model, pooled, settings, epochs, seed)}


def train_local_only(
    model: Model, rows: SubjectRows, settings: TrainSettings, epochs: int, seed: int
) -> Vector:
    """Train the local-only model of one site, a baseline of the evaluation."""
    return _train(model, _pool_examples([rows]), settings, epochs, seed)


def _train(model: Model, data: Examples, settings: TrainSettings, epochs: int, seed: int) -> Vector:
    full_settings = replace(
        settings, epochs=epochs, update_thresholds=None, time_budget_seconds=0.0, steps=0, proximal_mu=0.0
    )
    return train_model(model, model.initial(seed), data, full_settings, np.random.default_rng(seed)).vector


def _pool_examples(site_rows: Sequence[SubjectRows]) -> Examples:
    examples = [to_examples(table) for rows in site_rows for table in (rows.train, rows.validation)]
    return Examples(
        np.concatenate([part.x for part in examples]), np.concatenate([part.y for part in examples])
    )
