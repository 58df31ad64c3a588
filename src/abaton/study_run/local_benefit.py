"""Local benefit: at each site, the community model and personal models compared with the site's local-only model.

A site trains a local-only model as an analyst of its rows would (`abaton.study_run.baselines`), personalises the
community model by the methods that the study names, and evaluates all of them exactly on its own test rows. It releases
metrics and paired differences with intervals; rows, scores and models stay at the site, the personal models in a file.
Nothing is released if a class of the test rows is below `min_cell_count`. The site's value of the community model is
also the one of the site in the evaluation.

The interpolation weight is the mean over all weights by validation likelihood, because the best of eleven weights is
unstable with 25 validation subjects. Paired bootstrap is used for every metric, since DeLong covers AUROC only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import SettingsError
from abaton.federation.run import COMMUNITY
from abaton.layout import Vector
from abaton.learners.personalisation import PersonalModel, personalise_model
from abaton.metrics.classification import MetricEstimate, estimate_to_json
from abaton.metrics.meta_analysis import weighted_difference
from abaton.metrics.paired_bootstrap import (
    ModelComparison,
    Statistic,
    compare_models,
    probability_statistic,
    regression_statistic,
)
from abaton.metrics.predictions import is_survival_label
from abaton.metrics.survival import SurvivalComparison, compare_survival_models
from abaton.models import Examples, Model
from abaton.store import content_digest
from abaton.study import LearningSection
from abaton.study_run.baselines import (
    Baseline,
    baseline_kind,
    limit_batch_size,
    local_only_name,
    select_subjects,
    train_baseline,
)
from abaton.study_run.consented_learner import SubjectRows, select_rows, to_examples
from abaton.study_run.evaluation import EvaluationTarget, case_classes, metric_names
from abaton.study_run.preparation import PreparedSite
from abaton.training import TrainSettings

LOCAL_ONLY = "local_only"
"""Name of a site's local-only model in comparisons."""

_MAX_EPOCHS, _MAX_RESAMPLES = 2_000, 10_000  # five folds of 2,000 epochs at most
_LOWER_IS_BETTER = ("rmse", "mae", "brier")
_PERSONALISATION_DISABLED = "the site does not allow personal models"


@dataclass(frozen=True, slots=True)
class LocalBenefitSettings:
    """Settings of local-only training and of the bootstrap.

    Attributes:
        epochs: Most epochs of the local-only model: as many as the busiest learner of the run trained.
        seed: Seed of the initial weights, the order of rows and the bootstrap.
        bootstrap_resamples: Number of bootstrap samples.
    """

    epochs: int
    seed: int
    bootstrap_resamples: int

    def bounded(self) -> LocalBenefitSettings:
        """Return the local benefit settings with epochs and resamples limited to what a site computes on request."""
        return LocalBenefitSettings(
            min(self.epochs, _MAX_EPOCHS), self.seed, min(self.bootstrap_resamples, _MAX_RESAMPLES)
        )


@dataclass(frozen=True, slots=True)
class ModelBenefit:
    """Evaluation of one model at a site by the study's first metric.

    Attributes:
        value: The metric of the model.
        gain_over_local_only: Its difference to the local-only model.
        gain_over_community: Its difference to the community model.
        selected: Parameters of a personal model, selected on the site's validation subjects; of the local-only model
            its epochs or its penalty, selected by cross-validation.
    """

    value: MetricEstimate
    gain_over_local_only: MetricEstimate
    gain_over_community: MetricEstimate
    selected: Mapping[str, float] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Return a model's local benefit as JSON values; None for values that are not finite."""
        estimates = {
            name: list(estimate_to_json(getattr(self, name)).values())
            for name in ("value", "gain_over_local_only", "gain_over_community")
        }
        return {**estimates, "selected": dict(self.selected)}


@dataclass(frozen=True, slots=True)
class SiteBenefit:
    """Comparison of the models at one site.

    Attributes:
        benefits: Every compared model, the local-only and the community model first; None with too few subjects.
        reason: Why the site releases nothing, or has no personal models.
        personal_models: Personal models by method; they stay at the site.
        error: Standard error of the community model's difference to the local-only model; it stays at the site.
        rarer_class: Test subjects of the rarer class, or with an event; 0 for regression. It stays at the site.
    """

    benefits: Mapping[str, ModelBenefit] | None = None
    reason: str = ""
    personal_models: Mapping[str, PersonalModel] = field(default_factory=dict)
    error: float = math.nan
    rarer_class: int = 0


