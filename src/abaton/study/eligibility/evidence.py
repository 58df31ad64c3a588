"""Evidence for criteria in a subject's records, and three-valued logic on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple

from abaton.fhir.partial_dates import PartialDate, PartialPeriod, parse_local_date, resource_period


class Ternary(StrEnum):
    """Result of a criterion: met, not met or unknown."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "unknown"


class CriterionFinding(NamedTuple):
    """Answer with its reason, which names the kind of evidence and never a value."""

    answer: Ternary
    reason: str = ""


MET, NOT_MET = (
    CriterionFinding(Ternary.MET, "the records meet it"),
    CriterionFinding(Ternary.NOT_MET, "the records do not meet it"),
)


def unknown(reason: str) -> CriterionFinding:
    """Return a finding of unknown evidence for a criterion, with its reason."""
    return CriterionFinding(Ternary.UNKNOWN, reason)


def all_of(*findings: CriterionFinding) -> CriterionFinding:
    """Combine findings of evidence by Kleene's *and*: no before unknown before yes."""
    return _strongest(findings, (Ternary.NOT_MET, Ternary.UNKNOWN, Ternary.MET), MET)


def any_of(findings: Iterable[CriterionFinding]) -> CriterionFinding:
    """Combine findings of evidence by Kleene's *or*: yes before unknown before no; no without findings."""
    return _strongest(findings, (Ternary.MET, Ternary.UNKNOWN, Ternary.NOT_MET), NOT_MET)


def negate(finding: CriterionFinding) -> CriterionFinding:
    """Return the negation of a finding of evidence; unknown stays unknown."""
    negation = {Ternary.MET: Ternary.NOT_MET, Ternary.NOT_MET: Ternary.MET, Ternary.UNKNOWN: Ternary.UNKNOWN}
    return CriterionFinding(negation[finding.answer], finding.reason)


def _strongest(
    findings: Iterable[CriterionFinding], order: tuple[Ternary, ...], empty: CriterionFinding
) -> CriterionFinding:
    return min(findings, key=lambda finding: order.index(finding.answer), default=empty)


Resource = Mapping[str, Any]


class EvidenceSource(NamedTuple):
    """Elements of a resource type that hold its codes and dates, and the status codes that void it."""

    codes: tuple[str, ...]
    dates: tuple[str, ...]
    void_statuses: frozenset[str] = frozenset(
        {"entered-in-error", "cancelled", "not-done", "planned", "draft"}
    )


_VOID_MEDICATION = frozenset({"entered-in-error", "cancelled", "not-done", "draft", "not-taken", "intended"})
_VOID_RESULT = frozenset({"entered-in-error", "cancelled", "registered"})
_OBSERVED = ("effectiveDateTime", "effectivePeriod", "effectiveInstant", "issued")
_MEDICATION = ("medicationCodeableConcept", "medicationReference")
_CONDITION = EvidenceSource(("code",), ("onsetDateTime", "onsetPeriod", "recordedDate"))
_OBSERVATION = EvidenceSource(("code", "valueCodeableConcept"), _OBSERVED, _VOID_RESULT)
_PROCEDURE = EvidenceSource(
    ("code",), ("performedDateTime", "performedPeriod"), frozenset({*_VOID_MEDICATION, "preparation"})
)

SOURCES: dict[str, dict[str, EvidenceSource]] = {
    "condition": {"Condition": _CONDITION},
    "finding": {"Condition": _CONDITION, "Observation": _OBSERVATION},
    "medication": {
        "MedicationRequest": EvidenceSource(_MEDICATION, ("authoredOn",), _VOID_MEDICATION),
        "MedicationStatement": EvidenceSource(
            _MEDICATION, ("effectivePeriod", "effectiveDateTime", "dateAsserted"), _VOID_MEDICATION
        ),
        "MedicationAdministration": EvidenceSource(
            _MEDICATION, ("effectivePeriod", "effectiveDateTime"), _VOID_MEDICATION
        ),
        "MedicationDispense": EvidenceSource(
            _MEDICATION, ("whenHandedOver", "whenPrepared"), _VOID_MEDICATION
        ),
    },
    "procedure": {"Procedure": _PROCEDURE},
    "encounter": {"Encounter": EvidenceSource(("class", "type", "serviceType", "reasonCode"), ("period",))},
    "test": {
        "DiagnosticReport": EvidenceSource(("code",), _OBSERVED, _VOID_RESULT),
        "Observation": EvidenceSource(("code",), _OBSERVED, _VOID_RESULT),
        "Procedure": _PROCEDURE,
    },
    "consent": {
        "Consent": EvidenceSource(
            ("scope", "category", "policyRule"),
            ("dateTime",),
            frozenset({"draft", "proposed", "rejected", "inactive", "entered-in-error"}),
        )
    },
    "observation": {"Observation": EvidenceSource(("code",), _OBSERVED, _VOID_RESULT)},
}


