"""Repair: the least that makes an object valid again after elements were taken out.

Rules of R4 between elements that taking one out would break; each is named after its invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from abaton.deid.ages import hide_asked, hide_coded, hide_implied
from abaton.deid.context import Scope, masked
from abaton.fhir.elements import Element, is_primitive, table
from abaton.fhir.terminology import ABSENT

EMPTY_NARRATIVE = {"status": "empty", "div": '<div xmlns="http://www.w3.org/1999/xhtml">masked</div>'}

_WORDS = {"string": "masked", "uri": "urn:uuid:00000000-0000-0000-0000-000000000000"}


class Repair:
    """Fills the required elements of one type.

    >>> Repair("Encounter.diagnosis").needs(("use",))
    True
    """

    def __init__(self, type_name: str) -> None:
        fields = table()[type_name]
        self._required = tuple(e for e in fields.values() if e.required and not e.choice)
        self._wanted = tuple((e, e.name, f"_{e.name}") for e in self._required)
        groups: dict[str, list[Element]] = {}
        for element in fields.values():
            if element.choice and element.required:
                groups.setdefault(element.stem, []).append(element)
        self._choices = tuple(groups.values())
        self._place = {name: 2 * i for i, name in enumerate(fields)}
        self._place |= {f"_{name}": 2 * i + 1 for i, name in enumerate(fields)}

    def needs(self, keys: Collection[str]) -> bool:
        """Whether objects with these keys lack something required from the start."""
        if any(e.name not in keys for e in self._required):
            return True
        return any(not any(e.name in keys for e in group) for group in self._choices)

    def __call__(self, out: dict[str, Any], raw: dict[str, Any], scope: Scope) -> None:
        """Put a stand-in wherever a required element did not survive."""
        for element, name, beside in self._wanted:
            if name not in out and beside not in out:
                fill(out, element, scope)
        for group in self._choices:
            if any(e.name in out or f"_{e.name}" in out for e in group):
                continue
            _choose(out, group, [e for e in group if e.name in raw or f"_{e.name}" in raw], scope)

    def in_order(self, out: dict[str, Any]) -> dict[str, Any]:
        """The same object with its elements in the order of the specification."""
        return {key: out[key] for key in sorted(out, key=self._place.__getitem__)}


def fill(out: dict[str, Any], element: Element, scope: Scope) -> None:
    """Put the least valid stand-in for one element into an object."""
    if is_primitive(element.type) and element.many:
        out[element.name] = ["masked"]
    elif is_primitive(element.type):
        out[f"_{element.name}"] = {"extension": masked()}
    else:
        made = least(element.type, scope)
        out[element.name] = [made] if element.many else made


def least(type_name: str, scope: Scope) -> dict[str, Any]:
    """The smallest valid object of a type that says it was masked."""
    if type_name == "Reference":
        return {"display": "masked"}
    if type_name == "CodeableConcept":
        return {"text": "masked"}
    if type_name == "Coding":
        return {"system": ABSENT, "code": "masked"}
    if type_name == "Identifier":
        return {"system": scope.names.system, "value": scope.identity}
    if type_name == "Narrative":
        return dict(EMPTY_NARRATIVE)
    if type_name == "HumanName":
        return {"family": "Anonymous"}
    made: dict[str, Any] = {}
    Repair(type_name)(made, {}, scope)
    return made or {"extension": masked()}


def _choose(out: dict[str, Any], group: list[Element], had: list[Element], scope: Scope) -> None:
    """Make a choice that says it was masked: with the type that was there, or the one that says it best."""
    objects = [element for element in had if not is_primitive(element.type)]
    if objects:
        return fill(out, objects[0], scope)
    for wanted in ("CodeableConcept", "Reference", "Coding"):
        for element in group:
            if element.type == wanted:
                return fill(out, element, scope)
    for element in group:
        if element.type in _WORDS:
            out[element.name] = _WORDS[element.type]
            return None
    return fill(out, (had or group)[0], scope)


Fixup = Callable[[dict[str, Any], dict[str, Any], Scope], dict[str, Any] | None]


def _observed(out: dict[str, Any], raw: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """obs-6: a value that was taken out is said to be masked; one that stays needs no reason of absence."""
    hide_coded(out, raw, scope)
    if "valueQuantity" in out or any(key[:5] == "value" for key in out):
        out.pop("dataAbsentReason", None)
        return out
    if "dataAbsentReason" not in out and any(key[:5] == "value" for key in raw):
        out["dataAbsentReason"] = {"coding": [{"system": ABSENT, "code": "masked"}]}
    return out


def _section(out: dict[str, Any], _raw: dict[str, Any], _: Scope) -> dict[str, Any]:
    """cmp-1 and cmp-2: a section has text, entries or sections, and a reason only when it has no entries."""
    if not ("entry" in out or "section" in out or "text" in out):
        out["text"] = dict(EMPTY_NARRATIVE)
    if "entry" in out:
        out.pop("emptyReason", None)
    return out


def _consent(out: dict[str, Any], _raw: dict[str, Any], _: Scope) -> dict[str, Any]:
    """ppc-1: a consent names a policy."""
    if not ("policy" in out or "policyRule" in out):
        out["policyRule"] = {"text": "masked"}
    return out


def _stage(out: dict[str, Any], _raw: dict[str, Any], _: Scope) -> dict[str, Any] | None:
    """con-1: a stage has a summary or an assessment."""
    return out if "summary" in out or "assessment" in out else None


def _evidence(out: dict[str, Any], _raw: dict[str, Any], _: Scope) -> dict[str, Any] | None:
    """con-2: evidence has a code or a detail."""
    return out if "code" in out or "detail" in out else None


def _aged(out: dict[str, Any], _raw: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """An age beside a year may tell an age over 89."""
    hide_implied(out, scope)
    return out


def _asked(out: dict[str, Any], raw: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """A question about an age has an age for an answer; qrs-1: an answer that says nothing goes."""
    hide_asked(out, raw, scope)
    if "answer" in out:
        out["answer"] = [answer for answer in out["answer"] if answer]
        if not out["answer"]:
            del out["answer"]
    return out


def _period(out: dict[str, Any], _raw: dict[str, Any], _: Scope) -> dict[str, Any]:
    """per-1: a period does not end before it starts."""
    start, end = out.get("start"), out.get("end")
    if start.__class__ is str and end.__class__ is str and start[: len(end)] > end[: len(start)]:
        del out["end"]
    return out


def idle(type_name: str, keys: Collection[str]) -> bool:
    """Whether an object with all these elements is valid without its fixup, if no code in it tells of an age.

    >>> idle("Condition", ("code", "onsetAge")), idle("Condition", ("code",)), idle("Patient", ())
    (False, True, True)
    >>> idle("Period", ("start", "end")), idle("Period", ("start",))
    (False, True)
    """
    if type_name not in FIXUPS:
        return True
    if type_name in ("Observation", "Observation.component"):
        return "dataAbsentReason" not in keys and any(key[:5] == "value" for key in keys)
    if type_name in ("Condition", "Procedure", "AllergyIntolerance", "FamilyMemberHistory"):
        return not any(key.endswith(("Age", "Range")) for key in keys)
    return type_name == "Period" and len(keys) == 1


FIXUPS: Mapping[str, Fixup] = {
    "Observation": _observed,
    "Observation.component": _observed,
    "Composition.section": _section,
    "Consent": _consent,
    "AllergyIntolerance": _aged,
    "Condition": _aged,
    "FamilyMemberHistory": _aged,
    "Procedure": _aged,
    "QuestionnaireResponse.item": _asked,
    "Condition.stage": _stage,
    "Condition.evidence": _evidence,
    "Period": _period,
}