def site_benefit(
    site: PreparedSite,
    federation: EvaluationTarget,
    learning: LearningSection,
    models: tuple[Model, Vector],
    subjects: frozenset[str],
    settings: LocalBenefitSettings,
    local_only: Baseline | None = None,
) -> SiteBenefit:
    """Return a site's local benefit: compare local-only, community and personal models on its test rows.

    Args:
        site: The site.
        federation: The outcome of the study.
        learning: The study's learning section.
        models: The model definition and the community model's vector.
        subjects: Subjects whose rows may be used.
        settings: Settings of training and bootstrap.
        local_only: The site's local-only model, if it was trained before.
    """
    model, community = models
    rows = select_subjects(site.rows, subjects)
    is_used = np.array([subject in subjects for subject in site.test.subjects], dtype=bool)
    test, classes = to_examples(select_rows(site.test, is_used)), federation.classes
    is_survival = is_survival_label(test.y)
    events = test.y[:, 1].astype(np.int64) if is_survival else test.y
    class_count = 2 if is_survival else len(classes)
    sizes = np.bincount(events, minlength=class_count) if classes or is_survival else np.array([len(test.y)])
    too_few = f"fewer than {site.min_cell_count} subjects to train or test with"
    if len(rows.train.subjects) < site.min_cell_count:
        return SiteBenefit(reason=too_few)
    training = limit_batch_size(learning.build_strategy(2).training, site)
    personal_models, reason = _personalise(
        site, learning, models, rows, replace(training, epochs=settings.epochs), federation, settings
    )
    if sizes.min() < site.min_cell_count:
        return SiteBenefit(reason=too_few, personal_models=personal_models)
    if local_only is None:
        local_only = train_baseline(
            model, [rows], training, settings.epochs, settings.seed, len(federation.classes)
        )
    all_rows = to_examples(site.test)  # in one batch, as in the evaluation: the same bits
    predictions = {
        LOCAL_ONLY: local_only.predict(all_rows.x)[is_used],
        COMMUNITY: model.score(community, all_rows).predictions[is_used],
    }
    for method, personal_model in personal_models.items():
        probabilities = personal_model.predict(model, test.x, is_classification=bool(classes))
        predictions[method] = (
            np.stack([1 - probabilities, probabilities], axis=1) if classes else probabilities
        )
    comparison = _compare(predictions, test, federation, learning, settings)
    selected = {method: personal_model.selected() for method, personal_model in personal_models.items()}
    selected[LOCAL_ONLY] = dict(local_only.selected)
    benefits = {
        name: ModelBenefit(
            comparison.estimate(name),
            comparison.difference(name, LOCAL_ONLY),
            comparison.difference(name, COMMUNITY),
            selected.get(name, {}),
        )
        for name in predictions
    }
    error = comparison.standard_error(COMMUNITY, LOCAL_ONLY)
    rarer_class = int(sizes.min()) if classes or is_survival else 0
    return SiteBenefit(benefits, reason, personal_models, error, rarer_class)


def _personalise(
    site: PreparedSite,
    learning: LearningSection,
    models: tuple[Model, Vector],
    rows: SubjectRows,
    training: TrainSettings,
    federation: EvaluationTarget,
    settings: LocalBenefitSettings,
) -> tuple[dict[str, PersonalModel], str]:
    """Return the site's personal models by method for the local benefit, or the reason why there are none."""
    if not learning.personalise:
        return {}, ""
    if not site.file.config.limits.personalise:
        return {}, _PERSONALISATION_DISABLED
    if not len(rows.validation.subjects):
        return {}, "there are no validation subjects to select parameters with"
    examples = {"train": to_examples(rows.train), "validation": to_examples(rows.validation)}
    classes = bool(federation.classes)
    return {
        method: personalise_model(
            method, *models, examples, training, is_classification=classes, seed=settings.seed
        )
        for method in learning.personalise
    }, ""