def list_items(holder: object, name: str) -> list[Resource]:
    """Return the objects of a list element of a record; other shapes are no evidence."""
    items = holder.get(name) if isinstance(holder, Mapping) else None
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


@dataclass
class SubjectEvidence:
    """Resources of one subject by type and by reference."""

    by_type: dict[str, list[Resource]] = field(default_factory=dict)
    by_reference: dict[str, Resource] = field(default_factory=dict)

    @classmethod
    def from_records(cls, records: Iterable[Resource]) -> SubjectEvidence:
        """Index a subject's resources as evidence for eligibility; Bundles are split."""
        evidence = cls()
        for name, resource in _split_bundles(records):
            evidence.by_type.setdefault(str(resource.get("resourceType")), []).append(resource)
            evidence.by_reference[f"{resource.get('resourceType')}/{resource.get('id')}"] = resource
            if name:
                evidence.by_reference[name] = resource
        return evidence

    def entries(self, criterion_type: str) -> Iterator[tuple[Resource, EvidenceSource]]:
        """Yield the records that are evidence for a type of criterion; void ones are dropped."""
        for resource_type, source in SOURCES[criterion_type].items():
            for resource in self.by_type.get(resource_type, ()):
                void = str(resource.get("status")) in source.void_statuses or "refuted" in _verification(
                    resource
                )
                if not void:
                    yield resource, source

    def codings(self, resource: Resource, source: EvidenceSource) -> list[Resource]:
        """Return all codings of a record that are evidence: they say what it is about."""
        codings: list[Resource] = []
        for name in source.codes:
            value = resource.get(name)
            for concept in value if isinstance(value, list) else [value]:
                codings += self._codings(concept, resource)
        return codings

    def _codings(self, concept: object, holder: Resource) -> list[Resource]:
        if not isinstance(concept, Mapping):
            return []
        if isinstance(reference := concept.get("reference"), str):
            target = self._target(reference, holder)
            return self._codings(target.get("code"), target) if target else []
        codings = (
            list_items(concept, "coding") if "coding" in concept else [concept]
        )  # Encounter.class is a Coding
        return [coding for coding in codings if isinstance(coding.get("code"), str)]

    def _target(self, reference: str, holder: Resource) -> Resource | None:
        if reference.startswith("#"):
            return next((r for r in list_items(holder, "contained") if r.get("id") == reference[1:]), None)
        return self.by_reference.get(reference) or self.by_reference.get("/".join(reference.split("/")[-2:]))


def _split_bundles(records: Iterable[Resource]) -> Iterator[tuple[str, Resource]]:
    for record in records:
        if record.get("resourceType") != "Bundle":
            yield "", record
            continue
        for entry in list_items(record, "entry"):
            if isinstance(resource := entry.get("resource"), Mapping):
                yield str(entry.get("fullUrl", "")), resource


def _status_codes(resource: Resource, name: str) -> set[str]:
    value = resource.get(name)
    return {str(coding.get("code")) for coding in list_items(value, "coding")}


def _verification(resource: Resource) -> set[str]:
    """Return the verification codes of a Condition as evidence; an entry in error counts as refuted."""
    codes = _status_codes(resource, "verificationStatus")
    return codes | {"refuted"} if "entered-in-error" in codes else codes


def confirmed(resource: Resource) -> CriterionFinding:
    """Return whether a record is confirmed evidence, or unknown if it is only suspected."""
    if _verification(resource) & {"unconfirmed", "provisional", "differential"}:
        return unknown("a matching record is not confirmed")
    if resource.get("status") == "unknown":
        return unknown("a matching record's status is unknown")
    return MET


def record_period(resource: Resource, source: EvidenceSource, today: date) -> PartialPeriod | None:
    """Return when the evidence of a record took place; a Condition lasts until its abatement."""
    period = resource_period(resource, source.dates, today)
    if period is None or resource.get("resourceType") != "Condition":
        return period
    abatement = resource_period(resource, ("abatementDateTime", "abatementPeriod"), today)
    if abatement:
        return PartialPeriod(period.start, abatement.end)
    is_over = _status_codes(resource, "clinicalStatus") & {"inactive", "remission", "resolved"}
    return PartialPeriod(period.start, PartialDate(period.start.first if is_over else today, today))


def birth_date(records: SubjectEvidence) -> PartialDate | None:
    """Return the dates on which a subject may have been born by the evidence of its records."""
    patient = only_patient(records)
    return parse_local_date(patient.get("birthDate")) if patient else None


def only_patient(records: SubjectEvidence) -> Resource | None:
    """Return the only Patient of a subject's evidence; None if there is none or several."""
    patients = records.by_type.get("Patient", [])
    return patients[0] if len(patients) == 1 else None


def finding_of(is_met: bool) -> CriterionFinding:  # noqa: FBT001 - converts a boolean
    """Convert a boolean to a finding of evidence: met or not met."""
    return MET if is_met else NOT_MET
