"""Rules of R4 between elements that taking one out would break; each is named after its invariant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from abaton.deid.ages import hide_asked, hide_coded, hide_implied
from abaton.records.deid.repair import EMPTY_NARRATIVE
from abaton.records.deid.scope import Scope
from abaton.records.fhir.vocabulary import ABSENT

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
