"""Model interpretability from sums of the sites: permutation importance, partial dependence, calibration, decisions.

A site permutes an input among its test rows, or sets it to one value for all of them, applies the model again, and
releases counts of predicted probabilities or mean predictions. It releases nothing about fewer subjects than
`min_cell_count`, and nothing if the study needs more evaluations than the site's
`limits.max_interpretability_requests`.

Grid points are steps of the common standard deviation, or follow from the knots of a spline, so no subject's extreme
value is released. Permutation within sites gives no importance to inputs that only separate sites. The columns of a
spline are permuted and set together: they are one input.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.features import FeatureColumn, SplineBasis
from abaton.layout import Vector
from abaton.learners import PersonalLayersModel
from abaton.metrics.classification import auroc, merge_histograms, net_benefit
from abaton.metrics.regression import RegressionSums, add_errors
from abaton.metrics.survival import ConcordanceSums, add_pairs, evaluate_survival
from abaton.models import Examples, Model
from abaton.study.evaluation_section import InterpretabilitySection
from abaton.study_run.consented_learner import to_examples
from abaton.study_run.evaluation import (
    ALL_SITES,
    EvaluationGroup,
    EvaluationTarget,
    GroupCounts,
    SiteCounts,
    count_predictions,
    evaluate_at_site,
    evaluated_subjects,
    group_order,
    has_enough_cases,
)
from abaton.study_run.preparation import PreparedSite

_GRID_STDS = 2.0  # extent of a grid in standard deviations around the mean
_DIGITS = 4  # of a mean prediction: further digits would only help to identify the test subjects
_THRESHOLDS = np.linspace(0.01, 0.99, 99)


@dataclass(frozen=True, slots=True)
class DependencePoint:
    """Grid point of a partial dependence: a value that an input is set to for all subjects.

    Attributes:
        name: A category, no or yes, the number of standard deviations from the common mean, or the value of an input
            with a spline.
        cells: Column values by column index.
    """

    name: str | float
    cells: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class SiteInterpretability:
    """Interpretability counts of one site.

    Attributes:
        subjects: Number of test subjects.
        counts: Counts of the unchanged model by group.
        permuted: By input, the counts of all subjects for each permutation.
        means: By input, for each grid point the mean prediction of every case, or of the value.
    """

    subjects: int
    counts: SiteCounts
    permuted: Mapping[str, Sequence[GroupCounts]]
    means: Mapping[str, Sequence[Sequence[float]]]


def columns_by_input(columns: Sequence[FeatureColumn]) -> dict[str, list[int]]:
    """Return the indices of every input's columns in a scaled table, for the study's interpretability."""
    indices: dict[str, list[int]] = {}
    for i, column in enumerate(_model_columns(columns)):
        indices.setdefault(column.input, []).append(i)
    return indices


def _model_columns(columns: Sequence[FeatureColumn]) -> list[FeatureColumn]:
    """Return the columns of a scaled table; each column of a spline keeps input and spline of its source."""
    return [replace(column, name=name) for column in columns for name in column.model_columns]


def interpretability_requests(section: InterpretabilitySection, columns: Sequence[FeatureColumn]) -> int:
    """Return how often a study's interpretability applies the model to all test subjects."""
    model_columns = _model_columns(columns)
    category_counts = {
        name: len(_categories(model_columns, indices)) for name, indices in columns_by_input(columns).items()
    }
    return section.evaluations(category_counts)


def grid_points(
    section: InterpretabilitySection, name: str, columns: Sequence[FeatureColumn]
) -> list[DependencePoint]:
    """Return the grid of partial dependence for an input: its categories, no and yes, or steps around the mean."""
    indices, model_columns = columns_by_input(columns)[name], _model_columns(columns)
    reference = dict.fromkeys(indices, 0.0)
    if categories := _categories(model_columns, indices):
        return [DependencePoint(category, {**reference, **cells}) for category, cells in categories]
    steps = np.linspace(-_GRID_STDS, _GRID_STDS, section.grid_points)
    if (spline := model_columns[indices[0]].spline) is not None:
        return [_spline_point(spline, spline.reference_value(float(step)), indices) for step in steps]
    return [DependencePoint(float(step), {**reference, indices[0]: float(step)}) for step in steps]


