"""Record pipeline of a site: read, eligible, consented, retained, as a stream with attrition counts.

Invariants:
(1) the pipeline yields only :class:`~abaton.record_types.DeidentifiedRecord` of consented subjects;
(2) a subject is counted at every stage that it reaches, and once with a reason where it is excluded;
(3) memory is bounded by the records of one subject; temporary files are removed when the stream ends;
(4) reasons and counts contain no values of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from abaton.anonymity import AnonymitySettings
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import DataRequest
from abaton.deid.transform_counts import TransformCounts
from abaton.disclosure.attrition import (
    NO_ROW,
    OTHER_REASON,
    RELEASED_STAGES,
    Attrition,
    AttritionStage,
    assign_cells,
    attrition_cell,
)
from abaton.errors import RefusedError
from abaton.features import FeatureResult, Imputation, MissingReason, build_features_by_subject
from abaton.fhir.bundles import split_deidentified_bundle
from abaton.record_types import ConsentedRecord, DeidentifiedRecord, Record
from abaton.site.config import SiteConfig
from abaton.site.config_reader import min_cell_count, weaker_settings
from abaton.site.consent_gate import ConsentGate, PermissionDecision
from abaton.site.sources.base import RecordSource, SourceErrors
from abaton.site.sources.queries import required_types
from abaton.site.subject_grouper import SubjectGrouper, SubjectRecords, group_bundle
from abaton.study import Study, evaluate_eligibility

_TOO_MANY_RECORDS = "has more records than limits.memory_mib allows"
_NO_RECORDS = "has no record that the study needs"
_REFUSED = "cannot be de-identified"
_LABEL_REASONS = (
    MissingReason.NO_LABEL,
    MissingReason.NO_DATE,
    MissingReason.COARSE_DATE,
    MissingReason.BEFORE,
    MissingReason.CENSORED,
)


@dataclass(frozen=True, slots=True)
class AcceptedSubject:
    """De-identified records of a consented subject.

    ``subject`` is the Patient id at the site, for consent checks in every round; it stays at the site. ``identity`` is
    the pseudonym in the records.
    """

    subject: str
    identity: str
    records: tuple[DeidentifiedRecord, ...]

    @property
    def key(self) -> str:
        """Reference to a subject accepted by the record pipeline, in records and in rows of views."""
        return f"Patient/{self.identity}"

    def __repr__(self) -> str:
        return f"AcceptedSubject({self.identity})"


@dataclass
class SitePipeline:
    """Record pipeline of one site for one study.

    Args:
        config: The site configuration.
        study: The study.
        source: The record source.
        gate: The consent gate.
        pseudonyms: The study's pseudonyms at this site.
        now: Time for consents and ages.
        temporary_folder: Folder of the temporary file; by default that of the system.
    """

    config: SiteConfig
    study: Study
    source: RecordSource
    gate: ConsentGate
    pseudonyms: Pseudonyms
    now: datetime
    temporary_folder: Path | None = None
    attrition: Attrition = field(default_factory=Attrition, init=False)
    records_read: Counter[str] = field(default_factory=Counter, init=False)
    withheld: Counter[str] = field(default_factory=Counter, init=False)
    transform_counts: TransformCounts = field(default_factory=TransformCounts, init=False)
    without_consent: set[str] = field(default_factory=set, init=False, repr=False)
    """Patient ids of subjects that were read but have not consented; stays at the site."""
    patient_ids: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """Patient ids of accepted subjects by their key in rows; stays at the site."""
    outcomes: dict[str, tuple[AttritionStage, str]] = field(default_factory=dict, init=False, repr=False)
    """Of each Patient id with a legal basis: the last stage, or the stage not reached and why; stays at the site."""

    def __post_init__(self) -> None:
        if problem := next(weaker_settings(self.config, self.study), None):
            _, what, remedy = problem
            raise RefusedError(what, where="[rules] of the site", remedy=remedy)

    @property
    def errors(self) -> SourceErrors:
        """Records that the site's record pipeline could not read or assign to a subject."""
        return self.source.errors

    @property
    def data_request(self) -> DataRequest:
        """Data that the study needs at the time of the site's record pipeline."""
        return self.study.data_request(self.now.date())

    @property
    def anonymity(self) -> AnonymitySettings | None:
        """Anonymity settings of the site's record pipeline: the study's, with the site's k if that is larger."""
        settings = self.study.privacy.anonymity
        return None if settings is None else replace(settings, k=max(settings.k, self.config.rules.k or 0))

    def accepted_subjects(self) -> Iterator[AcceptedSubject]:
        """Run the record pipeline: yield each eligible, consented subject with its de-identified records."""
        self.attrition, self.transform_counts = Attrition(), TransformCounts()
        self.records_read, self.withheld = Counter(), Counter()
        self.errors.clear()
        self.patient_ids, self.without_consent, self.outcomes = {}, set(), {}
        deidentify = _SubjectDeidentifier(self)
        for subject in self._subjects():
            self.attrition.count_subject(AttritionStage.READ)
            if reason := self._ineligibility_reason(subject):
                self.attrition.exclude_subject(AttritionStage.ELIGIBLE, reason)
                continue
            self.attrition.count_subject(AttritionStage.ELIGIBLE)
            permission = self.gate(subject.id, self.now, resource_types=deidentify.released_types(subject))
            if not permission.allowed:
                self.attrition.exclude_subject(AttritionStage.CONSENTED, permission.reason)
                self.without_consent.add(subject.id)
                continue
            self.attrition.count_subject(AttritionStage.CONSENTED)
            try:
                records = deidentify(subject, permission)
            except RefusedError as error:
                self.attrition.exclude_subject(AttritionStage.RETAINED, f"refused: {error.what}")
                self.outcomes[subject.id] = AttritionStage.RETAINED, _REFUSED
                continue
            if not records:
                self.attrition.exclude_subject(AttritionStage.RETAINED, _NO_RECORDS)
                self.outcomes[subject.id] = AttritionStage.RETAINED, _NO_RECORDS
                continue
            self.attrition.count_subject(AttritionStage.RETAINED)
            self.outcomes[subject.id] = AttritionStage.ROWS, NO_ROW
            accepted = AcceptedSubject(subject.id, self.pseudonyms.identity("Patient", subject.id), records)
            self.patient_ids[accepted.key] = subject.id
            yield accepted
        self.transform_counts = deidentify.transform_counts()

    def records(self) -> Iterator[DeidentifiedRecord]:
        """Yield the de-identified records of all subjects accepted by the site's record pipeline."""
        for subject in self.accepted_subjects():
            yield from subject.records

    def table(self) -> FeatureResult:
        """Return the feature table of the site's record pipeline: a row per accepted subject with required data.

        Raises:
            SettingsError: The study has no features.
            RefusedError: A view gives rows of persons who are not accepted, such as the holder of an insurance.
        """
        threshold = min_cell_count(self.config, self.study)
        spec = self.study.feature_spec().model_copy(update={"min_cell_count": threshold})
        features = build_features_by_subject(spec, (subject.records for subject in self.accepted_subjects()))
        subjects = set(features.table.subjects) if features.table is not None else set()
        if subjects - self.patient_ids.keys() or features.rows + features.excluded.total() > len(
            self.patient_ids
        ):
            raise RefusedError(
                "a view of the study gives rows of persons who have not consented",
                where="[[views]]",
                remedy="let the column 'subject' refer to the subject of the record",
            )
        self.attrition = self.attrition.with_rows(features.rows, features.excluded)
        for key, reason in (*dict.fromkeys(features.row_subjects, "").items(), *features.reasons.items()):
            self.outcomes[self.patient_ids[key]] = AttritionStage.ROWS, reason
        return features

    def attrition_cells(self) -> dict[str, tuple[str, ...]]:
        """Return the Patient ids in each cell of the attrition that a site releases; they stay at the site."""
        assert self.study.features is not None
        label = self.study.features.label.name
        reasons = {
            AttritionStage.RETAINED: [_REFUSED, _NO_RECORDS],
            AttritionStage.ROWS: [
                *(f"{label}: {reason.value}" for reason in _LABEL_REASONS),
                *(
                    f"{spec.name}: {MissingReason.NO_VALUE.value}"
                    for spec in self.study.features.inputs
                    if spec.imputation is Imputation.DROP
                ),
                NO_ROW,
                OTHER_REASON,
            ],
        }
        names = [attrition_cell(stage, reason) for stage, texts in reasons.items() for reason in texts]
        return assign_cells(self.outcomes, [*names, attrition_cell(RELEASED_STAGES[-1])])

    def _subjects(self) -> Iterator[SubjectRecords]:
        types, memory_mib = (
            required_types(self.data_request, self.study.eligibility),
            self.config.limits.memory_mib,
        )
        if self.source.is_grouped:
            for record in self.source.records():
                yield group_bundle(record, types, self.records_read, memory_mib)
        else:
            with closing(SubjectGrouper(types, self.errors, self.temporary_folder, memory_mib)) as grouper:
                for record in self.source.records():
                    grouper.add(record)
                self.records_read = grouper.records_read
                yield from grouper.subjects()
        self.source.close()

    def _ineligibility_reason(self, subject: SubjectRecords) -> str:
        if subject.is_too_large:
            return _TOO_MANY_RECORDS
        contents = [record.content for record in subject.records]
        reasons = evaluate_eligibility(self.study.eligibility, contents, self.now.date()).reasons
        return reasons[0] if reasons else ""


