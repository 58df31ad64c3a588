"""Report of a network run for the site itself: characteristics, events per parameter and exact performance there.

A site computes it from its own rows when the community model is evaluated, and stores it as JSON beside the run's
folder, readable by its account only. No message contains it; 'abaton site report' shows it as a page. Counts and
characteristics below `min_cell_count` are suppressed as in the report of a run on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.errors import SettingsError
from abaton.features import ColumnStatistics, FeatureTable, feature_columns
from abaton.federation.run import COMMUNITY
from abaton.layout import Vector
from abaton.models import Model
from abaton.store import content_digest
from abaton.study import Study
from abaton.study_run.cohort_description import (
    ALL,
    baseline_characteristics,
    describe_censoring,
    events_per_parameter,
)
from abaton.study_run.evaluation import evaluate_models
from abaton.study_run.prediction_performance import performance_results, predict_test_rows
from abaton.study_run.preparation import PreparedSites
from abaton.study_run.preparation_state import CommonScale, PreparationState
from abaton.study_run.site_run_state import StoredPreparation


def site_characteristics(study: Study, name: str, table: FeatureTable) -> dict[str, Any]:
    """Return the characteristics of one site's subjects for its own report, before scaling, as JSON values."""
    characteristics = baseline_characteristics(study, {name: table}, table.min_cell_count)
    characteristics["sites"].pop(ALL, None)
    return {**characteristics, "censoring": describe_censoring({name: table}, {})}


def make_site_report(
    study: Study,
    preparation: StoredPreparation,
    models: tuple[Model, Vector],
    subjects: frozenset[str],
    local: Mapping[str, Vector],
    characteristics: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a site's own report of a network run as JSON values.

    Args:
        study: The study.
        preparation: The prepared site.
        models: The model definition and the community model.
        subjects: Subjects whose rows may be used.
        local: Local layers of the site.
        characteristics: From :func:`site_characteristics`, at the start of the run.
    """
    assert study.learning is not None
    (model, vector), site, learning = models, preparation.site, study.learning
    shared = PreparationState(None, {}, CommonScale(ColumnStatistics({}), preparation.label), {})
    columns = feature_columns(study.feature_spec())
    prepared = PreparedSites((site,), {}, columns, preparation.classes, shared, None)
    used, layers = {site.name: subjects}, {site.name: local}
    evaluation = evaluate_models(
        learning,
        prepared,
        model,
        {COMMUNITY: vector},
        lambda _: subjects,
        seed=preparation.seed,
        local=layers,
    )
    report = {
        "site": site.name,
        "study": study.study.title,
        "rows": [row for row in evaluation["rows"] if row["grouping"] != "all"],
        "characteristics": dict(characteristics),
        "events_per_parameter": events_per_parameter(
            prepared, used, model.layout.trained.size, site.min_cell_count
        ),
        "performance": None,
    }
    if len(preparation.classes) == 2:
        predictions = predict_test_rows(prepared, model, vector, used, layers)
        report["performance"] = performance_results(predictions, learning.evaluation.confidence_level)
    return report


def site_report_path(folder: Path, run: str) -> Path:
    """Return the path of a site's own report of a run in the folder of its workers."""
    return folder / f"{content_digest(run.encode())[:32]}.report.json"


def write_site_report(path: Path, run: str, report: Mapping[str, Any]) -> None:
    """Write a site's own report of a run, readable by its account only."""
    with map_os_errors(path.parent), atomic_write(path, mode=0o600) as temporary_path:
        temporary_path.write_text(json.dumps({"run": run, **report}))


def read_site_report(data_dir: Path, run: str) -> dict[str, Any]:
    """Return a site's own report of a run from the data folder of 'abaton site join'.

    Raises:
        SettingsError: There is none.
    """
    name = site_report_path(data_dir, run).name
    path = next(iter(sorted(data_dir.rglob(name))), None)
    if path is None:
        raise SettingsError(
            f"the site has no report of run '{run}'",
            where=str(data_dir),
            remedy="give the data folder of 'abaton site join'; the report exists after the run's evaluation",
        )
    report: dict[str, Any] = json.loads(path.read_text())
    return report
