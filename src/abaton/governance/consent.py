"""FHIR R4 Consent resources: construction, and evaluation whether an action is permitted at a given time.

A consent that is absent, expired, unclear or malformed denies, with a code that states why. A study consent contains
the digest of the study document, so a new version of the document needs a new consent.

Invariants:
(1) a consent permits only what it clearly permits; everything else is denied with a reason;
(2) no decision changes between two neighbouring times of :func:`change_times`, so :func:`permitted_periods` is
complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self
from urllib.parse import quote

from abaton.canonical_json import canonical_digest
from abaton.governance.timestamps import day_end, day_start, earliest_time, latest_time, to_timestamp

Json = dict[str, Any]
Window = tuple[datetime, datetime | None]
"""Time interval: first instant, and first instant after it (None if open-ended)."""

_SCOPE = "http://terminology.hl7.org/CodeSystem/consentscope"
_ACTION = "http://terminology.hl7.org/CodeSystem/consentaction"
_LOINC = "http://loinc.org"
_ACT = "http://terminology.hl7.org/CodeSystem/v3-ActReason"
_TYPES = "http://hl7.org/fhir/resource-types"
NOTIFY = "urn:abaton:study-notification"
SYSTEMS = frozenset({_SCOPE, _ACTION, _LOINC, _ACT, _TYPES})
CODES = frozenset({"research", "59284-0", "HRESCH", "CLINTRCH", "collect", "disclose", "use"})
_KNOWN_ELEMENTS = {"type", "period", "action", "class", "provision", "purpose", "id"}


class ConsentAction(StrEnum):
    """Action that a consent can permit (HL7 consent actions)."""

    COLLECT = "collect"
    SEND = "disclose"
    TRAIN = "use"


class DenialReason(StrEnum):
    """Result of a consent decision: in force, or the reason for denial."""

    IN_FORCE = "in-force"
    ABSENT = "absent"
    MALFORMED = "malformed"
    NOT_ACTIVE = "not-active"
    OPTED_OUT = "opted-out"
    OTHER_SCOPE = "other-scope"
    OTHER_SUBJECT = "other-subject"
    OTHER_STUDY = "other-study"
    OTHER_DOCUMENT = "other-document"
    NOT_YET = "not-yet"
    EXPIRED = "expired"
    UNCLEAR = "unclear"
    NOT_PERMITTED = "not-permitted"
    NOT_OPTED_IN = "not-opted-in"
    WITHDRAWN = "withdrawn"
    STUDY_CLOSED = "study-closed"
    NO_SUBJECT = "no-subject"

    @property
    def permits(self) -> bool:
        """Whether this result of evaluating a consent permits the action."""
        return self is DenialReason.IN_FORCE


@dataclass(frozen=True, slots=True)
class ConsentQuery:
    """Question whether an action on a subject's records is permitted.

    Args:
        subject: Registry pseudonym of the subject.
        study: The study; empty for the general opt-in.
        document: Digest of the current study document.
        action: The requested action.
        resource_type: FHIR type of the record; empty for the subject as a whole.
    """

    subject: str
    study: str = ""
    document: str = ""
    action: ConsentAction = ConsentAction.COLLECT
    resource_type: str = ""


def make_consent(
    query: ConsentQuery,
    start: datetime,
    end: datetime | None,
    *,
    actions: Iterable[ConsentAction] = tuple(ConsentAction),
    resource_types: Iterable[str] = (),
    excluded_types: Iterable[str] = (),
) -> Json:
    """Construct a FHIR Consent resource for a study, or a general opt-in to studies.

    Args:
        query: Subject, study and document that the consent refers to.
        start: Start of validity.
        end: End of validity; None if valid until withdrawn.
        actions: Permitted actions.
        resource_types: The only resource types that are permitted; empty means all.
        excluded_types: Resource types that are denied.
    """
    period = {"start": to_timestamp(start)} | ({"end": to_timestamp(end)} if end else {})
    provision: Json = {"type": "permit", "period": period, "purpose": [_coding(_ACT, "HRESCH")]}
    if query.study:
        provision["action"] = [{"coding": [_coding(_ACTION, action.value)]} for action in actions]
    if included := sorted(resource_types):
        provision["class"] = [_coding(_TYPES, type_) for type_ in included]
    if excluded := sorted(excluded_types):
        provision["provision"] = [{"type": "deny", "class": [_coding(_TYPES, type_) for type_ in excluded]}]
    return {
        "resourceType": "Consent",
        "status": "active",
        "scope": {"coding": [_coding(_SCOPE, "research")]},
        "category": [{"coding": [_coding(_LOINC, "59284-0")]}],
        "patient": {"reference": f"Patient/{query.subject}"},
        "dateTime": to_timestamp(start),
        "policy": [{"uri": uri} for uri in _policies(query)],
        "provision": provision,
    }


def deactivate(consent: Json, when: datetime) -> Json:
    """Return a FHIR Consent resource with status `inactive` and a new date."""
    return {**consent, "status": "inactive", "dateTime": to_timestamp(when)}


def evaluate_consent(consent: object, query: ConsentQuery, when: datetime) -> DenialReason:
    """Evaluate a FHIR Consent: return whether it permits the queried action at a time, or the denial reason."""
    if consent is None:
        return DenialReason.ABSENT
    try:
        return _evaluate(consent, query, when)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return DenialReason.MALFORMED


def _evaluate(consent: Any, query: ConsentQuery, when: datetime) -> DenialReason:
    if consent["resourceType"] != "Consent" or not isinstance(consent["provision"], dict):
        return DenialReason.MALFORMED
    if consent["status"] != "active":
        return DenialReason.NOT_ACTIVE
    if "implicitRules" in consent or "modifierExtension" in consent:
        return DenialReason.UNCLEAR  # these elements may change the meaning
    if not _has(consent["scope"], _SCOPE, {"research"}):
        return DenialReason.OTHER_SCOPE
    if consent["patient"]["reference"] != f"Patient/{query.subject}":
        return DenialReason.OTHER_SUBJECT
    policies = {policy["uri"] for policy in consent["policy"]}
    study, *document = _policies(query)
    if study not in policies:
        return DenialReason.OTHER_STUDY
    if policies != {study, *document}:
        return DenialReason.OTHER_DOCUMENT
    return _permits(consent["provision"], query, when)


def _policies(query: ConsentQuery) -> list[str]:
    if not query.study:
        return [NOTIFY]
    return [f"urn:abaton:study:{quote(query.study, safe='')}", f"urn:sha256:{query.document}"]


def _permits(provision: Mapping[str, Any], query: ConsentQuery, when: datetime) -> DenialReason:
    if provision["type"] != "permit" or set(provision) - _KNOWN_ELEMENTS:
        return DenialReason.UNCLEAR
    reason = _period_decision(provision["period"], when)
    if not reason.permits:
        return reason
    if query.study:
        allowed = [action for action in provision["action"] if _has(action, _ACTION, {query.action.value})]
        if not allowed:
            return DenialReason.NOT_PERMITTED
    if not all(_is_research(code) for code in provision.get("purpose", [])):
        return DenialReason.UNCLEAR
    if (
        "class" in provision
        and query.resource_type
        and not _names_type(provision["class"], query.resource_type)
    ):
        return DenialReason.NOT_PERMITTED
    for nested in provision.get("provision", []):
        reason = _denies(nested, query, when)
        if not reason.permits:
            return reason
    return DenialReason.IN_FORCE


def _denies(provision: Mapping[str, Any], query: ConsentQuery, when: datetime) -> DenialReason:
    """Return the effect of a nested denial in a Consent: on resource types, or on an action within a period."""
    is_timed = provision.get("period", {}).get("start") is not None
    if provision["type"] != "deny" or set(provision) - {"type", "class", "action", "period", "id"}:
        return DenialReason.UNCLEAR
    if ("period" in provision and not is_timed) or not (
        provision.get("class") or (is_timed and provision.get("action"))
    ):
        return DenialReason.UNCLEAR
    time_decision = _period_decision(provision["period"], when) if is_timed else DenialReason.IN_FORCE
    if time_decision is DenialReason.MALFORMED:
        return time_decision
    applies_to_action = "action" not in provision or any(
        _has(a, _ACTION, {query.action.value}) for a in provision["action"]
    )
    if (
        not time_decision.permits
        or not applies_to_action
        or ("class" in provision and not _names_type(provision["class"], query.resource_type))
    ):
        return DenialReason.IN_FORCE
    if "class" in provision:
        return DenialReason.NOT_PERMITTED
    return DenialReason.NOT_YET if "end" in provision["period"] else DenialReason.EXPIRED


def change_times(consent: object) -> list[datetime]:
    """Return the sorted times at which a Consent's decision can change; empty if the consent is malformed."""
    try:
        provision = consent["provision"]  # type: ignore[index]
        times: set[datetime] = set()
        for period in (
            provision["period"],
            *(part["period"] for part in provision.get("provision", []) if "period" in part),
        ):
            times |= {
                time for time in (earliest_time(period["start"]), latest_time(period.get("end"))) if time
            }
        return sorted(times)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return []


