"""New patients for a model: their records pass the study's pipeline from eligibility to features.

No record is stored. An audit log entry states the legal basis of the access; the key of the pseudonyms is not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from abaton.errors import SettingsError
from abaton.features import DataQualityReport, FeatureTable, build_features
from abaton.governance import record_legal_basis
from abaton.records.export import pseudonyms_for
from abaton.site import (
    AttritionStage,
    LoadedSiteConfig,
    SiteConfig,
    SitePipeline,
    StatedLegalBasis,
    load_site,
)
from abaton.site.factory import open_registry, open_source
from abaton.study import Study

DEFAULT_LEGAL_BASIS = (
    "care of these patients by the organisation that holds their records; no record is stored or sent"
)


@dataclass(frozen=True, slots=True)
class NewPatients:
    """New patients as rows of the model's columns.

    Attributes:
        table: One row per patient in the study's columns; `None` if no patient has a row.
        patient_ids: Patient id by the pseudonym of its row.
        report: Missing values, and the units and codes found.
        not_eligible: Number of patients by the reason for which they are not eligible.
        no_row: Number of eligible patients without a row, by reason.
        skipped: Number of records that could not be read, by reason.
    """

    table: FeatureTable | None
    patient_ids: dict[str, str] = field(repr=False)
    report: DataQualityReport
    not_eligible: dict[str, int]
    no_row: dict[str, int]
    skipped: dict[str, int]


def read_new_patients(
    study: Study,
    source: Path,
    now: datetime,
    key: bytes,
    *,
    audit_dir: Path,
    legal_basis: str = DEFAULT_LEGAL_BASIS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> NewPatients:
    """Read new patients' records from files or a site's source, through the study's pipeline.

    Args:
        study: The study whose pipeline is applied.
        source: A Bundle, NDJSON, a folder of them, or a `site.toml`.
        now: Reference date of ages.
        key: Key of the pseudonyms; not stored.
        audit_dir: Folder of the audit log, unless the site has one.
        legal_basis: Legal basis of the access, for the audit log.
        on_progress: Called with progress texts that contain no record content.

    Raises:
        SettingsError: The source does not exist.
    """
    if not source.exists():
        raise SettingsError(
            "the file or folder does not exist",
            where=str(source),
            remedy="give a Bundle, an NDJSON file, a folder of them, or a site.toml",
        )
    file = (
        load_site(source) if source.suffix == ".toml" else _config_for_files(source, audit_dir, legal_basis)
    )
    file.check_against(study)
    request = study.data_request(now.date())
    document = file.config
    gate = StatedLegalBasis(
        record_legal_basis(
            open_registry(file), study.study.id, study.hash, document.site.id, legal_basis, now
        )
    )
    names = pseudonyms_for(request, key, document.site.id)
    site = SitePipeline(document, study, open_source(file, study, request, on_progress), gate, names, now)
    plan = study.feature_spec().model_copy(
        update={"min_cell_count": 1}
    )  # the organisation that holds the records may see exact counts
    features = build_features(plan, site.records(), labelled=False)
    attrition = site.attrition.with_rows(features.rows, features.excluded)
    not_eligible = dict(attrition.excluded.get(AttritionStage.ELIGIBLE, {}))
    no_row = {
        reason: count
        for stage in (AttritionStage.RETAINED, AttritionStage.ROWS)
        for reason, count in attrition.excluded.get(stage, {}).items()
    }
    return NewPatients(
        features.table,
        dict(site.patient_ids),
        features.report,
        not_eligible,
        no_row,
        dict(site.errors.reasons),
    )


def _config_for_files(source: Path, audit_dir: Path, legal_basis: str) -> LoadedSiteConfig:
    """Return the configuration of a site whose records are these files of new patients."""
    document = SiteConfig.model_validate(
        {
            "site": {"id": "here", "name": "Records on this machine"},
            "records": {"source": "directory", "paths": [str(source.resolve())]},
            "consent": {"legal_basis": legal_basis},
        }
    )
    audit_dir.mkdir(parents=True, exist_ok=True)
    return LoadedSiteConfig(document, audit_dir, str(source), "")