def _compare(
    predictions: Mapping[str, NDArray[Any]],
    test: Examples,
    federation: EvaluationTarget,
    learning: LearningSection,
    settings: LocalBenefitSettings,
) -> ModelComparison | SurvivalComparison:
    """Compare models for the local benefit: predictions of the same subjects, by the study's first metric."""
    name, classes, level = metric_names(learning)[0], federation.classes, learning.evaluation.confidence_level
    if is_survival_label(test.y):
        return compare_survival_models(predictions, test.y, level=level)
    statistics: dict[str, Statistic]
    if classes:
        cases, specificity = case_classes(classes), learning.evaluation.specificity
        statistics = {
            model_name: probability_statistic(
                probabilities, test.y, cases, name, specificity=specificity, row_weights=test.weights
            )
            for model_name, probabilities in predictions.items()
        }
    else:
        mean, std = federation.label
        actual = np.asarray(test.y, np.float64) * std + mean
        statistics = {
            model_name: regression_statistic(values.reshape(-1).astype(np.float64) * std + mean, actual, name)
            for model_name, values in predictions.items()
        }
    strata = test.y if classes else np.zeros(len(test.y), np.int64)
    return compare_models(
        statistics, strata, level=level, resamples=settings.bootstrap_resamples, seed=settings.seed
    )


def add_benefits(
    learning: LearningSection, evaluation: Mapping[str, Any], benefits: Mapping[str, SiteBenefit]
) -> dict[str, Any]:
    """Return the results of a run with the sites' local benefit, and personal models if requested.

    Args:
        learning: The study's learning section.
        evaluation: The evaluation over all sites.
        benefits: The comparison at each site.
    """
    rows = _with_site_estimates(evaluation["rows"], metric_names(learning)[0], benefits)
    local_benefit = local_benefit_results(learning, benefits)
    results = {"evaluation": {**evaluation, "rows": rows, "local_benefit": local_benefit}}
    if not learning.personalise:
        return results
    subjects = {
        row["group"]: row["subjects"]
        for row in rows
        if row["grouping"] == "site" and row["model"] == COMMUNITY
    }
    return {**results, "personal_models": personalisation_results(learning, benefits, subjects)}


def _with_site_estimates(
    rows: Sequence[Mapping[str, Any]], metric: str, benefits: Mapping[str, SiteBenefit]
) -> list[dict[str, Any]]:
    """Return evaluation rows with the estimates that the sites computed for their local benefit.

    A site that is in no row because of few subjects in its released counts gets one. Rows of several classes remain:
    their local benefit is a mean over classes.
    """
    names = {(COMMUNITY, site): (site, COMMUNITY) for site in benefits}
    names |= {(local_only_name(site), site): (site, LOCAL_ONLY) for site in benefits}
    estimates = {
        key: estimate_to_json(site_benefits[model].value)
        for key, (site, model) in names.items()
        if (site_benefits := benefits[site].benefits) is not None
    }
    results = [dict(row) for row in rows]
    if any(", " in row["group"] for row in rows if row["grouping"] == "all"):
        return results
    for row in results:
        key = row["model"], row["group"]
        if row["grouping"] == "site" and row["metrics"] is not None and key in estimates:
            row["metrics"] = {**row["metrics"], metric: estimates[key]}
    with_row = {row["group"] for row in results if row["grouping"] == "site" and row["model"] == COMMUNITY}
    added = [
        {"model": COMMUNITY, "group": site, "grouping": "site", "subjects": "–", "sites": 1,
         "metrics": {metric: estimate}}
        for (model, site), estimate in estimates.items()
        if model == COMMUNITY and site not in with_row
    ]  # fmt: skip
    position = sum(row["model"] == COMMUNITY and row["grouping"] in ("all", "site") for row in results)
    return [*results[:position], *added, *results[position:]]


