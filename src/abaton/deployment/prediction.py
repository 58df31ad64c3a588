"""Predictions of a run's model for new patients, with checks of applicability."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.deployment.applicability import ApplicabilityIssue, applicability_issues, unusual_values
from abaton.deployment.new_patients import DEFAULT_LEGAL_BASIS, read_new_patients
from abaton.errors import RefusedError, SettingsError
from abaton.features import FeatureTable
from abaton.federation import COMMUNITY, Run
from abaton.federation.federation import state_folder
from abaton.metrics.classification import Recalibration
from abaton.study import study_from_toml
from abaton.study_run.local_benefit import load_personal_model, personal_models_path

Floats = NDArray[np.float64]


class NotApplicableError(RefusedError):
    """Patients to whom the model is not applicable.

    Args:
        issues: All blocking issues.
        source: Where the records are.
        is_empty: Whether no patient has a row, so that `force` does not help.
    """

    def __init__(self, issues: Sequence[ApplicabilityIssue], source: str, *, is_empty: bool) -> None:
        self.issues = tuple(issues)
        text = "; ".join(map(str, issues)) or "no patient can be predicted"
        remedy = (
            "correct the records" if is_empty else "correct the records, or predict regardless with --force"
        )
        super().__init__(text, where=source, remedy=remedy)


@dataclass(frozen=True, slots=True)
class PatientPrediction:
    """Prediction for one patient.

    Attributes:
        id: Id of the Patient resource.
        predicted: Predicted probability of each class, or the predicted value.
        calibrated: The same, recalibrated on the run's validation subjects if `metadata["recalibration"]` is 'fitted'.
        imputed: Missing inputs, replaced by the training mean.
        unusual: Columns whose value is far from the training mean.
    """

    id: str
    predicted: tuple[float, ...]
    calibrated: tuple[float, ...]
    imputed: tuple[str, ...]
    unusual: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a model for new patients.

    Attributes:
        metadata: Run, study, model and version; status of the recalibration, None if there is nothing to recalibrate.
        names: The classes, or the name of the outcome.
        patients: One prediction per patient, sorted by id.
        issues: Applicability issues, blocking ones first.
    """

    metadata: dict[str, Any]
    names: tuple[str, ...]
    patients: Sequence[PatientPrediction]
    issues: Sequence[ApplicabilityIssue]

    def row(self) -> dict[str, Any]:
        """Return the predictions for new patients as JSON values."""
        return {
            **self.metadata,
            "patients": [
                {
                    "patient": patient.id,
                    "predicted": dict(zip(self.names, patient.predicted, strict=True)),
                    "calibrated": dict(zip(self.names, patient.calibrated, strict=True)),
                    "imputed": list(patient.imputed),
                    "unusual": list(patient.unusual),
                }
                for patient in self.patients
            ],
            "issues": [
                {"scope": issue.scope, "what": issue.what, "is_blocking": issue.is_blocking}
                for issue in self.issues
            ],
        }

    def csv(self) -> str:
        """Return the predictions as CSV with one row per new patient."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        predicted, calibrated = (
            [f"{prefix} {name}" for name in self.names] for prefix in ("predicted", "calibrated")
        )
        writer.writerow(["patient", *predicted, *calibrated, "imputed", "unusual"])
        for patient in self.patients:
            values = [f"{value:.6g}" for value in (*patient.predicted, *patient.calibrated)]
            writer.writerow(
                [_escape_formula(patient.id), *values, "; ".join(patient.imputed), "; ".join(patient.unusual)]
            )
        return out.getvalue()


def predict(
    run: Run,
    source: Path,
    now: datetime,
    key: bytes,
    *,
    site: str = "",
    personalisation: str = "interpolate",
    force: bool = False,
    legal_basis: str = DEFAULT_LEGAL_BASIS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Predictions:
    """Predict for new patients, whose records pass the pipeline of the run's study, with applicability checks.

    Args:
        run: The run.
        source: A Bundle, NDJSON, a folder of them, or a `site.toml`.
        now: Reference date of ages.
        key: Key of the pseudonyms; not stored.
        site: Site whose personal model predicts; without it, the community model.
        personalisation: Method of the personal model.
        force: Whether to predict in spite of blocking issues.
        legal_basis: Legal basis of the access, for the audit log.
        on_progress: Called with progress texts that contain no record content.

    Raises:
        NotApplicableError: The model is not applicable to the patients.
        SettingsError: The run does not have the model.
    """
    deployment, recipe = run.row.recipe["deployment"], run.row.recipe
    if "known" not in deployment:
        raise SettingsError(
            f"run '{run.name}' is not a study run, or was created by an older version",
            where="predict",
            remedy="choose a run of 'abaton run' of this version, or use run.predict in Python",
        )
    study = study_from_toml(recipe["settings"]["study"])
    patients = read_new_patients(
        study,
        source,
        now,
        key,
        audit_dir=run.store.folder / "predictions",
        legal_basis=legal_basis,
        on_progress=on_progress,
    )
    issues = applicability_issues(patients, deployment)
    blocking = [issue for issue in issues if issue.is_blocking]
    if patients.table is None or (blocking and not force):
        raise NotApplicableError(blocking, str(source), is_empty=patients.table is None)
    on_progress("predicting")
    predicted, calibrated = _predict(run, patients.table, site, personalisation)
    names = tuple(deployment["classes"]) or (study.feature_spec().label.name,)
    unusual = unusual_values(patients.table.x, patients.table.columns, deployment)
    predictions = [
        PatientPrediction(
            patients.patient_ids[subject],
            tuple(predicted[i]),
            tuple(calibrated[i]),
            _imputed_inputs(patients.table, i),
            tuple(unusual[i]),
        )
        for i, subject in enumerate(patients.table.subjects)
    ]
    versions, line = run.versions, _recalibration(run)
    metadata = {
        "run": run.name,
        "study": recipe["study"]["id"],
        "model": f"{personalisation} at {site}" if site else COMMUNITY,
        "version": versions[-1].version,
        "digest": versions[-1].digest,
        "recalibration": None if site or line is None else line["status"],
    }
    return Predictions(metadata, names, sorted(predictions, key=lambda patient: patient.id), issues)


def _predict(run: Run, table: FeatureTable, site: str, personalisation: str) -> tuple[Floats, Floats]:
    """Return the predictions for every row of new patients, and the calibrated predictions."""
    if site:
        return _predict_personal(run, table, site, personalisation)
    predicted = np.asarray(run.predict(table.x), np.float64)
    if predicted.ndim == 1:
        return predicted[:, None], predicted[:, None]
    recalibration = _recalibration(run)
    if recalibration is None or recalibration["status"] != "fitted" or predicted.shape[1] != 2:
        return predicted, predicted
    line = Recalibration(recalibration["intercept"], recalibration["slope"])
    recalibrated = line.apply(predicted[:, 1])
    return predicted, np.stack([1 - recalibrated, recalibrated], axis=1)


def _recalibration(run: Run) -> dict[str, Any] | None:
    """Return the recalibration that a run has for its predictions; None unless it has two classes."""
    line: dict[str, Any] | None = run.result.get("evaluation", {}).get("recalibration", {}).get(COMMUNITY)
    return line


def _predict_personal(
    run: Run, table: FeatureTable, site: str, personalisation: str
) -> tuple[Floats, Floats]:
    """Return a personal model's predictions twice: it was fitted at the site and needs no recalibration."""
    deployment = run.row.recipe["deployment"]
    personal_model = load_personal_model(
        personal_models_path(state_folder(run.store, run.name), site), personalisation
    )
    classes = bool(deployment["classes"])
    predicted = personal_model.predict(
        run.model_definition, run.scale_rows(table.x), is_classification=classes
    )
    if classes:
        probabilities = np.stack([1 - predicted, predicted], axis=1)
        return probabilities, probabilities
    values = (predicted * deployment["label"][1] + deployment["label"][0])[:, None]
    return values, values


def _imputed_inputs(table: FeatureTable, row: int) -> tuple[str, ...]:
    gaps = (
        column.input
        for i, column in enumerate(table.columns)
        if column.has_statistics and np.isnan(table.x[row, i])
    )
    return tuple(dict.fromkeys(gaps))


def _escape_formula(patient_id: str) -> str:
    """Return a patient id of a prediction table that spreadsheets do not interpret as a formula."""
    return f"'{patient_id}" if patient_id[:1] in "=+-@\t\r" else patient_id
