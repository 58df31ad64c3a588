"""Evaluation of models from what the sites' release gates release: class sizes and bounded sums.

Level `noisy`: each site adds noise to its sizes and sums, within its privacy budget; the centre adds the sites up.
Level `summed`: exact sums over at least three sites, and no number of a single site. AUROC and concordance are those of
pairs within sites. The budget is spent in this order: class sizes, the study's first metric, its other metrics, the
first metric by group. What the budget of a site does not allow is not released, and the results say so.

Invariants:
(1) every number in the results is computed from released values (`ReleaseGate.table`, `total`, `share`);
(2) nothing is estimated from fewer than 10 cases or controls in total, as released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.canonical_json import canonical_digest
from abaton.disclosure.levels import DisclosureLevel, format_count
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.errors import RefusedError
from abaton.metrics.bounded_sums import (
    BoundedContributions,
    SlopeLine,
    accuracy_contributions,
    auroc_contributions,
    brier_contributions,
    calibration_contributions,
    concordance_contributions,
    contributions_by_group,
    slope_contributions,
)
from abaton.metrics.classification import MetricEstimate
from abaton.metrics.meta_analysis import MetaAnalysis
from abaton.metrics.noisy_estimates import (
    ReleasedSizes,
    ReleasedSum,
    add_sizes,
    add_sums,
    combine_sites,
    estimate_accuracy,
    estimate_brier,
    estimate_intercept,
    estimate_pairs,
    estimate_slope,
    pairs_error,
)
from abaton.study import LearningSection
from abaton.study_run.evaluation import ALL_SITES, case_classes, metric_names, no_recalibration
from abaton.study_run.preparation import PreparedSite

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

BUDGET_USED_UP = "not released: privacy budget used up"
NO_BOUNDED_SUM = "not released: the metric is no bounded sum"
TOO_FEW_SITES = "not released: fewer than three sites"

_TOLERANCE = 1e-12  # the gate itself computes with exact fractions
_PAIR_METRICS = ("auroc", "concordance")
_CONTRIBUTIONS: Mapping[str, Callable[[Floats, NDArray[Any]], BoundedContributions]] = {
    "auroc": auroc_contributions,
    "concordance": concordance_contributions,
    "calibration intercept": calibration_contributions,
    "brier": brier_contributions,
    "accuracy": accuracy_contributions,
}
_ESTIMATORS: Mapping[str, Callable[[ReleasedSum, ReleasedSizes, float], MetricEstimate]] = {
    "auroc": estimate_pairs,
    "concordance": lambda total, sizes, level: estimate_pairs(total, sizes, level, is_survival=True),
    "calibration intercept": estimate_intercept,
    "brier": estimate_brier,
    "accuracy": estimate_accuracy,
}


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedSite:
    """Site with the test rows that may be evaluated.

    Attributes:
        site: The prepared site.
        gate: Its release gate; the gates of all sites have one level.
        rows: Mask of the test rows that may be used.
    """

    site: PreparedSite
    gate: ReleaseGate
    rows: Mask

    @property
    def patients(self) -> list[str]:
        """Patient id of each evaluated row; never leaves the site."""
        subjects = self.site.test.subjects
        return [self.site.patient_ids.get(subjects[i], subjects[i]) for i in np.flatnonzero(self.rows)]

    @property
    def labels(self) -> NDArray[Any]:
        """Label of each evaluated row."""
        return np.asarray(self.site.test.y)[self.rows]

    def groups(self, grouping: str) -> NDArray[np.object_]:
        """Return the group of each evaluated row by an input."""
        return np.array(self.site.groups[grouping], object)[self.rows]


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """Model whose released evaluation is computed.

    Attributes:
        name: Name in the results.
        digest: Digest of the model, part of every question about it.
        predictions: By site, the predictions of the evaluated rows.
    """

    name: str
    digest: str
    predictions: Mapping[str, NDArray[Any]]


def evaluate_released(
    learning: LearningSection,
    study: str,
    classes: Sequence[str],
    sites: Sequence[EvaluatedSite],
    models: Sequence[EvaluatedModel],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate models from released sizes and sums: return all metrics as JSON values.

    Args:
        learning: The study's learning section.
        study: Id of the study, whose privacy budget is charged.
        classes: Classes of the outcome; none for regression and survival.
        sites: The sites.
        models: The models, in the order in which the budget is spent.
        seed: Seed of the split into training and test rows, part of every question.
    """
    level = sites[0].gate.level
    if learning.task == "regression":
        return {**_results([], [], level), "not_released": "the outcome has no declared range"}
    releases = _Releases(study, seed, sites)
    cases: Sequence[int] = case_classes(classes) if classes else [1]
    evaluations = [_ModelEvaluation(learning, classes, cases, releases, model) for model in models]
    rows: list[dict[str, Any]] = []
    random_effects = None
    for evaluation in evaluations:
        rows += evaluation.overall_rows()
        if random_effects is None:
            random_effects = evaluation.random_effects()
    for grouping in sites[0].site.groups:
        for evaluation in evaluations[:1]:
            rows += evaluation.group_rows(grouping)
    names = [model.name for model in models] if len(classes) == 2 else []
    return {**_results(rows, names, level), "random_effects": _effects_to_json(random_effects)}