def _spline_point(spline: SplineBasis, value: float, indices: Sequence[int]) -> DependencePoint:
    """Return the grid point of partial dependence at which an input with a spline has this value."""
    cells = dict.fromkeys(indices, 0.0) | dict(
        zip(indices, spline.columns(np.array([value]))[0], strict=False)
    )
    return DependencePoint(value, {index: float(cell) for index, cell in cells.items()})


def _categories(
    columns: Sequence[FeatureColumn], indices: Sequence[int]
) -> list[tuple[str, dict[int, float]]]:
    """Return the categories of an input on the grid of partial dependence; nothing for a numeric input."""
    name = columns[indices[0]].input
    if columns[indices[0]].is_numeric:
        return []
    value_columns = [i for i in indices if columns[i].name != f"{name} missing"]
    if len(value_columns) == 1:
        return [("no", {value_columns[0]: 0.0}), ("yes", {value_columns[0]: 1.0})]
    return [(columns[i].name.removeprefix(f"{name}="), {i: 1.0}) for i in value_columns]


def explain_at_site(
    site: PreparedSite,
    section: InterpretabilitySection,
    columns: Sequence[FeatureColumn],
    federation: EvaluationTarget,
    model: Model,
    vector: Vector,
    subjects: frozenset[str],
    *,
    seed: int,
    local: Mapping[str, Vector] | None = None,
    is_exact: bool = False,
) -> SiteInterpretability | str:
    """Return one site's interpretability counts, exact for one machine, or the reason why it releases none."""
    limit = site.file.config.limits.max_interpretability_requests
    if limit is not None and interpretability_requests(section, columns) > limit:
        requests = interpretability_requests(section, columns)
        return f"the site allows {limit} interpretability requests, the study needs {requests}"
    eligible = np.array([subject in subjects for subject in site.test.subjects], dtype=bool)
    if eligible.sum() < site.min_cell_count:
        return f"fewer than {site.min_cell_count} subjects to test"
    counts = evaluate_at_site(site, federation, model, vector, subjects, local, is_exact=is_exact)
    data, min_cell_count = to_examples(site.test), 0 if is_exact else site.min_cell_count
    rows = data.select(eligible)

    def predict(x: NDArray[Any]) -> NDArray[Any]:
        return model.score(vector, Examples(x, rows.y), local).predictions

    permuted = {
        name: [
            count_predictions(
                predict(_permute(rows.x, indices, (seed, name, repeat, site.name))),
                rows.y,
                federation,
                min_cell_count,
                rows.weights,
            )
            for repeat in range(section.permutation_repeats)
        ]
        for name, indices in columns_by_input(columns).items()
        if section.permutation_repeats
    }
    means = {
        name: [
            _mean_prediction(predict(_set_input(rows.x, point)), federation)
            for point in grid_points(section, name, columns)
        ]
        for name in section.partial_dependence
    }
    return SiteInterpretability(len(rows), counts, permuted, means)


def _permute(x: NDArray[Any], indices: Sequence[int], seeds: tuple[int, str, int, str]) -> NDArray[Any]:
    """Return the rows with the columns of one input permuted together, for permutation importance."""
    seed, name, repeat, site = seeds
    rng = np.random.default_rng([seed, repeat, zlib.crc32(name.encode()), zlib.crc32(site.encode())])
    permuted = x.copy()
    permuted[:, indices] = x[rng.permutation(len(x))][:, indices]
    return permuted


def _set_input(x: NDArray[Any], point: DependencePoint) -> NDArray[Any]:
    changed = x.copy()
    for index, value in point.cells.items():
        changed[:, index] = value
    return changed


def _mean_prediction(predicted: NDArray[Any], federation: EvaluationTarget) -> list[float]:
    """Return the mean prediction for partial dependence: the probability of each case, or the value."""
    if not federation.classes:
        mean, std = federation.label
        means = np.array([float(predicted.mean()) * std + mean])
    else:
        means = predicted.mean(axis=0)[1:] if len(federation.classes) == 2 else predicted.mean(axis=0)
    return [round(float(value), _DIGITS) for value in means]