def permitted_periods(consent: object, query: ConsentQuery) -> tuple[Window, ...]:
    """Return the time windows in which a FHIR Consent permits the queried action.

    >>> from datetime import UTC
    >>> query = ConsentQuery("A" * 26, "heart", "ab" * 32)
    >>> permitted_periods(make_consent(query, datetime(2026, 1, 1, tzinfo=UTC), None), query)
    ((datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None),)
    """
    windows: list[Window] = []
    times = change_times(consent)
    for start, end in pairwise([*times, None]):
        assert start is not None  # only the last end is open
        if not evaluate_consent(consent, query, start).permits:
            continue
        if windows and windows[-1][1] == start:
            windows[-1] = windows[-1][0], end
        else:
            windows.append((start, end))
    return tuple(windows)


def overlap(one: Iterable[Window], other: Iterable[Window]) -> tuple[Window, ...]:
    """Return the intersection of two lists of permitted time windows of consents.

    >>> from datetime import UTC
    >>> a, b, c = (datetime(year, 1, 1, tzinfo=UTC) for year in (2026, 2027, 2028))
    >>> overlap([(a, c)], [(b, None)]) == ((b, c),)
    True
    """
    second, windows = list(other), []
    for start, end in one:
        for begin, finish in second:
            first = max(start, begin)
            last = min((time for time in (end, finish) if time is not None), default=None)
            if last is None or first < last:
                windows.append((first, last))
    return tuple(sorted(windows, key=lambda window: window[0]))


