"""Performance of the community model from single predictions, for a run on one machine.

Calibration curve, ratio of observed to expected cases, heterogeneity between sites, decision curve, and differences
between groups of subjects. On a network sites release counts, not predictions: these results do not exist there.
Groups and sites need `MIN_CASES` cases and controls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.layout import Vector
from abaton.metrics.calibration_curve import (
    SPLINE_METHOD,
    decision_curve,
    observed_expected_ratio,
    smooth_calibration,
)
from abaton.metrics.classification import ScoreHistogram, count_scores, estimate_to_json, evaluate_classifier
from abaton.metrics.meta_analysis import auroc_difference, combine_auroc
from abaton.models import Model
from abaton.study_run.consented_learner import to_examples
from abaton.study_run.evaluation import MIN_CASES
from abaton.study_run.preparation import PreparedSites


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutPredictions:
    """Predicted probabilities of the test subjects of all sites.

    Attributes:
        probabilities: Predicted probability of the outcome.
        labels: 1 for a case, 0 for a control.
        sites: Site of each subject.
        groups: For each grouping input of the evaluation, the group of each subject.
        weights: Inverse probability of censoring weight of each subject; None if all are 1.
    """

    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    sites: NDArray[np.object_]
    groups: Mapping[str, NDArray[np.object_]]
    weights: NDArray[np.float64] | None = None

    def counts(self, members: NDArray[np.bool_]) -> ScoreHistogram:
        """Return the score histogram of some subjects, for their performance."""
        return count_scores(
            self.probabilities[members], self.labels[members], weights=self.weights_of(members)
        )

    def weights_of(self, members: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        """Return the weights of some subjects, for their performance."""
        return None if self.weights is None else self.weights[members]

    def observed_expected(self, members: NDArray[np.bool_], level: float) -> dict[str, float | None]:
        """Return the ratio of observed to expected cases of some subjects, a part of their performance."""
        arrays = self.probabilities[members], self.labels[members]
        return estimate_to_json(observed_expected_ratio(*arrays, level, self.weights_of(members)))


def predict_test_rows(
    prepared: PreparedSites,
    model: Model,
    vector: Vector,
    subjects: Mapping[str, frozenset[str]],
    local: Mapping[str, Mapping[str, Vector]],
) -> HeldOutPredictions:
    """Return the predictions of the test rows of all sites, of subjects that may be used, for their performance."""
    probabilities, labels, sites = [], [], []
    weights = []
    groups: dict[str, list[NDArray[np.object_]]] = {}
    for site in prepared.sites:
        eligible = np.array([subject in subjects[site.name] for subject in site.test.subjects], bool)
        if not eligible.any():
            continue
        data = to_examples(site.test)
        predicted = model.score(vector, data, local.get(site.name)).predictions[:, 1]
        probabilities.append(np.clip(np.asarray(predicted, np.float64), 0, 1)[eligible])
        labels.append(np.asarray(data.y, np.int64)[eligible])
        weights.append((np.ones(len(data)) if data.weights is None else data.weights)[eligible])
        sites.append(np.full(int(eligible.sum()), site.name, object))
        for name, names in site.groups.items():
            groups.setdefault(name, []).append(np.array(names, object)[eligible])
    empty = np.empty(0, object)
    return HeldOutPredictions(
        np.concatenate([np.empty(0), *probabilities]),
        np.concatenate([np.empty(0, np.int64), *labels]),
        np.concatenate([empty, *sites]),
        {name: np.concatenate(parts) for name, parts in groups.items()},
        np.concatenate(weights) if any((part != 1).any() for part in weights) else None,
    )


def performance_results(test: HeldOutPredictions, level: float) -> dict[str, Any]:
    """Return the performance of predictions as JSON values: calibration, heterogeneity, decision curve, groups."""
    return {
        "min_cases": MIN_CASES,
        "calibration": _calibration(test, level),
        "heterogeneity": site_heterogeneity(test, level),
        "decision": _decision(test, level),
        "groups": group_differences(test, level),
    }


def _calibration(test: HeldOutPredictions, level: float) -> dict[str, Any] | None:
    if not has_enough(test.labels):
        return None
    curve = smooth_calibration(test.probabilities, test.labels, level=level, weights=test.weights)
    everyone = np.ones(len(test.labels), bool)
    result: dict[str, Any] = {"observed_expected": test.observed_expected(everyone, level), "curve": None}
    if curve is not None:
        names = ("predicted", "observed", "low", "high")
        result["curve"] = {name: getattr(curve, name).tolist() for name in names}
        result |= {"ici": curve.ici, "e50": curve.e50, "e90": curve.e90}
        result |= {"method": SPLINE_METHOD, "knots": [1 / (1 + math.exp(-knot)) for knot in curve.knots]}
    return result


def site_heterogeneity(test: HeldOutPredictions, level: float) -> dict[str, Any]:
    """Return the performance of predictions at each site and the random-effects meta-analysis of the AUROC."""
    sites: dict[str, Any] = {}
    estimates = []
    for name in sorted(set(test.sites.tolist())):
        members = test.sites == name
        if not has_enough(test.labels[members]):
            sites[name] = None
            continue
        counts = test.counts(members)
        estimates.append(counts.auroc_estimate())
        sites[name] = {
            "auroc": estimate_to_json(evaluate_classifier(counts, resamples=0, level=level)["auroc"]),
            "observed_expected": test.observed_expected(members, level),
        }
    combined = combine_auroc(estimates, level)
    return {"sites": sites, "auroc": None if combined is None else asdict(combined)}


def _decision(test: HeldOutPredictions, level: float) -> dict[str, Any] | None:
    """Return the decision curve of predictions at thresholds from 1 % to the largest predicted probability."""
    if not has_enough(test.labels):
        return None
    last = min(99, max(2, math.ceil(100 * float(test.probabilities.max()))))
    curve = decision_curve(
        test.probabilities, test.labels, np.arange(1, last + 1) / 100, level=level, weights=test.weights
    )
    return {
        name: getattr(curve, name).tolist() for name in ("thresholds", "model", "low", "high", "treat_all")
    }


def group_differences(test: HeldOutPredictions, level: float) -> list[dict[str, Any]]:
    """Return the performance of predictions by group, and the difference of its AUROC to that of all others."""
    rows: list[dict[str, Any]] = []
    for name, groups in test.groups.items():
        for group in sorted(set(groups.tolist())):
            members = groups == group
            row: dict[str, Any] = {"group": f"{name}: {group}", "grouping": name}
            if has_enough(test.labels[members]) and has_enough(test.labels[~members]):
                counts = [test.counts(part) for part in (members, ~members)]
                estimates = [evaluate_classifier(part, resamples=0, level=level)["auroc"] for part in counts]
                row |= {
                    "auroc": estimate_to_json(estimates[0]),
                    "others": estimate_to_json(estimates[1]),
                    "difference": estimate_to_json(auroc_difference(*estimates)),
                    "observed_expected": test.observed_expected(members, level),
                }
            rows.append(row)
    return rows


def has_enough(labels: NDArray[np.int64]) -> bool:
    """Return whether there are enough cases and controls for a performance result."""
    cases = int(labels.sum())
    return min(cases, len(labels) - cases) >= MIN_CASES
