"""Internal-external validation: for each site, the federation is run without it and evaluated on its subjects.

The runs are in memory, on one machine, with the seed and the settings of the study; scaling and training use no row
of the omitted site. The common recoding for k-anonymity, which uses no outcome, is that of all sites. Subjects are
those in force at the end of the study's run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from abaton.engines import MachineProfile
from abaton.errors import RefusedError, SettingsError
from abaton.features import (
    ColumnStatistics,
    ScaledTable,
    column_statistics,
    model_columns,
    pool_statistics,
    scale_table,
)
from abaton.federation.federation import Federation
from abaton.federation.participants import LocalSite
from abaton.metrics.calibration_curve import observed_expected_ratio
from abaton.metrics.classification import count_scores, estimate_to_json, evaluate_classifier
from abaton.metrics.meta_analysis import combine_auroc
from abaton.store import Store
from abaton.study import LearningSection, Study
from abaton.study_run.consented_learner import select_rows, to_examples
from abaton.study_run.prediction_performance import has_enough
from abaton.study_run.preparation import MIN_SITES, PreparedSite, PreparedSites, SplitTable

_MAX_NAME = 120


def check_on_network(study: Study) -> None:
    """Refuse internal-external validation on a network: it needs the rows of all sites on one machine.

    Raises:
        SettingsError: The study requests it.
    """
    if study.learning is not None and study.learning.evaluation.internal_external:
        raise SettingsError(
            "internal-external validation is not available on a network",
            where="learning.evaluation.internal_external",
            remedy="remove it, or run the study on one machine with 'abaton run'",
        )


def check_sites(learning: LearningSection, prepared: PreparedSites) -> None:
    """Refuse internal-external validation before training where too few sites or other classes make it impossible.

    Raises:
        SettingsError: The outcome does not have two classes.
        RefusedError: Fewer than two sites would remain without one.
    """
    if not learning.evaluation.internal_external:
        return
    if len(prepared.classes) != 2:
        raise SettingsError(
            "internal-external validation needs an outcome of two classes",
            where="learning.evaluation.internal_external",
            remedy="remove it",
        )
    if len(prepared.sites) <= MIN_SITES:
        raise RefusedError(
            f"internal-external validation needs {MIN_SITES + 1} sites, {len(prepared.sites)} can take part",
            where="; ".join(f"{name}: {reason}" for name, reason in prepared.excluded_sites.items()),
            remedy="add sites, or remove learning.evaluation.internal_external",
        )


def validate_by_site(
    learning: LearningSection,
    prepared: PreparedSites,
    subjects: Mapping[str, frozenset[str]],
    profiles: Mapping[str, MachineProfile],
    *,
    seed: int,
    run: str,
) -> dict[str, Any]:
    """Return the internal-external validation of a study as JSON values: performance at each omitted site.

    Args:
        learning: The study's learning section.
        prepared: The sites on this machine.
        subjects: Subjects of each site whose rows may be used.
        profiles: Speed of each site's machine under the virtual clock.
        seed: Seed of the study's run.
        run: Name of the study's run; the runs without a site are named after it.
    """
    sites, level = {}, learning.evaluation.confidence_level
    estimates = []
    pairs = list(zip(prepared.sites, prepared.splits, strict=True))
    for omitted, split in pairs:
        others = [
            pair for pair in pairs
            if pair[0].name != omitted.name and _training_count(pair[0], subjects) >= pair[0].min_cell_count
        ]  # fmt: skip
        used = subjects[omitted.name]
        labels = np.array(
            [y for y, s in zip(split.table.y, split.table.subjects, strict=True) if s in used], int
        )
        count = len(labels)
        threshold = omitted.min_cell_count
        row: dict[str, Any] = {
            "subjects": f"<{threshold}" if 0 < count < threshold else str(count),
            "metrics": None,
        }
        sites[omitted.name] = row
        if len(others) < MIN_SITES or not has_enough(labels):
            continue
        name = f"{run}-without-{omitted.name}"[:_MAX_NAME]
        probabilities = _predict_omitted(
            learning, prepared, (omitted, split), others, subjects, profiles, seed, name
        )
        weights = split.table.without(frozenset(split.table.subjects) - used).weights
        counts = count_scores(probabilities, labels, weights=weights)
        estimates.append(counts.auroc_estimate())
        metrics = evaluate_classifier(counts, resamples=0, level=level)
        row["metrics"] = {
            "auroc": estimate_to_json(metrics["auroc"]),
            "calibration_slope": estimate_to_json(metrics["calibration slope"]),
            "observed_expected": estimate_to_json(
                observed_expected_ratio(probabilities, labels, level, weights)
            ),
        }
    combined = combine_auroc(estimates, level)
    return {"sites": sites, "auroc": None if combined is None else asdict(combined)}


def _training_count(site: PreparedSite, subjects: Mapping[str, frozenset[str]]) -> int:
    return sum(subject in subjects[site.name] for subject in site.rows.train.subjects)


def _predict_omitted(
    learning: LearningSection,
    prepared: PreparedSites,
    omitted: tuple[PreparedSite, SplitTable],
    others: list[tuple[PreparedSite, SplitTable]],
    subjects: Mapping[str, frozenset[str]],
    profiles: Mapping[str, MachineProfile],
    seed: int,
    name: str,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the predictions of an internal-external validation for all subjects in force at the omitted site."""
    scale = pool_statistics(_statistics(site, split, subjects[site.name]) for site, split in others)
    participants = {}
    for site, split in others:
        table = scale_table(split.table, scale)
        train, validation = (
            to_examples(_select(table, frozenset(part.subjects) & subjects[site.name]))
            for part in (site.rows.train, site.rows.validation)
        )
        profile = profiles.get(site.name, MachineProfile())
        participants[site.name] = LocalSite(train, validation if len(validation.y) else None, profile)
    model = learning.build_model(features=len(model_columns(prepared.columns)), classes=len(prepared.classes))
    strategy = learning.build_strategy(len(participants), seed=seed)
    limits = [site.file.config.limits.max_batch_size for site, _ in others]
    batch_size = min([strategy.training.batch_size, *(limit for limit in limits if limit is not None)])
    strategy = replace(strategy, training=replace(strategy.training, batch_size=batch_size))
    federation = Federation(
        model, participants, strategy, learning.build_codec(), downlink=learning.build_downlink()
    )
    with TemporaryDirectory() as folder, Store(Path(folder)) as store:
        vector = store.model_files.get(federation.run(name, store=store).result["digest"])
    site, split = omitted
    rows = to_examples(_select(scale_table(split.table, scale), subjects[site.name]))
    return np.clip(np.asarray(model.score(vector, rows).predictions[:, 1], np.float64), 0, 1)


def _statistics(site: PreparedSite, split: SplitTable, subjects: frozenset[str]) -> ColumnStatistics:
    """Return a site's sums for scaling in an internal-external validation: training and validation subjects."""
    used = frozenset((*site.rows.train.subjects, *site.rows.validation.subjects)) & subjects
    return column_statistics(split.table.without(frozenset(split.table.subjects) - used))


def _select(table: ScaledTable, subjects: frozenset[str]) -> ScaledTable:
    return select_rows(table, np.array([subject in subjects for subject in table.subjects], dtype=bool))