def combine_interpretability(
    section: InterpretabilitySection,
    columns: Sequence[FeatureColumn],
    deployment: Mapping[str, Any],
    min_cell_count: int,
    sites: Mapping[str, SiteInterpretability | str],
) -> dict[str, Any]:
    """Return the combined interpretability of all sites as JSON values; nothing below `min_cell_count` subjects.

    Args:
        section: The study's interpretability section.
        columns: All columns.
        deployment: The run's `scale` and `classes`.
        min_cell_count: Smallest count of subjects that may be released.
        sites: Each site's counts, or the reason for its exclusion.
    """
    classes, scale = deployment["classes"], deployment["scale"]
    results = {name: result for name, result in sites.items() if isinstance(result, SiteInterpretability)}
    return {
        "metric": _metric_name(results, classes),
        "requests": interpretability_requests(section, columns),
        "sites": list(results),
        "excluded_sites": {name: reason for name, reason in sites.items() if isinstance(reason, str)},
        "cases": list(classes[1:] if len(classes) == 2 else classes),
        "importance": sorted(
            _importance(results, min_cell_count),
            key=lambda row: (row["grouping"] != "all", row["group"], -row["value"]),
        ),
        "partial_dependence": [
            _dependence(name, results, grid_points(section, name, columns), columns, scale)
            for name in section.partial_dependence
            if results
        ],
        **(_curves(results, min_cell_count) if len(classes) == 2 else {"calibration": [], "decision": []}),
    }


def _metric_name(results: Mapping[str, SiteInterpretability], classes: Sequence[str]) -> str:
    """Return the metric of the permutation importance."""
    is_survival = any(
        isinstance(counts, ConcordanceSums)
        for result in results.values()
        for counts in result.counts.values()
    )
    return "auroc" if classes else "concordance" if is_survival else "rmse"


def _importance(results: Mapping[str, SiteInterpretability], min_cell_count: int) -> Iterator[dict[str, Any]]:
    """Yield the permutation importance of each input: over all sites, and for each site with enough subjects."""
    groups = [(EvaluationGroup(ALL_SITES, "all"), list(results.values()))]
    groups += [(EvaluationGroup(name, "site"), [result]) for name, result in results.items()]
    all_subjects = EvaluationGroup(ALL_SITES, "all")
    for group, released in groups:
        site_results = [result for result in released if evaluated_subjects(result.counts[all_subjects])]
        if not site_results:
            continue
        baseline_counts = [result.counts[all_subjects] for result in site_results]
        baseline = _performance(baseline_counts, min_cell_count)
        for name in site_results[0].permuted:
            repeats = range(len(site_results[0].permuted[name]))
            permuted = [
                _performance([result.permuted[name][i] for result in site_results], min_cell_count)
                for i in repeats
            ]
            if baseline is None or any(value is None for value in permuted):
                continue
            drops = [baseline - value for value in permuted if value is not None]
            yield {
                "input": name, "group": group.name, "grouping": group.grouping, "sites": len(site_results),
                "subjects": sum(result.subjects for result in site_results), "value": float(np.mean(drops)),
                "low": float(min(drops)), "high": float(max(drops)),
            }  # fmt: skip


def _performance(site_counts: Sequence[GroupCounts], min_cell_count: int) -> float | None:
    """Return the performance for permutation importance: mean AUROC over cases, concordance, or negative RMSE."""
    pairs = [part for part in site_counts if isinstance(part, ConcordanceSums)]
    if pairs:
        total_pairs = add_pairs(pairs)
        return evaluate_survival(total_pairs)["concordance"].value if total_pairs.pairs else None
    sums = [part for part in site_counts if isinstance(part, RegressionSums)]
    if sums:
        total = add_errors(sums)
        return -float(np.sqrt(total.squared / total.subjects)) if total.subjects >= min_cell_count else None
    histograms = [part for part in site_counts if not isinstance(part, RegressionSums | ConcordanceSums)]
    merged = [merge_histograms(site[i] for site in histograms) for i in range(len(histograms[0]))]
    if not all(has_enough_cases(histogram, min_cell_count) for histogram in merged):
        return None
    return float(np.mean([auroc(h.scores, h.cases[None], h.controls[None])[0] for h in merged]))