def local_benefit_results(learning: LearningSection, benefits: Mapping[str, SiteBenefit]) -> dict[str, Any]:
    """Return the local benefit as JSON values: the metric; per site both models, their difference, the baseline."""
    sites: dict[str, Any] = {}
    for site, benefit in benefits.items():
        sites[site] = None
        if benefit.benefits is not None:
            community = benefit.benefits[COMMUNITY]
            pair = {
                LOCAL_ONLY: benefit.benefits[LOCAL_ONLY].value,
                COMMUNITY: community.value,
                "difference": community.gain_over_local_only,
            }
            sites[site] = {
                **{name: estimate_to_json(estimate) for name, estimate in pair.items()},
                "baseline": baseline_kind(benefit.benefits[LOCAL_ONLY].selected),
            }
    overall = _overall_difference(benefits, learning.evaluation.confidence_level)
    return {"metric": metric_names(learning)[0], "sites": sites, **({"overall": overall} if overall else {})}


def _overall_difference(benefits: Mapping[str, SiteBenefit], level: float) -> dict[str, Any] | None:
    """Return the sites' mean difference in local benefit, weighted by the rarer class, and the number of sites.

    It needs the sites' standard errors, so there is none on a network, nor for one site, nor for regression.
    """
    known = [
        (benefit.benefits[COMMUNITY].gain_over_local_only.value, benefit.error, benefit.rarer_class)
        for benefit in benefits.values()
        if benefit.benefits is not None and benefit.rarer_class and math.isfinite(benefit.error)
    ]
    if len(known) < 2:
        return None
    differences, errors, counts = zip(*known, strict=True)
    return {
        **estimate_to_json(weighted_difference(differences, errors, counts, level)),
        "sites": len(known),
    }


def personalisation_results(
    learning: LearningSection, benefits: Mapping[str, SiteBenefit], subjects: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the personal models' part of the local benefit as JSON values: a row for each site and model.

    A gain is an improvement: for error metrics it is the decrease.

    Args:
        learning: The study's learning section.
        benefits: The comparison at each site.
        subjects: Released number of test subjects by site.
    """
    metric = metric_names(learning)[0]

    def improvement(estimate: MetricEstimate) -> dict[str, Any]:
        negated = MetricEstimate(-estimate.value, -estimate.high, -estimate.low)
        return {"metric": metric, **estimate_to_json(negated if metric in _LOWER_IS_BETTER else estimate)}

    rows = [
        {
            "site": site,
            "model": model,
            "selected": dict(model_benefit.selected),
            "metrics": {metric: estimate_to_json(model_benefit.value)},
            "subjects": subjects.get(site, "–"),
            "gain_over_local_only": improvement(model_benefit.gain_over_local_only),
            "gain_over_community": improvement(model_benefit.gain_over_community),
        }
        for site, benefit in benefits.items()
        if not benefit.reason and benefit.benefits is not None
        for model, model_benefit in benefit.benefits.items()
    ]
    excluded = {site: benefit.reason for site, benefit in benefits.items() if benefit.reason}
    return {"rows": rows, "excluded_sites": excluded}


def personal_models_path(folder: Path, name: str) -> Path:
    """Return the path of a site's personal models from the local benefit: by site or by run in a folder."""
    return folder / f"{content_digest(name.encode())[:32]}.personal.safetensors"


def save_personal_models(path: Path, models: Mapping[str, PersonalModel]) -> None:
    """Write a site's personal models, made for the local benefit: their weights and selected parameters."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    metadata = {}
    for method, model in models.items():
        arrays[COMMUNITY] = np.ascontiguousarray(model.community)
        if model.fine_tuned is not None:
            arrays[method] = np.ascontiguousarray(model.fine_tuned)
        metadata[method] = {"weight": model.weight, "calibration": list(model.calibration)}
    with map_os_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_bytes(save(arrays, metadata={"models": json.dumps(metadata)}))


def load_personal_model(path: Path, method: str) -> PersonalModel:
    """Read a personal model of a site that the local benefit has stored.

    Raises:
        SettingsError: There is no such model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            metadata = json.loads(file.metadata()["models"])[method]
            community = file.get_tensor(COMMUNITY)
            tuned = file.get_tensor(method) if method in file.keys() else None  # noqa: SIM118
        intercept, slope = metadata["calibration"]
        return PersonalModel(
            method, community, tuned, float(metadata["weight"]), (float(intercept), float(slope))
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"there is no personal model by '{method}'",
            where=str(path),
            remedy=f'write personalise = ["{method}"] under [learning] and run the study',
        ) from error