def covers(windows: Iterable[Window], when: datetime) -> bool:
    """Return whether a time is in one of the permitted time windows of a consent."""
    return any(start <= when and (end is None or when < end) for start, end in windows)


def restricts_types(consent: object) -> bool:
    """Return whether a Consent is limited to some resource types, so that each type needs its own decision."""
    try:
        provision = consent["provision"]  # type: ignore[index]
        return "class" in provision or any("class" in nested for nested in provision.get("provision", []))
    except (KeyError, TypeError):
        return True


@dataclass(frozen=True, slots=True)
class DataPermit:
    """EHDS data permit of a health data access body.

    Args:
        number: Number of the permit.
        authority: Body that issued it.
        start: First day of validity.
        end: Last day of validity.
        purposes: Permitted purposes.
        document: Digest of the study document that it was issued for.
        actions: Permitted actions.
    """

    number: str
    authority: str
    start: date
    end: date
    purposes: tuple[str, ...]
    document: str
    actions: tuple[ConsentAction, ...] = (ConsentAction.COLLECT, ConsentAction.TRAIN)

    def reason(
        self, document: str, purpose: str, when: datetime, action: ConsentAction = ConsentAction.COLLECT
    ) -> DenialReason:
        """Return whether the data permit allows an action for a study document and purpose at a time.

        >>> from datetime import UTC
        >>> permit = DataPermit("7", "body", date(2026, 1, 1), date(2026, 12, 31), ("diagnostic",), "ab")
        >>> permit.reason("ab", "diagnostic", datetime(2027, 1, 1, tzinfo=UTC))
        <DenialReason.EXPIRED: 'expired'>
        """
        if document != self.document:
            return DenialReason.OTHER_DOCUMENT
        if purpose not in self.purposes or action not in self.actions:
            return DenialReason.NOT_PERMITTED
        if when < day_start(self.start):
            return DenialReason.NOT_YET
        return DenialReason.EXPIRED if when >= day_end(self.end) else DenialReason.IN_FORCE

    @property
    def digest(self) -> str:
        """Digest of the data permit, as in the audit log."""
        return canonical_digest(self.row())

    def row(self) -> Json:
        """Return the data permit as a JSON object."""
        return {**asdict(self), "start": self.start.isoformat(), "end": self.end.isoformat()}

    @classmethod
    def read(cls, row: Json) -> Self:
        """Return the data permit of a JSON object."""
        start, end = date.fromisoformat(row["start"]), date.fromisoformat(row["end"])
        actions = tuple(ConsentAction(action) for action in row["actions"])
        names = {"purposes": tuple(row["purposes"]), "actions": actions, "start": start, "end": end}
        return cls(**{**row, **names})


def _period_decision(period: Mapping[str, Any], when: datetime) -> DenialReason:
    start, end = earliest_time(period["start"]), None
    if "end" in period:
        end = latest_time(period["end"])
        if end is None:
            return DenialReason.MALFORMED
    if start is None or set(period) - {"start", "end", "id"}:
        return DenialReason.MALFORMED
    if when < start:
        return DenialReason.NOT_YET
    return DenialReason.EXPIRED if end is not None and when >= end else DenialReason.IN_FORCE


def _coding(system: str, code: str) -> Json:
    return {"system": system, "code": code}


def _has(concept: Mapping[str, Any], system: str, codes: set[str]) -> bool:
    return any(coding.get("system") == system and coding["code"] in codes for coding in concept["coding"])


def _names_type(codings: Iterable[Mapping[str, Any]], resource_type: str) -> bool:
    return any(coding["system"] == _TYPES and coding["code"] == resource_type for coding in codings)


def _is_research(coding: Mapping[str, Any]) -> bool:
    return coding["system"] == _ACT and coding["code"] in {"HRESCH", "CLINTRCH"}


def research_subject(subject: str, study: str, state: str, start: str, end: str) -> Json:
    """Construct a FHIR ResearchSubject resource with the subject's status in a study."""
    return {
        "resourceType": "ResearchSubject",
        "status": state,
        "period": {"start": start} | ({"end": end} if end else {}),
        "study": {"identifier": {"system": "urn:abaton:study", "value": study}},
        "individual": {"reference": f"Patient/{subject}"},
    }
