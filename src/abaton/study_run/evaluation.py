"""Evaluation of models on test rows, from counts of cases and controls, sums of errors, or counts of concordant pairs.

On one machine the counts are exact. On a network a site releases counts of cases and controls in bins of the predicted
probability, never the score of one subject: neighbouring scores are merged into groups of at least `min_cell_count`
subjects. Such groups bias the AUROC upwards where they are large compared with the number of cases, so a site
contributes cases and controls together or not at all, and only with `3 * min_cell_count` of each. It releases nothing
about fewer subjects than `min_cell_count`, and nothing by an input of which a group that small could be found by
differencing.

On one machine the recalibration of a model is fitted on the validation rows of all sites and evaluated on their test
rows. On a network there is none: sites release no counts of validation rows.

The metric that a site itself computed for its local benefit replaces the one from counts (`local_benefit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from abaton.disclosure.microaggregation import microaggregate, spread_within_groups
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.metrics.classification import (
    BINS,
    MetricEstimate,
    ScoreHistogram,
    count_scores,
    estimate_to_json,
    evaluate_classifier,
    merge_histograms,
    recalibration,
)
from abaton.metrics.classification_intervals import MIN_CLASS_COUNT
from abaton.metrics.predictions import is_survival_label
from abaton.metrics.regression import RegressionSums, add_errors, evaluate_sums, releasable_sums, sum_errors
from abaton.metrics.survival import ConcordanceSums, add_pairs, evaluate_survival, sum_pairs
from abaton.models import Examples, Model
from abaton.study import LearningSection
from abaton.study_run.baselines import Baseline, baseline_kind
from abaton.study_run.consented_learner import select_rows, to_examples
from abaton.study_run.preparation import PreparedSite, PreparedSites

ALL_SITES = "all sites"

EligibleSubjectsOf = Callable[[PreparedSite], frozenset[str]]
"""Returns the subjects of a site whose records may be used."""

_LOCAL_PREFIX = "model/"  # prefix of personal layers in a learner's state
_CURVE_POINTS = 101  # a finer curve would disclose scores of single subjects
MIN_CASES = 10  # cases, and controls, of all sites in a group of an input
_CONTRIBUTION_FACTOR = 3  # times min_cell_count: cases, and controls, of a site in merged counts


@dataclass(frozen=True, slots=True)
class EvaluationGroup:
    """Group of subjects with common results: all, those of one site, or those of one category of an input."""

    name: str
    grouping: str


_ALL_SUBJECTS = EvaluationGroup(ALL_SITES, "all")

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
    *,
    is_exact: bool = False,
) -> SiteCounts:
    """Return the evaluation counts of a model at a site, combined with the site's local layers.

    They are those that a site releases on a network or, with `is_exact`, those for one machine.
    """

    def predict(data: Examples) -> NDArray[Any]:
        return model.score(vector, data, local).predictions

    return count_at_site(site, federation, predict, subjects, is_exact=is_exact)


def count_at_site(
    site: PreparedSite,
    federation: EvaluationTarget,
    predict: Callable[[Examples], NDArray[Any]],
    subjects: frozenset[str],
    *,
    is_exact: bool = False,
) -> SiteCounts:
    """Return the evaluation counts of predictions for a site's test rows, by group; none of too few subjects."""
    eligible = np.array([subject in subjects for subject in site.test.subjects], dtype=bool)
    if eligible.sum() < site.min_cell_count:
        return {}
    predicted, actual, weights = predict(to_examples(site.test)), site.test.y, site.test.weights
    min_cell_count, counts = 0 if is_exact else site.min_cell_count, dict[EvaluationGroup, GroupCounts]()
    for group, rows in evaluation_groups(site, eligible, is_exact=is_exact):
        row_weights = None if weights is None else weights[rows]
        arrays = predicted[rows], actual[rows]
        counts[group] = count_predictions(*arrays, federation, min_cell_count, row_weights)
    return counts


def evaluation_groups(
    site: PreparedSite, eligible: NDArray[np.bool_], *, is_exact: bool = False
) -> list[tuple[EvaluationGroup, NDArray[np.bool_]]]:
    """Return the evaluation groups about which a site has counts, each with a mask of eligible rows.

    Unless exact counts stay on the machine, an input has groups only if no count of subjects or of a class below
    `min_cell_count` is the difference of the total and the groups that the site releases; survival events may be.
    """
    subsets = [(_ALL_SUBJECTS, eligible), (EvaluationGroup(site.name, "site"), eligible)]
    for name, groups in site.groups.items():
        labels = np.array(groups, object)
        masks = {group: eligible & (labels == group) for group in sorted(set(labels[eligible].tolist()))}
        if is_exact or not _reveals_small_counts(site, eligible, list(masks.values())):
            subsets += [(EvaluationGroup(f"{name}: {group}", name), rows) for group, rows in masks.items()]
    return subsets


