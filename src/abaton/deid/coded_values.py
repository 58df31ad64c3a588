"""Coded values: only codes of public terminologies and of the study are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import AGE_REVEALING_CODES, is_age_concept
from abaton.deid.context import (
    ABSENT_REASON_URL,
    DroppedElements,
    ElementPosition,
    Handler,
    SiblingCounter,
    TransformContext,
)
from abaton.errors import SettingsError
from abaton.fhir.terminology import DATA_ABSENT_REASON, code_check, is_known

if TYPE_CHECKING:
    from abaton.deid.methods import Settings

_MAX_CACHED = 65_536


class CodedValues(dict[Any, dict[str, Any] | None]):
    """Cache of the concept that is kept for a pair of system and code; None for an unknown pair.

    Codes that the study names are known. A concept is shared by all records that contain it.

    >>> CodedValues()["http://loinc.org", "8310-5"]
    {'coding': [{'system': 'http://loinc.org', 'code': '8310-5'}]}
    >>> CodedValues(frozenset({("urn:x", "7")})).is_kept("urn:x", "7"), CodedValues().is_kept("urn:x", "7")
    (True, False)
    """

    def __init__(self, study_codes: frozenset[tuple[str, str]] = frozenset()) -> None:
        super().__init__()
        self._study_codes = study_codes
        # Most codes have one system only: a lookup by code avoids a tuple and its hash.
        self.by_code: dict[str, tuple[str, dict[str, Any], bool]] = {}

    def __missing__(self, pair: tuple[Any, Any]) -> dict[str, Any] | None:
        """Look up for the first time whether a coded value, a pair of system and code, is kept."""
        system, code = pair
        is_text = system.__class__ is str and code.__class__ is str
        is_kept = is_text and (is_known(system, code) or pair in self._study_codes)
        safe_concept = {"coding": [{"system": system, "code": code}]} if is_kept else None
        if len(self) < _MAX_CACHED:
            self[pair] = safe_concept
            if safe_concept is not None:
                self.by_code.setdefault(code, (system, safe_concept, code in AGE_REVEALING_CODES))
        return safe_concept

    def is_kept(self, system: Any, code: Any) -> bool:
        """Return whether a coded value is kept; system and code may be of any type."""
        try:
            return self[system, code] is not None
        except TypeError:  # a list or an object instead of a string
            return False


def terminology(_: Settings, node: ElementPosition) -> Handler:
    """Keep a coded value of a public terminology without its display."""
    if node.type == "Coding":
        return _coding(node)
    is_listed = code_check(node.parent, node.name)
    if node.type == "code" or is_listed is not None:
        return _code(node, is_listed)
    raise SettingsError(
        f"the method 'terminology' does not apply to {node.path}, which has no code",
        remedy="correct the rule",
    )


def _coding(node: ElementPosition) -> Handler:
    siblings = SiblingCounter(node, ("system", "code"), "text beside a code")
    display = siblings.of(("display",))

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not dict:
            return context.drop(node, "malformed")
        system, code = value.get("system"), value.get("code")
        if len(value) > 2:
            has_display_only = len(value) == 3 and "display" in value
            context.log_shape_drops(display if has_display_only else siblings.of(tuple(value)))
        try:
            if context.codes[system, code]:
                if code in AGE_REVEALING_CODES:
                    context.reveals_age = True
                return {"system": system, "code": code}
        except TypeError:  # a list or an object instead of a string
            pass
        return context.drop(node, "code of no public terminology")

    return run


def handle_concept(node: ElementPosition, general: Handler) -> Handler:
    """Return a fast handler of coded values (CodeableConcepts) with one known code; others use the general one."""
    text = (f"{node.path}.text", "no rule")
    display = (f"{node.path}.coding.display", "text beside a code")
    # Dropped elements by the sizes of the concept and of its coding.
    dropped_by_size = {
        (1, 2): None,
        (1, 3): DroppedElements((display,)),
        (2, 2): DroppedElements((text,)),
        (2, 3): DroppedElements((text, display)),
    }
    sizes = {8 * outer + inner: dropped for (outer, inner), dropped in dropped_by_size.items()}
    is_observation_code = node.path.endswith(("Observation.code", "Observation.component.code"))
    texts_without_age: set[Any] = set()  # texts that do not mention an age; most codes have the same texts

    def handle_general(value: Any, context: TransformContext) -> Any:
        if is_observation_code and is_age_concept(value):
            context.reveals_age = True
        return general(value, context)

    def run(value: Any, context: TransformContext) -> Any:
        try:
            (only,) = value["coding"]
            outer, inner = len(value), len(only)
            dropped = sizes[8 * outer + inner]
            system, known, reveals_age = context.by_code[only["code"]]
            safe_concept = known if only["system"] == system else context.codes[only["system"], only["code"]]
            if is_observation_code and (
                (outer == 2 and value["text"] not in texts_without_age)
                or (inner == 3 and only["display"] not in texts_without_age)
            ):
                if is_age_concept(value):
                    context.reveals_age = True
                elif len(texts_without_age) < _MAX_CACHED:
                    texts_without_age.update((value.get("text"), only.get("display")))
        except (KeyError, TypeError, ValueError):
            return handle_general(value, context)
        if reveals_age:
            context.reveals_age = True
        if safe_concept is None:
            return handle_general(value, context)
        if dropped is not None:
            if (outer == 2 and "text" not in value) or (inner == 3 and "display" not in only):
                return handle_general(value, context)
            context.log_shape_drops(dropped)
        return safe_concept

    return run


def _code(node: ElementPosition, is_listed: Callable[[str], bool] | None) -> Handler:
    if is_listed is None:
        return lambda v, context: context.drop(node, "code without a value set")

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is str and is_listed(value):
            return value
        return context.drop(node, "code not in its value set")

    return run


def absent_reason(extension: Any) -> Any:
    """Return the coded data-absent-reason extension if it has no other content, else None."""
    if extension.__class__ is not dict or len(extension) != 2 or extension.get("url") != ABSENT_REASON_URL:
        return None
    code = extension.get("valueCode")
    return (
        {"url": ABSENT_REASON_URL, "valueCode": code}
        if code.__class__ is str and is_known(DATA_ABSENT_REASON, code)
        else None
    )
