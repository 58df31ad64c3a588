"""Consent forms of hospitals and registries, read with a mapping from their codes to consent actions.

A subject may have signed several forms, each expressed by one or more Consent resources. All statements about an action
are combined: the latest statement that applies at a time decides, and a denial wins over a permission of the same time.
Codes outside the mapping permit nothing. A permission with a restriction that cannot be enforced here is ignored; a
restriction of a denial is applied only if the denial clearly concerns something else. If the latest statement is
unclear, the subject is excluded until it is resolved.

Invariants:
(1) a Consent of an unmapped form has no effect; a missing or unreadable part never permits more;
(2) only codes and times are taken from the resource: no names, text or personal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from abaton.governance.consent import ConsentAction, ConsentQuery, Json, Window, make_consent
from abaton.governance.timestamps import earliest_time, latest_time

RESEARCH = ("http://terminology.hl7.org/CodeSystem/v3-ActReason|HRESCH",
            "http://terminology.hl7.org/CodeSystem/v3-ActReason|CLINTRCH")  # fmt: skip
ANY = "*"
_SCOPE = "http://terminology.hl7.org/CodeSystem/consentscope"
_TYPES = "http://hl7.org/fhir/resource-types"
_ACTION = "http://terminology.hl7.org/CodeSystem/consentaction"
_KNOWN_ELEMENTS = {
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
_PARSE_ERRORS = (KeyError, TypeError, AttributeError, IndexError, ValueError)
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class FormIssue(StrEnum):
    """Reason for which a Consent has no effect."""

    UNREADABLE = "a Consent is malformed"
    OTHER_FORM = "a Consent belongs to no form configured in site.toml"
    MEANING_MODIFIED = "a Consent contains an element that may change its meaning"


@dataclass(frozen=True, slots=True)
class ConsentForm:
    """Consent form and the meaning of its codes.

    Args:
        name: Name of the form.
        policies: Its ``policy.uri`` values or ``policyRule`` codes (``system|code``).
        scopes: Accepted codes of HL7's consent scope.
        actions: For each action the codes (``system|code``) of a provision that stand for it; ``*`` stands for a
            provision without codes and actions.
        purposes: Accepted purposes (``system|code``); a permission for other purposes only has no effect.
        recipients: Accepted recipients if a permission names any: references or ``system|value``.
    """

    name: str
    policies: frozenset[str]
    actions: Mapping[ConsentAction, frozenset[str]]
    scopes: frozenset[str] = frozenset({"research"})
    purposes: frozenset[str] = frozenset(RESEARCH)
    recipients: frozenset[str] = frozenset()


class FormStatement(NamedTuple):
    """Permission or denial of some actions for a period, and the time of signature."""

    given: datetime
    permits: bool
    actions: frozenset[ConsentAction]
    start: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True)
class FormReading:
    """Content of one Consent resource.

    Attributes:
        patient: Id of the Patient; empty if unclear.
        statements: Its statements.
        resource_types: The only resource types that it covers, if it names any.
        excluded_types: Resource types that it denies.
        issue: Why it has no effect; None if it has one.
        unclear_at: Time of a statement that may be a permission or a denial.
    """

    patient: str
    statements: tuple[FormStatement, ...] = ()
    resource_types: frozenset[str] | None = None
    excluded_types: frozenset[str] = frozenset()
    issue: FormIssue | None = None
    unclear_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConsentTerms:
    """What a subject permits by all forms together: time windows per action, and resource types."""

    windows: Mapping[ConsentAction, tuple[Window, ...]]
    resource_types: frozenset[str] | None = None
    excluded_types: frozenset[str] = frozenset()
    latest_consent_at: datetime | None = None
    """Time of the latest permission."""
    last_is_denial: bool = False
    """Whether the latest statement is a denial."""

    @property
    def is_refusal(self) -> bool:
        """Whether the consent forms of a subject permit nothing at any time."""
        return not any(self.windows.values())

    def is_withdrawn(self, when: datetime) -> bool:
        """Return whether the latest statement of a consent form ends all permissions by the given time."""
        ends = [window[1] for windows in self.windows.values() for window in windows]
        return self.last_is_denial and all(end is not None and end <= when for end in ends)

    def general_consent(self, query: ConsentQuery) -> Json:
        """Return the general opt-in that accompanies the consent forms, from the first permitted time on."""
        return make_consent(query, self._span()[0], None)

    def _span(self) -> Window:
        """Return the first and last time at which the consent forms permit anything."""
        all_windows = [window for windows in self.windows.values() for window in windows]
        ends = [end for _, end in all_windows if end is not None]
        return min(start for start, _ in all_windows), max(ends) if len(ends) == len(all_windows) else None

    def study_consent(self, query: ConsentQuery) -> Json:
        """Return the terms of the consent forms as a Consent to one study document, as stored in the registry."""
        start, end = self._span()
        actions = [action for action in ConsentAction if self.windows.get(action)]
        consent = make_consent(
            query,
            start,
            None,
            actions=actions,
            resource_types=self.resource_types or (),
            excluded_types=self.excluded_types,
        )
        provision: Json = consent["provision"]
        provision["period"] = _period(start, end)
        gaps = [
            {"type": "deny", "action": [{"coding": [{"system": _ACTION, "code": action.value}]}],
             "period": _period(*gap)}
            for action in actions
            for gap in _gaps(self.windows[action], start, end)
        ]  # fmt: skip
        if gaps:
            provision["provision"] = [*provision.get("provision", []), *gaps]
        return consent


def _period(start: datetime, end: datetime | None) -> Json:
    """Return a window of a consent form's terms as a FHIR period, whose end is its last instant."""
    inside = {} if end is None else {"end": _to_exact_timestamp(end - _TICK)}
    return {"start": _to_exact_timestamp(start), **inside}


