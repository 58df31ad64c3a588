"""What a subject's records hold for each kind of criterion: types, elements, and which of them count.

Yes, no, or not known: logic that never takes silence for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, NamedTuple

from abaton.fhir.partial_dates import Days, Stay, days, stay


class Answer(StrEnum):
    """What the records say about a criterion."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """An answer and why; the reason speaks about the kind of evidence, never about a value."""

    answer: Answer
    reason: str = ""


YES, NO = Finding(Answer.YES, "the records show it"), Finding(Answer.NO, "the records do not show it")


def unknown(reason: str) -> Finding:
    """An answer that the records do not give."""
    return Finding(Answer.UNKNOWN, reason)


def both(*findings: Finding) -> Finding:
    """Kleene's *and*: one no decides, then one unknown."""
    return _strongest(findings, (Answer.NO, Answer.UNKNOWN, Answer.YES), YES)


def either(findings: Iterable[Finding]) -> Finding:
    """Kleene's *or*: one yes decides, then one unknown; nothing at all is a no."""
    return _strongest(findings, (Answer.YES, Answer.UNKNOWN, Answer.NO), NO)


def negated(finding: Finding) -> Finding:
    """The opposite; what is not known stays so."""
    turned = {Answer.YES: Answer.NO, Answer.NO: Answer.YES, Answer.UNKNOWN: Answer.UNKNOWN}
    return Finding(turned[finding.answer], finding.reason)


def _strongest(findings: Iterable[Finding], order: tuple[Answer, ...], empty: Finding) -> Finding:
    return min(findings, key=lambda finding: order.index(finding.answer), default=empty)


Resource = Mapping[str, Any]


class Source(NamedTuple):
    """Where a resource type says what it is about and when it took place."""

    codes: tuple[str, ...]
    dates: tuple[str, ...]
    void: frozenset[str] = frozenset({"entered-in-error", "cancelled", "not-done", "planned", "draft"})


_TAKEN = frozenset({"entered-in-error", "cancelled", "not-done", "draft", "not-taken", "intended"})
_RESULT = frozenset({"entered-in-error", "cancelled", "registered"})
_OBSERVED = ("effectiveDateTime", "effectivePeriod", "effectiveInstant", "issued")
_MEDICATION = ("medicationCodeableConcept", "medicationReference")
_CONDITION = Source(("code",), ("onsetDateTime", "onsetPeriod", "recordedDate"))
_OBSERVATION = Source(("code", "valueCodeableConcept"), _OBSERVED, _RESULT)
_PROCEDURE = Source(("code",), ("performedDateTime", "performedPeriod"), frozenset({*_TAKEN, "preparation"}))

SOURCES: dict[str, dict[str, Source]] = {
    "condition": {"Condition": _CONDITION},
    "finding": {"Condition": _CONDITION, "Observation": _OBSERVATION},
    "medication": {
        "MedicationRequest": Source(_MEDICATION, ("authoredOn",), _TAKEN),
        "MedicationStatement": Source(
            _MEDICATION, ("effectivePeriod", "effectiveDateTime", "dateAsserted"), _TAKEN
        ),
        "MedicationAdministration": Source(_MEDICATION, ("effectivePeriod", "effectiveDateTime"), _TAKEN),
        "MedicationDispense": Source(_MEDICATION, ("whenHandedOver", "whenPrepared"), _TAKEN),
    },
    "procedure": {"Procedure": _PROCEDURE},
    "encounter": {"Encounter": Source(("class", "type", "serviceType", "reasonCode"), ("period",))},
    "test": {
        "DiagnosticReport": Source(("code",), _OBSERVED, _RESULT),
        "Observation": Source(("code",), _OBSERVED, _RESULT),
        "Procedure": _PROCEDURE,
    },
    "consent": {
        "Consent": Source(
            ("scope", "category", "policyRule"),
            ("dateTime",),
            frozenset({"draft", "proposed", "rejected", "inactive", "entered-in-error"}),
        )
    },
    "observation": {"Observation": Source(("code",), _OBSERVED, _RESULT)},
}


