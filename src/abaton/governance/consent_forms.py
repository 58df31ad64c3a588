"""Consents as hospitals and registries write them, read by a mapping from their codes to our actions.

A person may have signed several forms, each told by one Consent resource or by many. All that they say about an
action is put together: of what holds at a moment the newest statement decides, and a no wins over a yes of the same
time. What a mapping does not name allows nothing; what limits a yes in a way that cannot be kept here makes it no yes;
what limits a no is only believed where it is clear that the no is about something else. What cannot be understood may
be a no: whoever has said it last is out until it is clear.

Invariants:
(1) a Consent of no form that the mapping names says nothing; a missing, other or unreadable part never allows more;
(2) nothing of the resource but codes and moments goes on from here: no name, no text, no number of a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from abaton.governance.consent import Action, Ask, Json, Window, make_consent
from abaton.governance.identifiers import first_moment, last_moment

RESEARCH = ("http://terminology.hl7.org/CodeSystem/v3-ActReason|HRESCH",
            "http://terminology.hl7.org/CodeSystem/v3-ActReason|CLINTRCH")  # fmt: skip
ANY = "*"
_SCOPE = "http://terminology.hl7.org/CodeSystem/consentscope"
_TYPES = "http://hl7.org/fhir/resource-types"
_ACTION = "http://terminology.hl7.org/CodeSystem/consentaction"
_UNDERSTOOD = {
    "type",
    "period",
    "code",
    "action",
    "purpose",
    "actor",
    "class",
    "provision",
    "id",
    "extension",
}
_TICK = timedelta(microseconds=1)
_BROKEN = (KeyError, TypeError, AttributeError, IndexError, ValueError)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Doubt(StrEnum):
    """Why a Consent says nothing here."""

    UNREADABLE = "a Consent cannot be understood"
    OTHER_FORM = "a Consent is of no form that the site's document names"
    TURNED_ROUND = "a Consent holds something that may turn its meaning round"


@dataclass(frozen=True, slots=True)
class Form:
    """A form that people sign, and what its codes mean.

    Args:
        name: What it is called.
        policies: By which ``policy.uri`` or ``policyRule`` code (``system|code``) it is known.
        scopes: Which codes of HL7's consent scope it may have.
        actions: For each of our actions the codes (``system|code``) of a provision that stand for it; ``*`` stands for
            a provision that names neither codes nor actions.
        purposes: The purposes (``system|code``) that are ours; a yes for others only is not for us.
        recipients: Whom a yes must be given to if it names somebody: references or ``system|value``.
    """

    name: str
    policies: frozenset[str]
    actions: Mapping[Action, frozenset[str]]
    scopes: frozenset[str] = frozenset({"research"})
    purposes: frozenset[str] = frozenset(RESEARCH)
    recipients: frozenset[str] = frozenset()


class Said(NamedTuple):
    """One statement of a person: yes or no to some actions, from when until when, and when it was said."""

    given: datetime
    yes: bool
    actions: frozenset[Action]
    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one Consent resource says.

    Attributes:
        patient: The id of the Patient it is about; empty if that is not clear.
        said: Its statements.
        kinds: The only resource types that it is about, if it names any.
        except_kinds: Resource types that it leaves out.
        doubt: Why it says nothing; nothing if it does say something.
        unclear: When that was said of which nobody knows whether it is a yes or a no.
    """

    patient: str
    said: tuple[Said, ...] = ()
    kinds: frozenset[str] | None = None
    except_kinds: frozenset[str] = frozenset()
    doubt: Doubt | None = None
    unclear: datetime | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a person allows, all forms together: for each action when, and for which types of resources."""

    windows: Mapping[Action, tuple[Window, ...]]
    kinds: frozenset[str] | None = None
    except_kinds: frozenset[str] = frozenset()
    newest: datetime | None = None
    """When the newest yes was said."""
    last_is_no: bool = False
    """Whether the newest statement of all is a no."""

    @property
    def is_no(self) -> bool:
        """Whether nothing is allowed at any time."""
        return not any(self.windows.values())

    def is_taken_back(self, when: datetime) -> bool:
        """Whether a yes was taken back, so that nothing is allowed from a moment on."""
        ends = [window[1] for windows in self.windows.values() for window in windows]
        return self.last_is_no and all(end is not None and end <= when for end in ends)

    def wish(self, ask: Ask) -> Json:
        """The wish to be told of studies that goes with it: from the first moment on."""
        return make_consent(ask, self._span()[0], None)

    def _span(self) -> Window:
        """From the first moment at which anything is allowed to the last."""
        stretches = [window for windows in self.windows.values() for window in windows]
        ends = [end for _, end in stretches if end is not None]
        return min(start for start, _ in stretches), max(ends) if len(ends) == len(stretches) else None

    def consent(self, ask: Ask) -> Json:
        """The same as a Consent to one study's document, which the registry keeps; see :func:`judge`."""
        start, end = self._span()
        actions = [action for action in Action if self.windows.get(action)]
        made = make_consent(
            ask, start, None, actions=actions, kinds=self.kinds or (), except_kinds=self.except_kinds
        )
        provision: Json = made["provision"]
        provision["period"] = _period(start, end)
        gaps = [
            {"type": "deny", "action": [{"coding": [{"system": _ACTION, "code": action.value}]}],
             "period": _period(*gap)}
            for action in actions
            for gap in _gaps(self.windows[action], start, end)
        ]  # fmt: skip
        if gaps:
            provision["provision"] = [*provision.get("provision", []), *gaps]
        return made