def _reveals_small_counts(
    site: PreparedSite, eligible: NDArray[np.bool_], masks: Sequence[NDArray[np.bool_]]
) -> bool:
    """Return whether the evaluation groups of an input reveal a count below `min_cell_count` by differencing."""
    min_cell_count, y = site.min_cell_count, site.test.y
    if min(int(rows.sum()) for rows in masks) < min_cell_count:
        return True

    def is_released(rows: NDArray[np.bool_], case: int) -> bool:
        cases = int((y[rows] == case).sum())
        return min(cases, int(rows.sum()) - cases) >= _CONTRIBUTION_FACTOR * min_cell_count

    for case in case_classes(site.test.classes) if site.test.classes else ():
        suppressed = [rows for rows in masks if not is_released(rows, case)]
        if is_released(eligible, case) and suppressed:
            remaining = np.logical_or.reduce(suppressed)
            cases = int((y[remaining] == case).sum())
            if min(cases, int(remaining.sum()) - cases) < min_cell_count:
                return True
    return False


def count_predictions(
    predicted: NDArray[Any],
    actual: NDArray[Any],
    federation: EvaluationTarget,
    min_cell_count: int,
    weights: NDArray[np.float64] | None = None,
) -> GroupCounts:
    """Return evaluation counts of predictions: histograms of probabilities, error or concordance sums.

    They may be released with this `min_cell_count`; with 0 they are exact, and have the weights of the subjects.
    """
    if is_survival_label(actual):
        return sum_pairs(predicted, actual, min_cell_count)
    if not federation.classes:
        mean, std = federation.label
        values = np.asarray(actual, np.float64) * std + mean
        sums = sum_errors(predicted.reshape(-1).astype(np.float64) * std + mean, values, centre=mean)
        return releasable_sums(sums) if min_cell_count else sums
    form: dict[str, Any] = {"bins": BINS} if min_cell_count else {"weights": weights}
    cases = case_classes(federation.classes)
    histograms = [count_scores(np.clip(predicted[:, i], 0, 1), actual == i, **form) for i in cases]
    return [_merge_small_bins(h, min_cell_count) for h in histograms] if min_cell_count else histograms


def _merge_small_bins(counts: ScoreHistogram, min_cell_count: int) -> ScoreHistogram:
    """Return an evaluation histogram in groups of at least `min_cell_count`; zeros with few cases or controls."""
    histograms = []
    has_enough = has_enough_cases(counts, _CONTRIBUTION_FACTOR * min_cell_count)
    for histogram in (counts.cases, counts.controls):
        merged = np.zeros_like(histogram)
        bins = np.repeat(np.arange(len(histogram), dtype=np.int64), histogram.astype(np.int64))
        for group_bin, size in microaggregate(bins, min_cell_count) if has_enough else ():
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
    models: Mapping[str, Vector | Baseline],
    eligible_subjects: EligibleSubjectsOf,
    *,
    seed: int = 0,
    bootstrap_resamples: int = 1000,
    local: Mapping[str, Mapping[str, Vector]] | None = None,
) -> dict[str, Any]:
    """Evaluate several models on one machine by group: return all metrics as JSON values, with curves.

    Nothing leaves the machine, so the counts are exact.

    Args:
        learning: The study's learning section.
        prepared: The sites.
        model: The model definition.
        models: Model vectors and baselines by name.
        eligible_subjects: Returns the subjects whose test rows may be used.
        seed: Seed of the bootstrap.
        bootstrap_resamples: Number of bootstrap samples for the intervals.
        local: Local layers by site.
    """
    layers = local or {}

    def count(site: PreparedSite, entry: Vector | Baseline) -> SiteCounts:
        def predict(data: Examples) -> NDArray[Any]:
            if isinstance(entry, Baseline):
                return entry.predict(data.x)
            return model.score(entry, data, layers.get(site.name)).predictions

        return count_at_site(site, prepared, predict, subjects[site.name], is_exact=True)

    subjects = {site.name: eligible_subjects(site) for site in prepared.sites}
    counts = {name: [count(site, entry) for site in prepared.sites] for name, entry in models.items()}
    min_cell_count = max(site.min_cell_count for site in prepared.sites)
    baselines = {
        name: baseline_kind(entry.selected) for name, entry in models.items() if isinstance(entry, Baseline)
    }
    results = evaluate_counts(
        learning,
        prepared.classes,
        min_cell_count,
        counts,
        seed=seed,
        bootstrap_resamples=bootstrap_resamples,
        is_exact=True,
    )
    if len(prepared.classes) == 2:
        results["recalibration"] = {
            name: _recalibration(
                _validation_counts(prepared, model, entry, subjects, layers),
                [part[0] for part in _histograms(_contributions(counts[name], _ALL_SUBJECTS))],
                learning.evaluation.confidence_level,
            )
            for name, entry in models.items()
            if not isinstance(entry, Baseline)
        }
    return {**results, "baselines": baselines} if baselines else results