def _to_exact_timestamp(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _gaps(windows: Iterable[Window], start: datetime, end: datetime | None) -> Iterator[Window]:
    """Yield the gaps between the windows of a consent form's terms from start to end."""
    position: datetime | None = start
    for begin, finish in windows:
        if position is not None and position < begin:
            yield position, begin
        position = finish
    if position is not None and (end is None or position < end):
        yield position, end


def is_unambiguous(readings: Iterable[FormReading]) -> bool:
    """Return whether a subject's latest statement in the consent forms is clear."""
    all_readings = list(readings)
    latest = max(
        (statement.given for reading in all_readings for statement in reading.statements), default=_EARLIEST
    )
    return all(reading.unclear_at is None or reading.unclear_at < latest for reading in all_readings)


def combine_consents(readings: Iterable[FormReading]) -> ConsentTerms:
    """Combine what all consent forms of one subject permit into one set of terms."""
    statements: list[FormStatement] = []
    resource_types: frozenset[str] | None = None
    excluded_types: frozenset[str] = frozenset()
    for reading in readings:
        statements += reading.statements
        excluded_types |= reading.excluded_types
        if reading.resource_types is not None and any(statement.permits for statement in reading.statements):
            resource_types = (
                reading.resource_types if resource_types is None else resource_types & reading.resource_types
            )
    latest_consent_at = max((statement.given for statement in statements if statement.permits), default=None)
    last_is_denial = latest_consent_at is None or any(
        not statement.permits and statement.given >= latest_consent_at for statement in statements
    )
    if resource_types is not None and not resource_types:
        return ConsentTerms({}, latest_consent_at=latest_consent_at, last_is_denial=last_is_denial)
    return ConsentTerms(
        {action: _windows(statements, action) for action in ConsentAction},
        resource_types,
        excluded_types,
        latest_consent_at,
        last_is_denial,
    )


def _windows(statements: Iterable[FormStatement], action: ConsentAction) -> tuple[Window, ...]:
    relevant = [statement for statement in statements if action in statement.actions]
    times = sorted(
        {statement.start for statement in relevant}
        | {statement.end for statement in relevant if statement.end is not None}
    )
    windows: list[Window] = []
    for start, end in pairwise([*times, None]):
        assert start is not None  # only the last end is open
        active = [
            statement
            for statement in relevant
            if statement.start <= start and (statement.end is None or start < statement.end)
        ]
        if not active:
            continue
        latest = max(statement.given for statement in active)
        if not all(statement.permits for statement in active if statement.given == latest):
            continue
        if windows and windows[-1][1] == start:
            windows[-1] = windows[-1][0], end
        else:
            windows.append((start, end))
    return tuple(windows)


def read_form(consent: object, forms: Iterable[ConsentForm]) -> FormReading:
    """Read a Consent resource as the first hospital or registry consent form whose mapping it matches."""
    patient = _patient(consent)
    try:
        return _read_known_form(consent, patient, forms)
    except _PARSE_ERRORS:
        return FormReading(patient, issue=FormIssue.UNREADABLE)


def refusing_patient(consent: object, when: datetime) -> str:
    """Return the Patient who refuses everything in a Consent form at a time; empty if it is no such refusal."""
    try:
        status, provision = consent["status"], consent.get("provision", {})  # type: ignore[index,attr-defined]
        if status == "rejected":
            return _patient(consent)
        if status != "active" or provision.get("type") != "deny" or provision.get("provision"):
            return ""
        period = provision.get("period", {})
        start, end = earliest_time(period.get("start")), latest_time(period.get("end"))
        is_over = end is not None and when >= end
        return "" if is_over or (start is not None and when < start) else _patient(consent)
    except (KeyError, TypeError, AttributeError):
        return ""


def _patient(consent: object) -> str:
    try:
        reference = consent["patient"]["reference"]  # type: ignore[index]
        type_path, _, name = str(reference).split("/_history/")[0].rpartition("/")
        return name if type_path.split("/")[-1] == "Patient" else ""
    except (KeyError, TypeError):
        return ""


def _read_known_form(consent: Any, patient: str, forms: Iterable[ConsentForm]) -> FormReading:
    if consent["resourceType"] != "Consent" or not patient:
        return FormReading(patient, issue=FormIssue.UNREADABLE)
    is_modified = "implicitRules" in consent or "modifierExtension" in consent
    form = next((candidate for candidate in forms if _matches_form(consent, candidate)), None)
    if form is None:
        return FormReading(patient, issue=FormIssue.MEANING_MODIFIED if is_modified else FormIssue.OTHER_FORM)
    if consent["status"] not in ("active", "rejected"):
        return FormReading(patient)  # not in force
    given = earliest_time(consent.get("dateTime"))
    if is_modified:
        return FormReading(patient, issue=FormIssue.MEANING_MODIFIED, unclear_at=given or _LATEST)
    if given is None:
        return FormReading(patient, issue=FormIssue.UNREADABLE, unclear_at=_LATEST)
    if consent["status"] == "rejected":
        everything = frozenset(ConsentAction)
        return FormReading(
            patient, (FormStatement(given, permits=False, actions=everything, start=given, end=None),)
        )
    provisions = _Provisions(form, given, "research" in _codes_of(consent["scope"], _SCOPE))
    try:
        return provisions.read(patient, consent["provision"])
    except _PARSE_ERRORS:
        return FormReading(patient, issue=FormIssue.UNREADABLE, unclear_at=given)


def _matches_form(consent: Mapping[str, Any], form: ConsentForm) -> bool:
    policies = {policy.get("uri", "") for policy in consent.get("policy", [])}
    policies |= _tokens(consent.get("policyRule", {}))
    return bool(policies & form.policies) and bool(_codes_of(consent["scope"], _SCOPE) & form.scopes)


@dataclass(slots=True)
class _Provisions:
    """Reader for the provisions of one Consent."""

    form: ConsentForm
    given: datetime
    is_research: bool
    statements: list[FormStatement] = field(default_factory=list)
    excluded_types: set[str] = field(default_factory=set)

    def read(self, patient: str, root: Mapping[str, Any]) -> FormReading:
        """Return all statements in the provisions of a consent form."""
        parts, resource_types = root.get("provision", []), _resource_types(root)
        inner = [provision for part in parts for provision in _nested_provisions(part)]
        # A nested denial removes something; whether a nested permission widens or narrows its parent is undefined.
        if resource_types is None or any(provision["type"] != "deny" for provision in inner):
            return FormReading(patient, issue=FormIssue.UNREADABLE, unclear_at=self.given)
        if any("modifierExtension" in provision for provision in (root, *parts, *inner)):
            return FormReading(patient, issue=FormIssue.MEANING_MODIFIED, unclear_at=self.given)
        start, end = self._window(root, (self.given, None))
        if root.get("type") == "permit":
            self._add_permission(root, (start, end))
        elif root.get("type") == "deny" and not parts:
            self._add_denial(
                root, (start, end)
            )  # refusal of everything; with nested provisions it is the default that they except from
        for part in parts:
            if part["type"] == "permit" and "class" not in part:
                self._add_permission({**_inherited_limits(root), **part}, self._window(part, (start, end)))
            elif part["type"] == "deny":
                self._add_denial(part, self._window(part, (start, end)))
        for provision in inner:
            self._add_denial(provision, self._window(provision, (start, end)))
        return FormReading(
            patient, tuple(self.statements), resource_types or None, frozenset(self.excluded_types)
        )

    def _window(self, provision: Mapping[str, Any], outer: Window) -> Window:
        """Return the window of a form's provision within its parent; a malformed time raises an error."""
        period = provision.get("period", {})
        start, end = outer
        if "start" in period:
            begin = earliest_time(period["start"])
            if begin is None:
                raise ValueError
            start = begin if provision.get("type") == "deny" else max(begin, start)
        if "end" in period:
            finish = latest_time(period["end"])
            if finish is None:
                raise ValueError
            end = finish if end is None else min(finish, end)
        return start, end

    def _add_permission(self, provision: Mapping[str, Any], time: Window) -> None:
        """Add a permission of a consent form if each of its restrictions can be enforced."""
        start, end = time
        if set(provision) - _KNOWN_ELEMENTS or (end is not None and end <= start):
            return
        purposes, actors = _element_tokens(provision, "purpose"), _actors(provision)
        if (purposes and not purposes & self.form.purposes) or not (purposes or self.is_research):
            return
        if actors is None or (actors and not actors & self.form.recipients):
            return
        if actions := self._actions(provision):
            self.statements.append(
                FormStatement(
                    self.given, permits=True, actions=actions, start=max(start, self.given), end=end
                )
            )

    def _add_denial(self, provision: Mapping[str, Any], time: Window) -> None:
        """Add a denial of a consent form unless it clearly concerns something else."""
        purposes, actors = _element_tokens(provision, "purpose"), _actors(provision)
        if purposes and not purposes & self.form.purposes:
            return
        if actors and self.form.recipients and not actors & self.form.recipients:
            return
        is_named = "code" in provision or "action" in provision
        actions = self._actions(provision) if is_named else frozenset(ConsentAction)
        resource_types = _resource_types(provision)
        if (
            resource_types
            and not is_named
            and not set(provision) - {"type", "class", "period", "id", "purpose"}
        ):
            self.excluded_types |= resource_types
        elif actions:
            self.statements.append(
                FormStatement(self.given, permits=False, actions=actions, start=time[0], end=time[1])
            )

    def _actions(self, provision: Mapping[str, Any]) -> frozenset[ConsentAction]:
        named = _element_tokens(provision, "code") | _element_tokens(provision, "action")
        if not named and "code" not in provision and "action" not in provision:
            named = {ANY}
        return frozenset(action for action, codes in self.form.actions.items() if codes & named)


def _nested_provisions(provision: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all provisions inside a provision of a consent form, at any depth."""
    for inner in provision.get("provision", []):
        yield inner
        yield from _nested_provisions(inner)


def _inherited_limits(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a consent form's outer provision that apply to the inner ones."""
    return {name: root[name] for name in root if name in {"purpose", "actor"} or name not in _KNOWN_ELEMENTS}


def _resource_types(provision: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the resource types that a consent form's provision names; None if it also names other classes."""
    codings = provision.get("class", [])
    if any(coding.get("system") != _TYPES for coding in codings):
        return None
    return frozenset(str(coding["code"]) for coding in codings)


def _actors(provision: Mapping[str, Any]) -> set[str] | None:
    """Return the recipients that a consent form's provision names; None if one cannot be identified."""
    references: set[str] = set()
    for actor in provision.get("actor", []):
        who = actor["reference"]
        if "reference" in who:
            references.add(str(who["reference"]))
        elif "identifier" in who:
            references.add(f"{who['identifier'].get('system', '')}|{who['identifier']['value']}")
        else:
            return None
    return references


def _element_tokens(provision: Mapping[str, Any], name: str) -> set[str]:
    """Return the codes of a provision's element in a consent form, a list of codings or of concepts."""
    tokens: set[str] = set()
    for element in provision.get(name, []):
        tokens |= _tokens(element if "coding" in element else {"coding": [element]})
    return tokens


def _tokens(concept: Mapping[str, Any]) -> set[str]:
    codings = concept.get("coding", [])
    return {f"{coding.get('system', '')}|{coding['code']}" for coding in codings if "code" in coding}


def _codes_of(concept: Mapping[str, Any], system: str) -> set[str]:
    return {str(coding.get("code")) for coding in concept.get("coding", []) if coding.get("system") == system}
