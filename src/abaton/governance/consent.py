"""Consents as FHIR R4 Consent resources, and the one question that matters: does this allow that, now?

Invariants:
(1) whatever is not a clear yes is a no, with a code that says why;
(2) between two neighbouring moments of :func:`edges` no answer changes, so that :func:`windows` tells all of it.

Whatever is absent, expired, unclear or malformed means no, with a code that says why. A consent to a study is pinned to
the fingerprint of its document: a new version of the document needs a new consent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self
from urllib.parse import quote

from abaton.canonical_json import digest
from abaton.governance.identifiers import day_end, day_start, first_moment, last_moment, stamp

Json = dict[str, Any]
Window = tuple[datetime, datetime | None]
"""A stretch of time: its first moment, and the first one after it; nothing if it does not end."""

_SCOPE = "http://terminology.hl7.org/CodeSystem/consentscope"
_ACTION = "http://terminology.hl7.org/CodeSystem/consentaction"
_LOINC = "http://loinc.org"
_ACT = "http://terminology.hl7.org/CodeSystem/v3-ActReason"
_TYPES = "http://hl7.org/fhir/resource-types"
NOTIFY = "urn:abaton:study-notification"
SYSTEMS = frozenset({_SCOPE, _ACTION, _LOINC, _ACT, _TYPES})
CODES = frozenset({"research", "59284-0", "HRESCH", "CLINTRCH", "collect", "disclose", "use"})
_KNOWN = {"type", "period", "action", "class", "provision", "purpose", "id"}


class Action(StrEnum):
    """What a consent can allow (HL7's consent actions)."""

    COLLECT = "collect"
    SEND = "disclose"
    TRAIN = "use"


class Reason(StrEnum):
    """Why something is allowed or not."""

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
    def allows(self) -> bool:
        """Whether it is a yes."""
        return self is Reason.IN_FORCE


@dataclass(frozen=True, slots=True)
class Ask:
    """The question that a consent must answer.

    Args:
        subject: The tag of the person.
        study: The study, or empty for the general wish to be told of studies.
        document: The fingerprint of the study's current document.
        action: What is to be done.
        kind: The type of resource it is to be done with; empty for a person as a whole.
    """

    subject: str
    study: str = ""
    document: str = ""
    action: Action = Action.COLLECT
    kind: str = ""


def make_consent(
    ask: Ask,
    start: datetime,
    end: datetime | None,
    *,
    actions: Iterable[Action] = tuple(Action),
    kinds: Iterable[str] = (),
    except_kinds: Iterable[str] = (),
) -> Json:
    """A Consent resource that says yes to a study, or to being told of studies.

    Args:
        ask: Who says yes to which document of which study.
        start: From when it holds.
        end: Until when it holds; nothing if until it is withdrawn.
        actions: What may be done.
        kinds: The only resource types it holds for; none named means all.
        except_kinds: Resource types that are left out.
    """
    period = {"start": stamp(start)} | ({"end": stamp(end)} if end else {})
    provision: Json = {"type": "permit", "period": period, "purpose": [_coding(_ACT, "HRESCH")]}
    if ask.study:
        provision["action"] = [{"coding": [_coding(_ACTION, action.value)]} for action in actions]
    if named := sorted(kinds):
        provision["class"] = [_coding(_TYPES, kind) for kind in named]
    if left_out := sorted(except_kinds):
        provision["provision"] = [{"type": "deny", "class": [_coding(_TYPES, kind) for kind in left_out]}]
    return {
        "resourceType": "Consent",
        "status": "active",
        "scope": {"coding": [_coding(_SCOPE, "research")]},
        "category": [{"coding": [_coding(_LOINC, "59284-0")]}],
        "patient": {"reference": f"Patient/{ask.subject}"},
        "dateTime": stamp(start),
        "policy": [{"uri": uri} for uri in _policies(ask)],
        "provision": provision,
    }


def ended(consent: Json, when: datetime) -> Json:
    """The same consent, no longer in force."""
    return {**consent, "status": "inactive", "dateTime": stamp(when)}


def judge(consent: object, ask: Ask, when: datetime) -> Reason:
    """Whether a Consent resource answers a question with yes at some moment, or why not."""
    if consent is None:
        return Reason.ABSENT
    try:
        return _judge(consent, ask, when)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return Reason.MALFORMED


def _judge(consent: Any, ask: Ask, when: datetime) -> Reason:
    if consent["resourceType"] != "Consent" or not isinstance(consent["provision"], dict):
        return Reason.MALFORMED
    if consent["status"] != "active":
        return Reason.NOT_ACTIVE
    if "implicitRules" in consent or "modifierExtension" in consent:
        return Reason.UNCLEAR  # they may turn the meaning round
    if not _has(consent["scope"], _SCOPE, {"research"}):
        return Reason.OTHER_SCOPE
    if consent["patient"]["reference"] != f"Patient/{ask.subject}":
        return Reason.OTHER_SUBJECT
    policies = {policy["uri"] for policy in consent["policy"]}
    study, *document = _policies(ask)
    if study not in policies:
        return Reason.OTHER_STUDY
    if policies != {study, *document}:
        return Reason.OTHER_DOCUMENT
    return _permits(consent["provision"], ask, when)


def _policies(ask: Ask) -> list[str]:
    if not ask.study:
        return [NOTIFY]
    return [f"urn:abaton:study:{quote(ask.study, safe='')}", f"urn:sha256:{ask.document}"]


def _permits(provision: Mapping[str, Any], ask: Ask, when: datetime) -> Reason:
    if provision["type"] != "permit" or set(provision) - _KNOWN:
        return Reason.UNCLEAR
    reason = _in_time(provision["period"], when)
    if not reason.allows:
        return reason
    if ask.study:
        allowed = [action for action in provision["action"] if _has(action, _ACTION, {ask.action.value})]
        if not allowed:
            return Reason.NOT_PERMITTED
    if not all(_is_research(code) for code in provision.get("purpose", [])):
        return Reason.UNCLEAR
    if "class" in provision and ask.kind and not _names(provision["class"], ask.kind):
        return Reason.NOT_PERMITTED
    for part in provision.get("provision", []):
        reason = _denies(part, ask, when)
        if not reason.allows:
            return reason
    return Reason.IN_FORCE


def _denies(part: Mapping[str, Any], ask: Ask, when: datetime) -> Reason:
    """A nested provision can only take away: a list of resource types, or an action for a stretch of time."""
    timed = part.get("period", {}).get("start") is not None
    if part["type"] != "deny" or set(part) - {"type", "class", "action", "period", "id"}:
        return Reason.UNCLEAR
    if ("period" in part and not timed) or not (part.get("class") or (timed and part.get("action"))):
        return Reason.UNCLEAR
    inside = _in_time(part["period"], when) if timed else Reason.IN_FORCE
    if inside is Reason.MALFORMED:
        return inside
    concerned = "action" not in part or any(_has(a, _ACTION, {ask.action.value}) for a in part["action"])
    if not inside.allows or not concerned or ("class" in part and not _names(part["class"], ask.kind)):
        return Reason.IN_FORCE
    if "class" in part:
        return Reason.NOT_PERMITTED
    return Reason.NOT_YET if "end" in part["period"] else Reason.EXPIRED


def edges(consent: object) -> list[datetime]:
    """The moments at which a consent's answers can change, in order; none if it cannot be understood."""
    try:
        provision = consent["provision"]  # type: ignore[index]
        found: set[datetime] = set()
        for period in (
            provision["period"],
            *(part["period"] for part in provision.get("provision", []) if "period" in part),
        ):
            found |= {
                each for each in (first_moment(period["start"]), last_moment(period.get("end"))) if each
            }
        return sorted(found)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return []


def windows(consent: object, ask: Ask) -> tuple[Window, ...]:
    """When a consent answers a question with yes: stretches, each with its first moment and the first one after it.

    >>> from datetime import UTC
    >>> ask = Ask("A" * 26, "heart", "ab" * 32)
    >>> windows(make_consent(ask, datetime(2026, 1, 1, tzinfo=UTC), None), ask)
    ((datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None),)
    """
    found: list[Window] = []
    moments = edges(consent)
    for start, end in pairwise([*moments, None]):
        assert start is not None  # only the last end is open
        if not judge(consent, ask, start).allows:
            continue
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return tuple(found)


def overlap(one: Iterable[Window], other: Iterable[Window]) -> tuple[Window, ...]:
    """When both of two lists of stretches hold.

    >>> from datetime import UTC
    >>> a, b, c = (datetime(year, 1, 1, tzinfo=UTC) for year in (2026, 2027, 2028))
    >>> overlap([(a, c)], [(b, None)]) == ((b, c),)
    True
    """
    others, made = list(other), []
    for start, end in one:
        for begin, finish in others:
            first = max(start, begin)
            last = min((each for each in (end, finish) if each is not None), default=None)
            if last is None or first < last:
                made.append((first, last))
    return tuple(sorted(made, key=lambda window: window[0]))


def holds(stretches: Iterable[Window], when: datetime) -> bool:
    """Whether a moment lies in one of some stretches of time."""
    return any(start <= when and (end is None or when < end) for start, end in stretches)


def names_kinds(consent: object) -> bool:
    """Whether a consent holds for some types of resources only, so that each type has to be asked for."""
    try:
        provision = consent["provision"]  # type: ignore[index]
        return "class" in provision or any("class" in part for part in provision.get("provision", []))
    except (KeyError, TypeError):
        return True


@dataclass(frozen=True, slots=True)
class Permit:
    """A data permit of a health data access body: for which study document, by whom, until when, for what.

    Args:
        number: The permit's number.
        authority: Who has issued it.
        start: Its first day.
        end: Its last day.
        purposes: What the data may be used for.
        document: The fingerprint of the study document that it was given for.
        actions: What may be done under it.
    """

    number: str
    authority: str
    start: date
    end: date
    purposes: tuple[str, ...]
    document: str
    actions: tuple[Action, ...] = (Action.COLLECT, Action.TRAIN)

    def reason(self, document: str, purpose: str, when: datetime, action: Action = Action.COLLECT) -> Reason:
        """Whether it allows an action of a study's document for a purpose at a moment.

        >>> from datetime import UTC
        >>> permit = Permit("7", "body", date(2026, 1, 1), date(2026, 12, 31), ("diagnostic",), "ab")
        >>> permit.reason("ab", "diagnostic", datetime(2027, 1, 1, tzinfo=UTC))
        <Reason.EXPIRED: 'expired'>
        """
        if document != self.document:
            return Reason.OTHER_DOCUMENT
        if purpose not in self.purposes or action not in self.actions:
            return Reason.NOT_PERMITTED
        if when < day_start(self.start):
            return Reason.NOT_YET
        return Reason.EXPIRED if when >= day_end(self.end) else Reason.IN_FORCE

    @property
    def digest(self) -> str:
        """Its fingerprint, as the audit chain has it."""
        return digest(self.row())

    def row(self) -> Json:
        """The permit as JSON."""
        return {**asdict(self), "start": self.start.isoformat(), "end": self.end.isoformat()}

    @classmethod
    def read(cls, row: Json) -> Self:
        """A permit from JSON."""
        start, end = date.fromisoformat(row["start"]), date.fromisoformat(row["end"])
        actions = tuple(Action(each) for each in row["actions"])
        names = {"purposes": tuple(row["purposes"]), "actions": actions, "start": start, "end": end}
        return cls(**{**row, **names})


def _in_time(period: Mapping[str, Any], when: datetime) -> Reason:
    start, end = first_moment(period["start"]), None
    if "end" in period:
        end = last_moment(period["end"])
        if end is None:
            return Reason.MALFORMED
    if start is None or set(period) - {"start", "end", "id"}:
        return Reason.MALFORMED
    if when < start:
        return Reason.NOT_YET
    return Reason.EXPIRED if end is not None and when >= end else Reason.IN_FORCE


def _coding(system: str, code: str) -> Json:
    return {"system": system, "code": code}


def _has(concept: Mapping[str, Any], system: str, codes: set[str]) -> bool:
    return any(coding.get("system") == system and coding["code"] in codes for coding in concept["coding"])


def _names(codings: Iterable[Mapping[str, Any]], kind: str) -> bool:
    return any(coding["system"] == _TYPES and coding["code"] == kind for coding in codings)


def _is_research(coding: Mapping[str, Any]) -> bool:
    return coding["system"] == _ACT and coding["code"] in {"HRESCH", "CLINTRCH"}


def research_subject(subject: str, study: str, state: str, start: str, end: str) -> Json:
    """A ResearchSubject resource: where a person stands in a study."""
    return {
        "resourceType": "ResearchSubject",
        "status": state,
        "period": {"start": start} | ({"end": end} if end else {}),
        "study": {"identifier": {"system": "urn:abaton:study", "value": study}},
        "individual": {"reference": f"Patient/{subject}"},
    }
