"""Repair: minimal values that make an object valid R4 again after elements were dropped.

Fixups restore invariants of R4 between elements; each is named after its invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from abaton.deid.ages import cap_answered_age, cap_coded_age, cap_implied_age
from abaton.deid.context import TransformContext, absent_extension
from abaton.fhir.elements import ElementDefinition, element_table, is_primitive
from abaton.fhir.terminology import DATA_ABSENT_REASON

EMPTY_NARRATIVE = {"status": "empty", "div": '<div xmlns="http://www.w3.org/1999/xhtml">masked</div>'}

_MASK_VALUES = {"string": "masked", "uri": "urn:uuid:00000000-0000-0000-0000-000000000000"}


class Repair:
    """Repair of the required elements of one type.

    >>> Repair("Encounter.diagnosis").is_needed(("use",))
    True
    """

    def __init__(self, type_name: str) -> None:
        fields = element_table()[type_name]
        self._required = tuple(e for e in fields.values() if e.is_required and not e.is_choice)
        self._required_names = tuple((e, e.name, f"_{e.name}") for e in self._required)
        groups: dict[str, list[ElementDefinition]] = {}
        for element in fields.values():
            if element.is_choice and element.is_required:
                groups.setdefault(element.stem, []).append(element)
        self._choices = tuple(groups.values())
        self._order = {name: 2 * i for i, name in enumerate(fields)}
        self._order |= {f"_{name}": 2 * i + 1 for i, name in enumerate(fields)}

    def is_needed(self, keys: Collection[str]) -> bool:
        """Return whether objects with these keys need repair: they lack a required element."""
        if any(e.name not in keys for e in self._required):
            return True
        return any(not any(e.name in keys for e in group) for group in self._choices)

    def __call__(self, out: dict[str, Any], raw: dict[str, Any], context: TransformContext) -> None:
        """Repair an object: add a masked value for each required element that was dropped."""
        for element, name, extension_name in self._required_names:
            if name not in out and extension_name not in out:
                fill_absent(out, element, context)
        for group in self._choices:
            if any(e.name in out or f"_{e.name}" in out for e in group):
                continue
            _fill_choice(out, group, [e for e in group if e.name in raw or f"_{e.name}" in raw], context)

    def in_order(self, out: dict[str, Any]) -> dict[str, Any]:
        """Return the repaired object with its elements in the order of the specification."""
        return {key: out[key] for key in sorted(out, key=self._order.__getitem__)}


def fill_absent(out: dict[str, Any], element: ElementDefinition, context: TransformContext) -> None:
    """Repair an object by a minimal masked value of one required element."""
    if is_primitive(element.type) and element.is_list:
        out[element.name] = ["masked"]
    elif is_primitive(element.type):
        out[f"_{element.name}"] = {"extension": absent_extension()}
    else:
        value = minimal_value(element.type, context)
        out[element.name] = [value] if element.is_list else value


def minimal_value(type_name: str, context: TransformContext) -> dict[str, Any]:
    """Return, to repair an object, the smallest valid value of a type that is marked as masked."""
    if type_name == "Reference":
        return {"display": "masked"}
    if type_name == "CodeableConcept":
        return {"text": "masked"}
    if type_name == "Coding":
        return {"system": DATA_ABSENT_REASON, "code": "masked"}
    if type_name == "Identifier":
        return {"system": context.pseudonyms.system, "value": context.identity}
    if type_name == "Narrative":
        return dict(EMPTY_NARRATIVE)
    if type_name == "HumanName":
        return {"family": "Anonymous"}
    value: dict[str, Any] = {}
    Repair(type_name)(value, {}, context)
    return value or {"extension": absent_extension()}


def _fill_choice(
    out: dict[str, Any],
    group: list[ElementDefinition],
    original_choices: list[ElementDefinition],
    context: TransformContext,
) -> None:
    """Repair a choice element by a masked value, of the original type or of the most suitable one."""
    objects = [element for element in original_choices if not is_primitive(element.type)]
    if objects:
        return fill_absent(out, objects[0], context)
    for type_name in ("CodeableConcept", "Reference", "Coding"):
        for element in group:
            if element.type == type_name:
                return fill_absent(out, element, context)
    for element in group:
        if element.type in _MASK_VALUES:
            out[element.name] = _MASK_VALUES[element.type]
            return None
    return fill_absent(out, (original_choices or group)[0], context)


Fixup = Callable[[dict[str, Any], dict[str, Any], TransformContext], dict[str, Any] | None]


def _fix_observation(out: dict[str, Any], raw: dict[str, Any], context: TransformContext) -> dict[str, Any]:
    """Repair invariant obs-6: a dropped value has the reason 'masked'; a kept value has no reason."""
    cap_coded_age(out, raw, context)
    if "valueQuantity" in out or any(key[:5] == "value" for key in out):
        out.pop("dataAbsentReason", None)
        return out
    if "dataAbsentReason" not in out and any(key[:5] == "value" for key in raw):
        out["dataAbsentReason"] = {"coding": [{"system": DATA_ABSENT_REASON, "code": "masked"}]}
    return out


def _fix_section(out: dict[str, Any], _raw: dict[str, Any], _: TransformContext) -> dict[str, Any]:
    """Repair invariants cmp-1 and cmp-2: a section has text, entries or sections; a reason only without entries."""
    if not ("entry" in out or "section" in out or "text" in out):
        out["text"] = dict(EMPTY_NARRATIVE)
    if "entry" in out:
        out.pop("emptyReason", None)
    return out


def _fix_consent(out: dict[str, Any], _raw: dict[str, Any], _: TransformContext) -> dict[str, Any]:
    """Repair invariant ppc-1: a consent has a policy."""
    if not ("policy" in out or "policyRule" in out):
        out["policyRule"] = {"text": "masked"}
    return out


def _fix_stage(out: dict[str, Any], _raw: dict[str, Any], _: TransformContext) -> dict[str, Any] | None:
    """Repair invariant con-1: a stage has a summary or an assessment."""
    return out if "summary" in out or "assessment" in out else None


def _fix_evidence(out: dict[str, Any], _raw: dict[str, Any], _: TransformContext) -> dict[str, Any] | None:
    """Repair invariant con-2: evidence has a code or a detail."""
    return out if "code" in out or "detail" in out else None


def _fix_implied_age(out: dict[str, Any], _raw: dict[str, Any], context: TransformContext) -> dict[str, Any]:
    """Repair a resource: drop an age that, together with a year, implies an age over 89."""
    cap_implied_age(out, context)
    return out


def _fix_answers(out: dict[str, Any], raw: dict[str, Any], context: TransformContext) -> dict[str, Any]:
    """Repair invariant qrs-1: drop empty answers; cap answers to questions about ages."""
    cap_answered_age(out, raw, context)
    if "answer" in out:
        out["answer"] = [answer for answer in out["answer"] if answer]
        if not out["answer"]:
            del out["answer"]
    return out


def _fix_period(out: dict[str, Any], _raw: dict[str, Any], _: TransformContext) -> dict[str, Any]:
    """Repair invariant per-1: a period does not end before it starts."""
    start, end = out.get("start"), out.get("end")
    if start.__class__ is str and end.__class__ is str and start[: len(end)] > end[: len(start)]:
        del out["end"]
    return out


def needs_no_fixup(type_name: str, keys: Collection[str]) -> bool:
    """Return whether an object with these elements needs no repair, if no code in it states an age.

    >>> needs_no_fixup("Condition", ("code", "onsetAge")), needs_no_fixup("Condition", ("code",))
    (False, True)
    >>> needs_no_fixup("Period", ("start", "end")), needs_no_fixup("Period", ("start",)), needs_no_fixup("Patient", ())
    (False, True, True)
    """
    if type_name not in FIXUPS:
        return True
    if type_name in ("Observation", "Observation.component"):
        return "dataAbsentReason" not in keys and any(key[:5] == "value" for key in keys)
    if type_name in ("Condition", "Procedure", "AllergyIntolerance", "FamilyMemberHistory"):
        return not any(key.endswith(("Age", "Range")) for key in keys)
    return type_name == "Period" and len(keys) == 1


FIXUPS: Mapping[str, Fixup] = {
    "Observation": _fix_observation,
    "Observation.component": _fix_observation,
    "Composition.section": _fix_section,
    "Consent": _fix_consent,
    "AllergyIntolerance": _fix_implied_age,
    "Condition": _fix_implied_age,
    "FamilyMemberHistory": _fix_implied_age,
    "Procedure": _fix_implied_age,
    "QuestionnaireResponse.item": _fix_answers,
    "Condition.stage": _fix_stage,
    "Condition.evidence": _fix_evidence,
    "Period": _fix_period,
}