def _results(rows: list[dict[str, Any]], models: Sequence[str], level: DisclosureLevel) -> dict[str, Any]:
    return {
        "rows": rows,
        "curves": {},
        "recalibration": {name: no_recalibration("not released") for name in models},
        "is_exact": False,
        "disclosure": level.value,
        "pairs": "within sites",
        "min_cell_count": 0,
    }


class _Releases:
    """Questions about test rows, and their answers by site, or of all sites together at level `summed`."""

    def __init__(self, study: str, seed: int, sites: Sequence[EvaluatedSite]) -> None:
        self.study, self.seed, self.sites = study, seed, sites
        self.is_summed = sites[0].gate.level is DisclosureLevel.SUMMED
        self.parts = [ALL_SITES] if self.is_summed else [site.site.name for site in sites]

    def totals(
        self,
        kind: str,
        about: Mapping[str, Any],
        contributions: Sequence[BoundedContributions],
        *,
        is_primary: bool = False,
        factor: float = 1.0,
    ) -> dict[str, ReleasedSum] | str:
        """Release a sum at every site, or over all; return the reason if it is not released."""
        question = self.question(kind, about)
        multipliers = self.multipliers(is_primary=is_primary, factor=factor)
        if not self.is_affordable([(question, multipliers)]):
            return BUDGET_USED_UP
        if self.is_summed:
            return self._sum_over_sites(question, contributions, multipliers)
        sums = {}
        for site, part, multiplier in zip(self.sites, contributions, multipliers, strict=True):
            released = site.gate.total(question, site.patients, part.rows, part.bound, multiplier)
            sums[site.site.name] = ReleasedSum(released.vector, released.sd)
        return sums

    def sizes(self, grouping: str, groups: Sequence[str], cases: int) -> dict[str, list[ReleasedSizes]] | str:
        """Release the class sizes of groups: by part, one entry per group."""
        question = self.size_question(grouping, groups, cases)
        masks = [
            [_members(site, grouping, group) & (_is_case(site, cases) == is_case)
             for group in groups for is_case in (True, False)]
            for site in self.sites
        ]  # fmt: skip
        if self.is_summed:
            indicators = [
                BoundedContributions(np.stack(columns, axis=1).astype(np.float64), 1.0) for columns in masks
            ]
            totals = self._sum_over_sites(question, indicators, self.multipliers())
            if isinstance(totals, str):
                return totals
            return {ALL_SITES: _paired_sizes(totals[ALL_SITES].values, 0.0, len(self.sites))}
        if not self.is_affordable([(question, self.table_sds())]):
            return BUDGET_USED_UP
        sizes = {}
        for site, columns in zip(self.sites, masks, strict=True):
            patients = np.array(site.patients, object)
            cells = {str(i): frozenset(patients[members].tolist()) for i, members in enumerate(columns)}
            released = site.gate.table(question, cells)
            sizes[site.site.name] = _paired_sizes(released.vector, released.sd, 1)
        return sizes

    def _sum_over_sites(
        self, question: Question, contributions: Sequence[BoundedContributions], multipliers: Sequence[float]
    ) -> dict[str, ReleasedSum] | str:
        cohorts = canonical_digest([site.site.digest for site in self.sites])
        try:
            shares = [
                site.gate.share(
                    question, site.patients, part.rows, part.bound, multiplier, len(self.sites), cohorts
                )
                for site, part, multiplier in zip(self.sites, contributions, multipliers, strict=True)
            ]
        except RefusedError:
            return TOO_FEW_SITES
        units = np.sum([share.units for share in shares], axis=0)
        return {ALL_SITES: ReleasedSum(units * shares[0].unit, shares[0].sd)}

    def question(self, kind: str, about: Mapping[str, Any]) -> Question:
        """Return a question about the test rows of this split."""
        return Question(f"evaluation: {kind}", self.study, {**about, "split": self.seed, "rows": "test"})

    def size_question(self, grouping: str, groups: Sequence[str], case: int) -> Question:
        """Return the question for the class sizes of groups."""
        return self.question("class sizes", {"grouping": grouping, "groups": list(groups), "case": case})

    def multipliers(self, *, is_primary: bool = False, factor: float = 1.0) -> list[float]:
        """Return the noise of a sum at each site, in units of its bound."""
        settings = [site.gate.settings for site in self.sites]
        return [factor * (part.primary_multiplier if is_primary else part.multiplier) for part in settings]

    def table_sds(self) -> list[float]:
        """Return the noise of a table at each site."""
        return [site.gate.settings.table_sd for site in self.sites]

    def is_affordable(self, questions: Sequence[tuple[Question, Sequence[float]]]) -> bool:
        """Return whether every site can answer all questions, so that none is charged in vain.

        Args:
            questions: Questions, each with the noise at every site.
        """
        return all(
            sum(site.gate.cost(question, noise[i]) for question, noise in questions)
            <= site.gate.remaining(self.study) + _TOLERANCE
            for i, site in enumerate(self.sites)
        )