def _period(start: datetime, end: datetime | None) -> Json:
    """A stretch as FHIR writes it: its end belongs to it, so it is the last moment inside."""
    inside = {} if end is None else {"end": _exact(end - _TICK)}
    return {"start": _exact(start), **inside}


def _exact(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _gaps(windows: Iterable[Window], start: datetime, end: datetime | None) -> Iterator[Window]:
    """What is between some stretches, from a start to an end."""
    at: datetime | None = start
    for begin, finish in windows:
        if at is not None and at < begin:
            yield at, begin
        at = finish
    if at is not None and (end is None or at < end):
        yield at, end


def is_clear(readings: Iterable[Reading]) -> bool:
    """Whether a person's newest statement of all is one that can be understood."""
    each = list(readings)
    newest = max((said.given for reading in each for said in reading.said), default=_FIRST)
    return all(reading.unclear is None or reading.unclear < newest for reading in each)


def together(readings: Iterable[Reading]) -> Terms:
    """What all Consents of one person allow."""
    said: list[Said] = []
    kinds: frozenset[str] | None = None
    left_out: frozenset[str] = frozenset()
    for reading in readings:
        said += reading.said
        left_out |= reading.except_kinds
        if reading.kinds is not None and any(each.yes for each in reading.said):
            kinds = reading.kinds if kinds is None else kinds & reading.kinds
    newest = max((each.given for each in said if each.yes), default=None)
    last_is_no = newest is None or any(not each.yes and each.given >= newest for each in said)
    if kinds is not None and not kinds:
        return Terms({}, newest=newest, last_is_no=last_is_no)
    return Terms({action: _windows(said, action) for action in Action}, kinds, left_out, newest, last_is_no)


def _windows(said: Iterable[Said], action: Action) -> tuple[Window, ...]:
    about = [each for each in said if action in each.actions]
    moments = sorted({each.start for each in about} | {each.end for each in about if each.end is not None})
    found: list[Window] = []
    for start, end in pairwise([*moments, None]):
        assert start is not None  # only the last end is open
        holding = [each for each in about if each.start <= start and (each.end is None or start < each.end)]
        if not holding:
            continue
        last = max(each.given for each in holding)
        if not all(each.yes for each in holding if each.given == last):
            continue
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return tuple(found)


def read(consent: object, forms: Iterable[Form]) -> Reading:
    """What a Consent resource says, by the first form it belongs to."""
    patient = _patient(consent)
    try:
        return _read(consent, patient, forms)
    except _BROKEN:
        return Reading(patient, doubt=Doubt.UNREADABLE)


def said_no(consent: object, when: datetime) -> str:
    """The Patient who says no to everything in a Consent at a moment; empty if it does not say so."""
    try:
        status, provision = consent["status"], consent.get("provision", {})  # type: ignore[index,attr-defined]
        if status == "rejected":
            return _patient(consent)
        if status != "active" or provision.get("type") != "deny" or provision.get("provision"):
            return ""
        period = provision.get("period", {})
        start, end = first_moment(period.get("start")), last_moment(period.get("end"))
        over = end is not None and when >= end
        return "" if over or (start is not None and when < start) else _patient(consent)
    except (KeyError, TypeError, AttributeError):
        return ""


def _patient(consent: object) -> str:
    try:
        reference = consent["patient"]["reference"]  # type: ignore[index]
        kind, _, name = str(reference).split("/_history/")[0].rpartition("/")
        return name if kind.split("/")[-1] == "Patient" else ""
    except (KeyError, TypeError):
        return ""


def _read(consent: Any, patient: str, forms: Iterable[Form]) -> Reading:
    if consent["resourceType"] != "Consent" or not patient:
        return Reading(patient, doubt=Doubt.UNREADABLE)
    turned = "implicitRules" in consent or "modifierExtension" in consent
    form = next((each for each in forms if _is_of(consent, each)), None)
    if form is None:
        return Reading(patient, doubt=Doubt.TURNED_ROUND if turned else Doubt.OTHER_FORM)
    if consent["status"] not in ("active", "rejected"):
        return Reading(patient)  # no longer in force, or never was
    given = first_moment(consent.get("dateTime"))
    if turned:
        return Reading(patient, doubt=Doubt.TURNED_ROUND, unclear=given or _LAST)
    if given is None:
        return Reading(patient, doubt=Doubt.UNREADABLE, unclear=_LAST)
    if consent["status"] == "rejected":
        everything = frozenset(Action)
        return Reading(patient, (Said(given, yes=False, actions=everything, start=given, end=None),))
    provisions = _Provisions(form, given, "research" in _codes_of(consent["scope"], _SCOPE))
    try:
        return provisions.read(patient, consent["provision"])
    except _BROKEN:
        return Reading(patient, doubt=Doubt.UNREADABLE, unclear=given)


def _is_of(consent: Mapping[str, Any], form: Form) -> bool:
    policies = {policy.get("uri", "") for policy in consent.get("policy", [])}
    policies |= _tokens(consent.get("policyRule", {}))
    return bool(policies & form.policies) and bool(_codes_of(consent["scope"], _SCOPE) & form.scopes)


@dataclass(slots=True)
class _Provisions:
    """Reads the provisions of one Consent of one form."""

    form: Form
    given: datetime
    is_research: bool
    said: list[Said] = field(default_factory=list)
    except_kinds: set[str] = field(default_factory=set)

    def read(self, patient: str, root: Mapping[str, Any]) -> Reading:
        """All that they say."""
        parts, kinds = root.get("provision", []), _kinds(root)
        inner = [each for part in parts for each in _within(part)]
        # A no inside a part takes something out; a yes there may widen or narrow, and nobody can say which.
        if kinds is None or any(each["type"] != "deny" for each in inner):
            return Reading(patient, doubt=Doubt.UNREADABLE, unclear=self.given)
        if any("modifierExtension" in each for each in (root, *parts, *inner)):
            return Reading(patient, doubt=Doubt.TURNED_ROUND, unclear=self.given)
        start, end = self._time(root, (self.given, None))
        if root.get("type") == "permit":
            self._yes(root, (start, end))
        elif root.get("type") == "deny" and not parts:
            self._no(
                root, (start, end)
            )  # a no to all; with parts of its own it is the rule that they except from
        for part in parts:
            if part["type"] == "permit" and "class" not in part:
                self._yes({**_of_root(root), **part}, self._time(part, (start, end)))
            elif part["type"] == "deny":
                self._no(part, self._time(part, (start, end)))
        for each in inner:
            self._no(each, self._time(each, (start, end)))
        return Reading(patient, tuple(self.said), kinds or None, frozenset(self.except_kinds))

    def _time(self, provision: Mapping[str, Any], outer: Window) -> Window:
        """From when until when a provision holds, within the one around it; a malformed time is an error."""
        period = provision.get("period", {})
        start, end = outer
        if "start" in period:
            begin = first_moment(period["start"])
            if begin is None:
                raise ValueError
            start = begin if provision.get("type") == "deny" else max(begin, start)
        if "end" in period:
            finish = last_moment(period["end"])
            if finish is None:
                raise ValueError
            end = finish if end is None else min(finish, end)
        return start, end

    def _yes(self, provision: Mapping[str, Any], time: Window) -> None:
        """A yes counts for what it names, if every limit that it has can be kept."""
        start, end = time
        if set(provision) - _UNDERSTOOD or (end is not None and end <= start):
            return
        purposes, actors = _tokens_in(provision, "purpose"), _actors(provision)
        if (purposes and not purposes & self.form.purposes) or not (purposes or self.is_research):
            return
        if actors is None or (actors and not actors & self.form.recipients):
            return
        if actions := self._actions(provision):
            self.said.append(
                Said(self.given, yes=True, actions=actions, start=max(start, self.given), end=end)
            )

    def _no(self, provision: Mapping[str, Any], time: Window) -> None:
        """A no counts for everything, unless it is clearly about something else."""
        purposes, actors = _tokens_in(provision, "purpose"), _actors(provision)
        if purposes and not purposes & self.form.purposes:
            return
        if actors and self.form.recipients and not actors & self.form.recipients:
            return
        named = "code" in provision or "action" in provision
        actions = self._actions(provision) if named else frozenset(Action)
        kinds = _kinds(provision)
        if kinds and not named and not set(provision) - {"type", "class", "period", "id", "purpose"}:
            self.except_kinds |= kinds
        elif actions:
            self.said.append(Said(self.given, yes=False, actions=actions, start=time[0], end=time[1]))

    def _actions(self, provision: Mapping[str, Any]) -> frozenset[Action]:
        named = _tokens_in(provision, "code") | _tokens_in(provision, "action")
        if not named and "code" not in provision and "action" not in provision:
            named = {ANY}
        return frozenset(action for action, codes in self.form.actions.items() if codes & named)


def _within(provision: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All provisions inside one, however deep."""
    for inner in provision.get("provision", []):
        yield inner
        yield from _within(inner)


def _of_root(root: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of the outer provision hold for the inner ones, too."""
    return {name: root[name] for name in root if name in {"purpose", "actor"} or name not in _UNDERSTOOD}


def _kinds(provision: Mapping[str, Any]) -> frozenset[str] | None:
    """The resource types that a provision names; nothing if it names other things as well."""
    named = provision.get("class", [])
    if any(coding.get("system") != _TYPES for coding in named):
        return None
    return frozenset(str(coding["code"]) for coding in named)


def _actors(provision: Mapping[str, Any]) -> set[str] | None:
    """Whom a provision names as recipients; nothing if it names somebody in a way that cannot be told."""
    found: set[str] = set()
    for actor in provision.get("actor", []):
        who = actor["reference"]
        if "reference" in who:
            found.add(str(who["reference"]))
        elif "identifier" in who:
            found.add(f"{who['identifier'].get('system', '')}|{who['identifier']['value']}")
        else:
            return None
    return found


def _tokens_in(provision: Mapping[str, Any], name: str) -> set[str]:
    """The codes of an element, which is a list of codings or of concepts."""
    found: set[str] = set()
    for each in provision.get(name, []):
        found |= _tokens(each if "coding" in each else {"coding": [each]})
    return found


def _tokens(concept: Mapping[str, Any]) -> set[str]:
    codings = concept.get("coding", [])
    return {f"{coding.get('system', '')}|{coding['code']}" for coding in codings if "code" in coding}


def _codes_of(concept: Mapping[str, Any], system: str) -> set[str]:
    return {str(each.get("code")) for each in concept.get("coding", []) if each.get("system") == system}
