"""Ingest of sites for a study: each site's feature table and cohort report, or the reason for its exclusion.

A site that cannot take part does not stop the others. Its cohort is released by `abaton.study_run.site_releases` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import numpy as np

from abaton.anonymity import AnonymitySettings
from abaton.errors import AbatonError, SettingsError
from abaton.features import DataQualityReport, FeatureTable
from abaton.site import (
    ConsentGate,
    LoadedSiteConfig,
    PreflightResult,
    SitePipeline,
    build_consent_gate,
    build_site,
    subject_pseudonym,
    summarise_pipeline,
)
from abaton.study import Study
from abaton.study_run.consent_roster import RemainingConsentGate, pseudonym_key

ProgressCallback = Callable[[str], None]
GateFactory = Callable[[LoadedSiteConfig, Study], ConsentGate]
"""Opens the consent gate of a site."""

ONE_CLASS = "only one class: a model of this outcome can neither be trained nor evaluated at this site"


@dataclass(frozen=True, slots=True)
class IngestedCohort:
    """Cohort of one site; never leaves the site as it is.

    Attributes:
        cells: Patient ids in each cell of the attrition.
        remarks: Findings on the site's records, in plain words; released at level `exact` only.
        legal_basis: Legal basis of the site, as text; contains no data.
    """

    cells: Mapping[str, tuple[str, ...]]
    remarks: tuple[str, ...]
    legal_basis: str


@dataclass(frozen=True, slots=True)
class SiteIngest:
    """Ingested data of one site.

    Attributes:
        file: The site's configuration.
        table: Its rows, in an order that depends only on their content; None if the site cannot take part.
        patient_ids: Patient id of each subject key of the rows; never leaves the site.
        anonymity: Anonymity settings of the study with the site's own k.
        cohort: Cells of the attrition and remarks, not released yet; None if the records could not be read.
        problem: Why the site cannot take part; empty if it can.
        key: Secret of the site for digests of its rows.
        pseudonym_for_patient: Returns the registry pseudonym of a Patient id; empty without a registry.
        patients_without_consent: Patient ids that were read and have no consent, or no longer.
        subjects_before_anonymisation: Subjects with a row before anonymisation.
    """

    file: LoadedSiteConfig
    table: FeatureTable | None
    patient_ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    anonymity: AnonymitySettings | None = None
    cohort: IngestedCohort | None = field(default=None, repr=False)
    problem: str = ""
    key: bytes = field(default=b"", repr=False)
    pseudonym_for_patient: Callable[[str], str] = field(default=lambda patient: "", repr=False)
    patients_without_consent: frozenset[str] = field(default=frozenset(), repr=False)
    subjects_before_anonymisation: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def name(self) -> str:
        """The id of the ingested site."""
        return self.file.config.site.id

    def pseudonym_for_subject(self, subject: str) -> str:
        """Return the registry pseudonym of a subject key of the ingested site."""
        return self.pseudonym_for_patient(self.patient_ids[subject])

    def is_removed(self, pseudonym: str) -> bool:
        """Return whether an ingested subject has no row because of a withdrawal or suppression by anonymisation."""
        assert self.table is not None
        suppressed = self.subjects_before_anonymisation - frozenset(self.table.subjects)
        withdrawn = map(self.pseudonym_for_patient, self.patients_without_consent)
        return pseudonym in {*withdrawn, *map(self.pseudonym_for_subject, suppressed)}

    def as_excluded(self, problem: str) -> SiteIngest:
        """Return the ingested site without its table, with the reason for its exclusion."""
        return replace(self, table=None, problem=problem)


def ingest_sites(
    study: Study,
    files: Sequence[LoadedSiteConfig],
    now: datetime,
    on_progress: ProgressCallback = lambda text: None,
    gate: GateFactory = build_consent_gate,
) -> list[SiteIngest]:
    """Ingest every site in turn: consent, de-identification, views and features.

    Args:
        study: The study.
        files: The sites' configurations.
        now: Time at which consents are checked and ages computed.
        on_progress: Receives progress texts without record content.
        gate: Opens the consent gate of a site.

    Raises:
        SettingsError: Two sites have the same id, or the study has no [learning] section.
    """
    names = [file.config.site.id for file in files]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(
            f"two sites have the id '{duplicate}'", where="sites", remedy="give each its own id"
        )
    if study.features is None or study.learning is None:
        raise SettingsError(
            "the study has no features or no [learning] section",
            where="study document",
            remedy="add [[views]], [features] and [learning]",
        )
    ingests = []
    for file in files:
        on_progress(f"reading {file.config.site.id}")
        ingests.append(_ingest_site(study, file, now, on_progress, gate))
    return ingests


def _ingest_site(
    study: Study, file: LoadedSiteConfig, now: datetime, on_progress: ProgressCallback, gate: GateFactory
) -> SiteIngest:
    try:
        file.config.limits.check_hours(now)
        site = build_site(file, study, now, gate=gate(file, study), on_progress=on_progress)
        return _build_table(file, site)
    except AbatonError as error:
        return SiteIngest(file, None, problem=" ".join(str(error).split()))


def _build_table(file: LoadedSiteConfig, site: SitePipeline) -> SiteIngest:
    features = site.table()
    summary = summarise_pipeline(site, features.report)
    table, problem = features.table, ""
    # The rows of a resumed run are compared one by one, however few remain.
    is_resumed = isinstance(site.gate, RemainingConsentGate)
    if table is None or not (summary.may_participate or is_resumed):
        table, problem = None, _exclusion_reason(features.report)
    elif not is_resumed and table.classes and len(np.unique(table.y)) < 2:
        table, problem = None, ONE_CLASS
    sorted_table = None if table is None else sort_rows(table)
    subjects = frozenset(() if sorted_table is None else sorted_table.subjects)
    ingest = SiteIngest(
        file,
        sorted_table,
        site.patient_ids,
        site.anonymity,
        IngestedCohort(site.attrition_cells(), _remarks(summary), site.gate.legal_basis_text()),
        problem,
        subjects_before_anonymisation=subjects,
    )
    key = pseudonym_key(site.gate)
    if key is None:
        return ingest
    return replace(
        ingest,
        key=key,
        pseudonym_for_patient=partial(subject_pseudonym, key),
        patients_without_consent=frozenset(site.without_consent),
    )


def _remarks(summary: PreflightResult) -> tuple[str, ...]:
    """Return what an ingest found, with reasons of skipped records but without their numbers and locations."""
    skipped = (f"records skipped: {reason}; 'abaton site check' counts them" for reason in summary.skipped)
    return (*skipped, *summary.remarks)


def _exclusion_reason(report: DataQualityReport) -> str:
    """Return why the ingest of a site has no table: the fatal issues, without counts."""
    fatal = [
        f"{issue.subject}: {issue.reason.value}; {issue.remedy}" for issue in report.issues if issue.is_fatal
    ]
    return "; ".join(dict.fromkeys(fatal)) or "no subject reaches the last stage"


def sort_rows(table: FeatureTable) -> FeatureTable:
    """Return ingested rows in an order that depends only on their content, not on the keys of the pseudonyms."""
    values = np.where(np.isnan(table.x), -np.inf, table.x)
    labels = table.y.T[::-1] if table.is_survival else [table.y]
    order = np.lexsort((*values.T[::-1], *labels)) if len(table) else np.arange(0)
    subjects = tuple(table.subjects[i] for i in order)
    return replace(table, x=table.x[order], y=table.y[order], subjects=subjects)