class _ModelEvaluation:
    """Evaluation of one model from released sizes and sums."""

    def __init__(
        self,
        learning: LearningSection,
        classes: Sequence[str],
        cases: Sequence[int],
        releases: _Releases,
        model: EvaluatedModel,
    ) -> None:
        self.learning, self.classes, self.cases = learning, classes, cases
        self.releases, self.model = releases, model
        self.level, self.metrics = learning.evaluation.confidence_level, metric_names(learning)
        self._primary: dict[str, tuple[ReleasedSum, ReleasedSizes]] = {}

    def overall_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all sites, and of each site where single sites release sums."""
        return [row for case in self.cases for row in self._rows_of_case(case)]

    def _rows_of_case(self, case: int) -> list[dict[str, Any]]:
        by_part = self.releases.sizes("all", [ALL_SITES], case)
        suffix = f", {self.classes[case]}" if len(self.cases) > 1 else ""
        if isinstance(by_part, str):
            return [self._row(ALL_SITES + suffix, "all", None, dict.fromkeys(self.metrics, by_part))]
        sizes = {name: part[0] for name, part in by_part.items()}
        sums: dict[str, dict[str, ReleasedSum] | str] = {}
        for metric in self.metrics:
            if metric != "calibration slope":
                sums[metric] = self._totals(metric, case, is_primary=metric == self.metrics[0])
        total_sizes = add_sizes(sizes.values())
        metrics: dict[str, MetricEstimate | str] = {}
        for metric in self.metrics:
            released = sums.get(metric)
            if metric == "calibration slope":
                metrics[metric] = self._slope(case, total_sizes)
            elif isinstance(released, str) or released is None:
                metrics[metric] = released or NO_BOUNDED_SUM
            else:
                metrics[metric] = _ESTIMATORS[metric](add_sums(released.values()), total_sizes, self.level)
        rows = [self._row(ALL_SITES + suffix, "all", total_sizes, metrics)]
        primary = sums.get(self.metrics[0])
        if isinstance(primary, dict) and not suffix and self.metrics[0] in _PAIR_METRICS:
            self._primary = {name: (primary[name], sizes[name]) for name in sizes}
        if not self.releases.is_summed:
            rows += [self._site_row(name, suffix, sizes[name], sums) for name in sizes]
        return rows

    def _site_row(
        self,
        name: str,
        suffix: str,
        sizes: ReleasedSizes,
        sums: Mapping[str, dict[str, ReleasedSum] | str],
    ) -> dict[str, Any]:
        """Return the row of a site from its part of the sums: it costs nothing more."""
        metrics: dict[str, MetricEstimate | str] = {
            metric: released
            if isinstance(released, str)
            else _ESTIMATORS[metric](released[name], sizes, self.level)
            for metric, released in sums.items()
        }
        return self._row(name + suffix, "site", sizes, metrics)

    def random_effects(self) -> MetaAnalysis | None:
        """Return the random-effects mean of the first metric over sites with an estimate; from five sites on."""
        estimates = [pairs_error(total, sizes) for total, sizes in self._primary.values()]
        known = [estimate for estimate in estimates if math.isfinite(estimate[0]) and estimate[1] > 0]
        if not known:
            return None
        values, errors, weights = (list(column) for column in zip(*known, strict=True))
        return combine_sites(values, errors, weights, self.level)

    def group_rows(self, grouping: str) -> list[dict[str, Any]]:
        """Return the rows of the groups of an input with the study's first metric."""
        metric = self.metrics[0]
        names = sorted(
            {str(name) for site in self.releases.sites for name in site.site.groups.get(grouping, ())}
        )
        if metric not in _CONTRIBUTIONS or not names:
            return []
        rows = []
        for case in self.cases:
            suffix = f", {self.classes[case]}" if len(self.cases) > 1 else ""
            sizes, totals = self._group_sums(metric, grouping, names, case)
            for i, name in enumerate(names):
                label = f"{grouping}: {name}{suffix}"
                if isinstance(sizes, str) or isinstance(totals, str):
                    rows.append(self._row(label, grouping, None, {metric: str(totals)}))
                    continue
                group_sizes = add_sizes(part[i] for part in sizes.values())
                group_sums = [
                    ReleasedSum(np.split(part.values, len(names))[i], part.sd) for part in totals.values()
                ]
                estimate = _ESTIMATORS[metric](add_sums(group_sums), group_sizes, self.level)
                rows.append(self._row(label, grouping, group_sizes, {metric: estimate}))
        return rows

    def _group_sums(
        self, metric: str, grouping: str, names: Sequence[str], case: int
    ) -> tuple[dict[str, list[ReleasedSizes]] | str, dict[str, ReleasedSum] | str]:
        """Return class sizes and sums of the groups of an input, both or neither."""
        releases, groups = self.releases, (grouping, names)
        size_question = releases.size_question(grouping, names, case)
        sum_question = releases.question(metric, self._about(case, groups))
        if not releases.is_affordable(
            [(size_question, releases.table_sds()), (sum_question, releases.multipliers())]
        ):
            return BUDGET_USED_UP, BUDGET_USED_UP
        return releases.sizes(grouping, names, case), self._totals(metric, case, groups=groups)

    def _about(self, case: int, groups: tuple[str, Sequence[str]] | None = None) -> dict[str, Any]:
        return {
            "model": self.model.digest,
            "case": case,
            "groups": [] if groups is None else [groups[0], *groups[1]],
        }

    def _totals(
        self,
        metric: str,
        case: int,
        *,
        is_primary: bool = False,
        groups: tuple[str, Sequence[str]] | None = None,
    ) -> dict[str, ReleasedSum] | str:
        if metric not in _CONTRIBUTIONS:
            return NO_BOUNDED_SUM
        contributions = []
        for site in self.releases.sites:
            predicted, actual = self._scores(site, case)

            def contribute(
                members: Mask, predicted: Floats = predicted, actual: NDArray[Any] = actual
            ) -> BoundedContributions:
                return _CONTRIBUTIONS[metric](predicted[members], actual[members])

            if groups is None:
                contributions.append(contribute(np.ones(len(actual), bool)))
            else:
                masks = [_members(site, groups[0], name) for name in groups[1]]
                contributions.append(contributions_by_group(contribute, masks))
        return self.releases.totals(metric, self._about(case, groups), contributions, is_primary=is_primary)

    def _slope(self, case: int, sizes: ReleasedSizes) -> MetricEstimate | str:
        """Return the calibration slope, or why it is not released."""
        releases, reasons = self.releases, list[str]()
        first = releases.question(
            "calibration slope", self._about_line(case, SlopeLine.start(sizes.cases, sizes.controls))
        )
        if not releases.is_affordable([(first, releases.multipliers())]):  # both steps cost one sum
            return BUDGET_USED_UP

        def sum_at(line: SlopeLine, factor: float) -> ReleasedSum:
            contributions = [
                slope_contributions(*self._scores(site, case), line) for site in self.releases.sites
            ]
            totals = self.releases.totals(
                "calibration slope", self._about_line(case, line), contributions, factor=factor
            )
            if isinstance(totals, str):
                reasons.append(totals)
                return ReleasedSum(np.zeros(5))
            return add_sums(totals.values())

        estimate = estimate_slope(sum_at, sizes, self.level)
        return reasons[0] if reasons else estimate

    def _about_line(self, case: int, line: SlopeLine) -> dict[str, Any]:
        return {**self._about(case), "line": [line.centre, line.intercept, line.slope]}

    def _scores(self, site: EvaluatedSite, case: int) -> tuple[Floats, NDArray[Any]]:
        predicted, labels = self.model.predictions[site.site.name], site.labels
        if not self.classes:
            return np.asarray(predicted, np.float64).reshape(-1), labels
        return np.clip(np.asarray(predicted[:, case], np.float64), 0, 1), (labels == case).astype(np.int64)

    def _row(
        self,
        group: str,
        grouping: str,
        sizes: ReleasedSizes | None,
        metrics: Mapping[str, MetricEstimate | str],
    ) -> dict[str, Any]:
        threshold = max(site.gate.settings.threshold for site in self.releases.sites)
        return {
            "model": self.model.name,
            "group": group,
            "grouping": grouping,
            "subjects": "–" if sizes is None else format_count(sizes.subjects, threshold),
            "sites": len(self.releases.sites) if sizes is None else sizes.sites,
            "metrics": {name: _estimate_to_json(estimate) for name, estimate in metrics.items()},
        }


def _is_case(site: EvaluatedSite, case: int) -> Mask:
    labels = site.labels
    return np.asarray(labels[:, 1] > 0 if labels.ndim == 2 else labels == case)


def _members(site: EvaluatedSite, grouping: str, group: str) -> Mask:
    if grouping == "all":
        return np.ones(int(site.rows.sum()), bool)
    return np.asarray(site.groups(grouping) == group)


def _paired_sizes(values: Floats, sd: float, sites: int) -> list[ReleasedSizes]:
    """Return class sizes of groups from released counts of cases and controls in turn."""
    return [
        ReleasedSizes(float(cases), float(controls), sd, sites) for cases, controls in values.reshape(-1, 2)
    ]


def _estimate_to_json(estimate: MetricEstimate | str) -> dict[str, Any]:
    if isinstance(estimate, str):
        return {"value": None, "low": None, "high": None, "reason": estimate}
    values = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _effects_to_json(effects: MetaAnalysis | None) -> dict[str, Any] | None:
    if effects is None:
        return None
    return {
        "mean": _estimate_to_json(effects.mean),
        "tau2": effects.tau2,
        "i2": effects.i2,
        "sites": effects.sites,
    }