class _SubjectDeidentifier:
    """De-identification of the records of consented subjects: the study's rules, then the site's."""

    def __init__(self, site: SitePipeline) -> None:
        rules, request = site.config.rules, site.data_request
        self._site, self._required_types = site, request.types | {"Patient"}
        self._study_rules = Deidentifier(request, site.pseudonyms, year=site.now.year)
        extra = tuple(rule.to_rule() for rule in rules.deidentification)
        dates = rules.dates if rules.dates is not request.deidentification.dates else None
        self._site_rules = self._study_rules.with_extra_rules(extra, dates) if extra or dates else None
        self.transform_counts = self._study_rules.take_counts

    def released_types(self, subject: SubjectRecords) -> frozenset[str]:
        """Return the types of a subject's records that would pass the site's record pipeline."""
        return self._required_types & {record.type for record in subject.records}

    def __call__(
        self, subject: SubjectRecords, permission: PermissionDecision
    ) -> tuple[DeidentifiedRecord, ...]:
        """De-identify a subject's records in the pipeline, without types that site or consent excludes."""
        reasons = dict.fromkeys(permission.uncovered_types, "not covered by the consent")
        reasons |= dict.fromkeys(self._site.config.rules.excluded_types, "excluded by the site")
        entries = []
        for url, record in subject.entries:
            if record.type in reasons and record.type in self._required_types:
                self._site.withheld[f"{record.type}: {reasons[record.type]}"] += 1
            else:
                entries.append({"resource": record.content, **({"fullUrl": url} if url else {})})
        bundle = Record({"resourceType": "Bundle", "type": "collection", "entry": entries})
        assert permission.legal_basis is not None  # a permission always has a legal basis
        deidentified = self._study_rules(ConsentedRecord(bundle, permission.legal_basis))
        if deidentified is not None and self._site_rules is not None:
            deidentified = self._site_rules(deidentified)
        return () if deidentified is None else tuple(split_deidentified_bundle(deidentified))