def _validation_counts(
    prepared: PreparedSites,
    model: Model,
    vector: Vector,
    subjects: Mapping[str, frozenset[str]],
    local: Mapping[str, Mapping[str, Vector]],
) -> list[ScoreHistogram]:
    """Return the exact counts of an evaluated model on each site's validation rows in force, for two classes."""
    histograms = []
    for site in prepared.sites:
        validation = site.rows.validation
        eligible = np.array([subject in subjects[site.name] for subject in validation.subjects], dtype=bool)
        if eligible.any():
            data = to_examples(select_rows(validation, eligible))
            predicted = model.score(vector, data, local.get(site.name)).predictions[:, 1]
            histograms.append(count_scores(np.clip(predicted, 0, 1), data.y, weights=data.weights))
    return histograms


def evaluate_counts(
    learning: LearningSection,
    classes: Sequence[str],
    min_cell_count: int,
    models: Mapping[str, Sequence[SiteCounts]],
    *,
    seed: int = 0,
    bootstrap_resamples: int = 1000,
    is_exact: bool = False,
) -> dict[str, Any]:
    """Evaluate several models from the sites' counts, exact or expanded; nothing below `min_cell_count` subjects.

    A row states how many sites and subjects contributed to it.
    """
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    bootstrap = seed, bootstrap_resamples
    for name, site_counts in models.items():
        for group in _groups_to_evaluate(site_counts, min_cell_count):
            contributions = _contributions(site_counts, group)
            is_subgroup = group.grouping not in ("all", "site")
            min_cases = max(min_cell_count, MIN_CASES if is_subgroup else 0)
            for case, metrics, subjects, sites in evaluate_group(
                learning, classes, contributions, min_cell_count, bootstrap, min_cases=min_cases
            ):
                group_name = f"{group.name}, {case}" if case else group.name
                rows.append(
                    {
                        "model": name, "group": group_name, "grouping": group.grouping, "subjects": subjects,
                        "sites": sites, "metrics": metrics,
                    }
                )  # fmt: skip
            if group.grouping == "all" and len(classes) == 2 and contributions:
                merged = merge_histograms(part[0] for part in _histograms(contributions))
                curves[name] = _curves(merged, min_cell_count, learning.metrics)
    return {
        "rows": rows,
        "curves": curves,
        "recalibration": {name: no_recalibration("not released") for name in models if len(classes) == 2},
        "min_cell_count": min_cell_count,
        "is_exact": is_exact,
        **({"concordance_pairs": "within sites"} if learning.task == "survival" else {}),
    }


def no_recalibration(status: str) -> dict[str, Any]:
    """Return the entry of an evaluated model without recalibration."""
    return {"intercept": None, "slope": None, "status": status, "test": None}


def _recalibration(
    validation: Sequence[ScoreHistogram], test: Sequence[ScoreHistogram], level: float
) -> dict[str, Any]:
    """Return the recalibration of an evaluated model as JSON values; its status says if and why it is not applicable.

    Args:
        validation: Counts of the sites' validation rows, on which it is fitted.
        test: Counts of the sites' test rows, on which it is evaluated: 'test' is the calibration after it.
        level: Confidence level.
    """
    if not validation or not has_enough_cases(counts := merge_histograms(validation), MIN_CLASS_COUNT):
        return no_recalibration("too few")
    line = recalibration(counts)
    values = {key: value if math.isfinite(value) else None for key, value in asdict(line).items()}
    calibration = None
    if line.is_applicable and test and has_enough_cases(merged := merge_histograms(test), MIN_CLASS_COUNT):
        corrected = replace(merged, scores=line.apply(merged.scores))
        estimates = evaluate_classifier(corrected, resamples=0, level=level)
        calibration = _to_json_value(estimates, ["calibration slope", "calibration intercept"])
    return {**values, "status": line.status, "test": calibration}


