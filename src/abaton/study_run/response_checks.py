"""Plausibility checks of sites' replies about models.

`abaton.study_run.messages` has parsed the values. Here they are checked against the study, the site's own row and what
sums allow: existing groups, possible values of a metric, and no group larger than the total. Any error raised while
parsing a reply makes the reply invalid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from abaton.features import feature_columns, group_names
from abaton.metrics.classification import MetricEstimate
from abaton.metrics.regression import RegressionSums
from abaton.metrics.survival import ConcordanceSums
from abaton.study import Study
from abaton.study_run.evaluation import ALL_SITES, EvaluationGroup, GroupCounts, SiteCounts, metric_names
from abaton.study_run.interpretability import SiteInterpretability
from abaton.study_run.local_benefit import ModelBenefit, SiteBenefit
from abaton.study_run.messages import MAX_SUBJECTS, invalid_reply_error

_ALL = EvaluationGroup(ALL_SITES, "all")
_INTERVAL_SLACK = 1.0  # intervals of large-sample approximations may exceed the range of a metric
_ANY_FINITE = (-1e150, 1e150)  # their squares are finite
_METRIC_RANGES: Mapping[str, tuple[float, float]] = {
    "rmse": (0.0, 1e150),
    "mae": (0.0, 1e150),
    "r2": (-1e150, 1.0),
    "calibration slope": _ANY_FINITE,
    "calibration intercept": _ANY_FINITE,
}
_FRACTION = (0.0, 1.0)  # range of all other metrics


def check_counts(counts: SiteCounts, site: str, study: Study) -> SiteCounts:
    """Check the plausibility of a site's response with evaluation counts, which may be empty, and return it.

    Raises:
        PayloadError: A group belongs to another site, does not exist, or is larger than the total.
    """
    if not counts:
        return counts
    allowed = {_ALL, EvaluationGroup(site, "site"), *_study_groups(study)}
    if _ALL not in counts or not counts.keys() <= allowed:
        raise invalid_reply_error()
    totals = _group_sizes(counts[_ALL], study)
    for group_counts in counts.values():
        if any(size > total for size, total in zip(_group_sizes(group_counts, study), totals, strict=True)):
            raise invalid_reply_error()
    return counts


def check_interpretability(result: SiteInterpretability, site: str, study: Study) -> SiteInterpretability:
    """Check the plausibility of a site's response with interpretability counts and return it.

    Raises:
        PayloadError: They are not.
    """
    check_counts(result.counts, site, study)
    totals = _group_sizes(result.counts[_ALL], study)
    permuted_sizes = [
        _group_sizes(counts, study) for repeats in result.permuted.values() for counts in repeats
    ]
    low, high = _FRACTION if study.feature_spec().label.class_names else _ANY_FINITE
    means = [mean for points in result.means.values() for point in points for mean in point]
    if any(sizes != totals for sizes in permuted_sizes) or not all(low <= mean <= high for mean in means):
        raise invalid_reply_error()
    return result


def check_benefit(benefit: SiteBenefit, study: Study) -> SiteBenefit:
    """Check that a site's response with its local benefit is possible for the study's metric; return it.

    Raises:
        PayloadError: They are not.
    """
    assert study.learning is not None
    bounds = _METRIC_RANGES.get(metric_names(study.learning)[0], _FRACTION)
    width = bounds[1] - bounds[0]
    for model_benefit in (benefit.benefits or {}).values():
        is_plausible = _is_within(model_benefit.value, bounds) and all(
            _is_within(difference, (-width, width))
            for difference in (model_benefit.gain_over_local_only, model_benefit.gain_over_community)
        )
        if not is_plausible or not _is_valid_selection(model_benefit):
            raise invalid_reply_error()
    return benefit


def _study_groups(study: Study) -> Iterator[EvaluationGroup]:
    assert study.learning is not None
    all_columns = feature_columns(study.feature_spec())
    for group in study.learning.evaluation.groups:
        for name in group_names(all_columns, group.input, group.bands):
            yield EvaluationGroup(f"{group.input}: {name}", group.input)


def _group_sizes(counts: GroupCounts, study: Study) -> list[int]:
    """Check that the counts of a response fit the study's task; return the number of subjects for each case."""
    assert study.learning is not None
    sums_type = {"regression": RegressionSums, "survival": ConcordanceSums}.get(study.learning.task)
    if isinstance(counts, RegressionSums | ConcordanceSums) != (sums_type is not None):
        raise invalid_reply_error()
    if sums_type is not None and not isinstance(counts, sums_type):
        raise invalid_reply_error()
    sizes = (
        [counts.subjects]
        if isinstance(counts, RegressionSums | ConcordanceSums)
        else [histogram.subjects for histogram in counts]
    )
    if max(sizes) > MAX_SUBJECTS:
        raise invalid_reply_error()
    return sizes


def _is_within(estimate: MetricEstimate, bounds: tuple[float, float]) -> bool:
    low, high = bounds
    limits = [limit for limit in (estimate.low, estimate.high) if math.isfinite(limit)]
    return (
        (math.isnan(estimate.value) or low <= estimate.value <= high)
        and limits == sorted(limits)
        and all(low - _INTERVAL_SLACK <= limit <= high + _INTERVAL_SLACK for limit in limits)
    )


def _is_valid_selection(benefit: ModelBenefit) -> bool:
    return 0 <= benefit.selected.get("weight", 0) <= 1 and all(
        _ANY_FINITE[0] <= value <= _ANY_FINITE[1] for value in benefit.selected.values()
    )