def _dependence(
    name: str,
    results: Mapping[str, SiteInterpretability],
    points: Sequence[DependencePoint],
    columns: Sequence[FeatureColumn],
    scale: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """Return the partial dependence on one input: of all subjects and by site; observed categories only."""
    model_columns = _model_columns(columns)
    observed = [i for i, point in enumerate(points) if _was_observed(point, model_columns, scale)]
    observed = observed or list(range(len(points)))
    first = model_columns[min(points[0].cells)]
    mean, std = (0.0, 1.0) if first.spline else scale.get(first.name, (0.0, 1.0))[:2]
    subjects = np.array([result.subjects for result in results.values()], float)
    means = np.array([result.means[name] for result in results.values()])[:, observed]  # sites, points, cases
    return {
        "input": name,
        "grid": [_grid_label(points[i].name, mean, std) for i in observed],
        "all": (np.tensordot(subjects, means, 1) / subjects.sum()).round(_DIGITS).tolist(),
        "sites": {site: [result.means[name][i] for i in observed] for site, result in results.items()},
    }


def _was_observed(
    point: DependencePoint, columns: Sequence[FeatureColumn], scale: Mapping[str, Sequence[Any]]
) -> bool:
    """Return whether partial dependence includes a category: it occurred in training, or has no statistics."""
    statistics = [scale.get(columns[i].name) for i, value in point.cells.items() if value == 1.0]
    return not isinstance(point.name, str) or all(column is None or column[0] > 0 for column in statistics)


def _grid_label(name: str | float, mean: float, std: float) -> str | float:
    return name if isinstance(name, str) else float(mean + name * std)


def _curves(
    results: Mapping[str, SiteInterpretability], min_cell_count: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the interpretability's calibration and decision curves of groups with enough cases and controls."""
    curves: dict[str, list[dict[str, Any]]] = {"calibration": [], "decision": []}
    groups = dict.fromkeys(group for result in results.values() for group in result.counts)
    for group in sorted(groups, key=group_order):
        site_counts = [
            counts[0]
            for result in results.values()
            if not isinstance(counts := result.counts.get(group, ()), RegressionSums | ConcordanceSums)
            and counts
            and counts[0].subjects
        ]
        if not site_counts:
            continue
        histogram = merge_histograms(site_counts)
        if not has_enough_cases(histogram, min_cell_count):
            continue
        header = {
            "group": group.name,
            "grouping": group.grouping,
            "sites": len(site_counts),
            "subjects": histogram.subjects,
        }
        bins = max(2, min(10, histogram.subjects // (2 * min_cell_count)))
        points = [[predicted, asdict(fraction)] for predicted, fraction in histogram.calibration(bins)]
        curves["calibration"].append({**header, "points": points})
        treated, treat_all = net_benefit(histogram, _THRESHOLDS)
        curves["decision"].append(
            {
                **header,
                "thresholds": _THRESHOLDS.tolist(),
                "model": treated.tolist(),
                "treat_all": treat_all.tolist(),
            }
        )
    return curves


def linear_coefficients(
    model: Model, vector: Vector, columns: Sequence[FeatureColumn], deployment: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a linear model's coefficients for interpretability, per standard deviation and per unit.

    They are log odds, or values. They have no intervals: a federated average is not a maximum-likelihood estimate.
    A spline's columns have no coefficient per unit; the input's partial dependence shows its effect.
    """
    if isinstance(model, PersonalLayersModel):
        return []  # the shared layers may look like a linear model and are part of another one
    first, *others = model.layout
    model_columns = _model_columns(columns)
    if len(others) != 1 or len(first.shape) > 2 or first.shape[-1] != len(model_columns):
        return []
    weights = np.atleast_2d(np.asarray(model.layout.view(vector, first.name), np.float64))
    cases, scale = list(deployment["classes"]), deployment["scale"]
    if not cases:
        weights, cases = weights * deployment["label"][1], [""]
    elif len(cases) == 2:
        weights, cases = (weights[1:] - weights[:1] if len(weights) == 2 else weights), cases[1:]
    coefficients = []
    for case, row in zip(cases, weights, strict=True):
        for weight, column in zip(row, model_columns, strict=True):
            std = scale[column.name][1] if column.is_numeric and column.spline is None else 1.0
            per_unit = float(weight / std) if column.spline is None else None
            coefficients.append(
                {
                    "case": case, "column": column.name, "input": column.input, "is_numeric": column.is_numeric,
                    "per_std": float(weight), "per_unit": per_unit,
                }
            )  # fmt: skip
    return coefficients