def each(holder: object, name: str) -> list[Resource]:
    """The objects in a list; whatever has another shape is no evidence."""
    found = holder.get(name) if isinstance(holder, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


@dataclass
class Records:
    """One subject's resources by type, and by the names under which they may be referred to."""

    by_type: dict[str, list[Resource]] = field(default_factory=dict)
    by_name: dict[str, Resource] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Resource]) -> Records:
        """Sort resources; Bundles are opened."""
        made = cls()
        for name, resource in _opened(records):
            made.by_type.setdefault(str(resource.get("resourceType")), []).append(resource)
            made.by_name[f"{resource.get('resourceType')}/{resource.get('id')}"] = resource
            if name:
                made.by_name[name] = resource
        return made

    def entries(self, what: str) -> Iterator[tuple[Resource, Source]]:
        """The records that count as evidence for a kind of criterion; void ones are left out."""
        for kind, source in SOURCES[what].items():
            for resource in self.by_type.get(kind, ()):
                void = str(resource.get("status")) in source.void or "refuted" in _verification(resource)
                if not void:
                    yield resource, source

    def codings(self, resource: Resource, source: Source) -> list[Resource]:
        """All codings with which a record says what it is about."""
        found: list[Resource] = []
        for name in source.codes:
            value = resource.get(name)
            for concept in value if isinstance(value, list) else [value]:
                found += self._codings(concept, resource)
        return found

    def _codings(self, concept: object, holder: Resource) -> list[Resource]:
        if not isinstance(concept, Mapping):
            return []
        if isinstance(reference := concept.get("reference"), str):
            target = self._target(reference, holder)
            return self._codings(target.get("code"), target) if target else []
        codings = each(concept, "coding") if "coding" in concept else [concept]  # Encounter.class is a Coding
        return [coding for coding in codings if isinstance(coding.get("code"), str)]

    def _target(self, reference: str, holder: Resource) -> Resource | None:
        if reference.startswith("#"):
            return next((r for r in each(holder, "contained") if r.get("id") == reference[1:]), None)
        return self.by_name.get(reference) or self.by_name.get("/".join(reference.split("/")[-2:]))


def _opened(records: Iterable[Resource]) -> Iterator[tuple[str, Resource]]:
    for record in records:
        if record.get("resourceType") != "Bundle":
            yield "", record
            continue
        for entry in each(record, "entry"):
            if isinstance(resource := entry.get("resource"), Mapping):
                yield str(entry.get("fullUrl", "")), resource


def _status_codes(resource: Resource, name: str) -> set[str]:
    value = resource.get(name)
    return {str(coding.get("code")) for coding in each(value, "coding")}


def _verification(resource: Resource) -> set[str]:
    """The codes of a Condition's verification; an entry in error counts as refuted."""
    codes = _status_codes(resource, "verificationStatus")
    return codes | {"refuted"} if "entered-in-error" in codes else codes


def trusted(resource: Resource) -> Finding:
    """Whether a record states a fact, or only a suspicion."""
    if _verification(resource) & {"unconfirmed", "provisional", "differential"}:
        return unknown("a matching record is not confirmed")
    if resource.get("status") == "unknown":
        return unknown("a matching record's status is not known")
    return YES


def when(resource: Resource, source: Source, today: date) -> Stay | None:
    """When a record's matter took place; a Condition lasts until it abated."""
    found = stay(resource, source.dates, today)
    if found is None or resource.get("resourceType") != "Condition":
        return found
    abated = stay(resource, ("abatementDateTime", "abatementPeriod"), today)
    if abated:
        return Stay(found.began, abated.ended)
    over = _status_codes(resource, "clinicalStatus") & {"inactive", "remission", "resolved"}
    return Stay(found.began, Days(found.began.first, today) if over else Days(today, today))


def birth(records: Records) -> Days | None:
    """The days on which the subject may have been born."""
    patient = the_patient(records)
    return days(patient.get("birthDate")) if patient else None


def the_patient(records: Records) -> Resource | None:
    """The one Patient of the records; with none or several nothing is known."""
    found = records.by_type.get("Patient", [])
    return found[0] if len(found) == 1 else None


def same_or_no(found: bool) -> Finding:  # noqa: FBT001 - turns a truth value into a finding
    """A plain truth as a finding."""
    return YES if found else NO