def _groups_to_evaluate(site_counts: Sequence[SiteCounts], min_cell_count: int) -> list[EvaluationGroup]:
    """Return the evaluation groups with a contribution, without inputs that have a group of few subjects in total."""
    groups = {group for counts in site_counts for group in counts}
    sizes = {
        group: sum(evaluated_subjects(part) for part in _contributions(site_counts, group))
        for group in groups
    }
    small = {group.grouping for group, size in sizes.items() if 0 < size < min_cell_count} - {"all", "site"}
    selected = [
        group for group in groups if group.grouping == "all" or (sizes[group] and group.grouping not in small)
    ]
    return sorted(selected, key=group_order)


def _contributions(site_counts: Sequence[SiteCounts], group: EvaluationGroup) -> list[GroupCounts]:
    """Return the evaluation counts of the sites that contribute subjects to a group."""
    return [counts[group] for counts in site_counts if group in counts and evaluated_subjects(counts[group])]


def evaluated_subjects(counts: GroupCounts) -> int:
    """Return how many subjects of a site an evaluation uses; of survival none without a comparable pair."""
    if isinstance(counts, ConcordanceSums):
        return counts.subjects if counts.pairs else 0
    if isinstance(counts, RegressionSums):
        return counts.subjects
    return max(histogram.subjects for histogram in counts)


def _histograms(site_counts: Sequence[GroupCounts]) -> list[Sequence[ScoreHistogram]]:
    return [part for part in site_counts if not isinstance(part, RegressionSums | ConcordanceSums)]


def expand_counts(counts: SiteCounts) -> SiteCounts:
    """Return a site's released evaluation counts with merged groups spread out again."""
    return {group: expand_groups(part) for group, part in counts.items()}


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
    *,
    min_cases: int,
) -> list[tuple[str, dict[str, Any] | None, str, int]]:
    """Evaluate one group: return each case class with the study's metrics, the number of subjects and of sites.

    Metrics of values below `min_cell_count` subjects, of others below `min_cases` cases or controls, are None.
    """
    evaluation, names, (seed, bootstrap_resamples) = learning.evaluation, metric_names(learning), bootstrap
    if not site_counts:
        return [("", None, "0", 0)]
    metrics = None
    sums = [part for part in site_counts if isinstance(part, RegressionSums)]
    if sums:
        total = add_errors(sums)
        if total.subjects >= min_cell_count:
            metrics = _to_json_value(evaluate_sums(total, level=evaluation.confidence_level), names)
        return [("", metrics, _format_count(total.subjects, min_cell_count), len(sums))]
    pairs = [part for part in site_counts if isinstance(part, ConcordanceSums)]
    if pairs:
        total_pairs = add_pairs(pairs)
        if min(total_pairs.events, total_pairs.subjects - total_pairs.events) >= min_cases:
            estimates = evaluate_survival(total_pairs, level=evaluation.confidence_level)
            metrics = _to_json_value(estimates, names)
        return [("", metrics, _format_count(total_pairs.subjects, min_cell_count), len(pairs))]
    histograms = _histograms(site_counts)
    results: list[tuple[str, dict[str, Any] | None, str, int]] = []
    for i in range(len(histograms[0])):
        counts = merge_histograms(part[i] for part in histograms)
        metrics = None
        if has_enough_cases(counts, min_cases):
            settings = {"specificity": evaluation.specificity, "level": evaluation.confidence_level}
            estimates = evaluate_classifier(
                [part[i] for part in histograms], seed=seed, resamples=bootstrap_resamples, **settings
            )
            metrics = _to_json_value(estimates, names)
        case = classes[i] if len(histograms[0]) > 1 else ""
        sites = sum(part[i].subjects > 0 for part in histograms)
        results.append((case, metrics, _format_count(counts.subjects, min_cell_count), sites))
    return results


def has_enough_cases(counts: ScoreHistogram, min_cell_count: int) -> bool:
    """Return whether both cases and controls of an evaluation reach `min_cell_count`."""
    return bool(min(counts.unweighted.cases.sum(), counts.unweighted.controls.sum()) >= min_cell_count)


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
    return {name: estimate_to_json(estimates[name]) for name in names}


def _format_count(count: int, min_cell_count: int) -> str:
    return f"<{min_cell_count}" if 0 < count < min_cell_count else str(count)
