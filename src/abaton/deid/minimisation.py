"""Need to know: the study's list decides which resources and which of their elements go on to the rules.

What the list does not ask for never reaches them. Elements that R4 requires stay, and so does the reference
to the subject, without which a value belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from abaton.deid.context import Notes
from abaton.deid.settings import CodeFilter, DateFilter, Function, Need, Want
from abaton.errors import SettingsError
from abaton.fhir.elements import children, resources, table
from abaton.fhir.partial_dates import overlap
from abaton.fhir.versions import refuse, signs

_ALWAYS = frozenset({"resourceType", "id", "meta", "identifier", "subject", "patient", "modifierExtension"})
_WHEN = [
    "effectiveDateTime",
    "effectivePeriod",
    "effectiveInstant",
    "performedDateTime",
    "performedPeriod",
    "occurrenceDateTime",
    "occurrencePeriod",
    "onsetDateTime",
    "onsetPeriod",
    "authoredOn",
    "period",
    "date",
    "recordedDate",
    "issued",
    "created",
    "started",
    "dateAsserted",
    "whenHandedOver",
    "recorded",
    "birthDate",
]


class Minimiser:
    """A study's list, ready to be asked about resources.

    >>> from abaton.deid.settings import Want
    >>> chosen = Minimiser(Need("heart", (Want("Patient", Function.ELEMENT, ("gender",)),)))
    >>> patient = {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1950-01-01"}
    >>> sorted(chosen.part(patient, "Patient", Notes()) or {})
    ['gender', 'id', 'resourceType']
    """

    def __init__(self, need: Need) -> None:
        self.need = need
        self._wants: dict[str, list[tuple[str, Want]]] = {}
        self._asked: dict[str, frozenset[str]] = {}
        for number, want in enumerate(need.wants, 1):
            if want.type not in resources():
                raise SettingsError(
                    f"line {number} of the study's list asks for an unknown resource type",
                    remedy="use the name of an R4 resource type",
                )
            _check(number, want)
            name = f"{number} {want.type}"
            self._wants.setdefault(want.type, []).append((name, want))
            self._asked[name] = frozenset(_elements(want.type, want))

    def matching(self, raw: dict[str, Any], kind: str) -> list[tuple[str, Want]]:
        """The lines of the list that a resource answers, each with its name."""
        return [(name, want) for name, want in self._wants.get(kind, ()) if answers(raw, want)]

    def part(self, raw: dict[str, Any], kind: str, notes: Notes) -> dict[str, Any] | None:
        """The part of a resource that the study needs, or nothing."""
        if not self.need.wants:
            return raw
        # Before anything is left out: what shows another version may be what the study does not need.
        for name, version, form in signs(kind):
            if name in raw and (form is None or raw[name].__class__ is form):
                refuse(version)
        wanted: set[str] = set()
        for name, want in self.matching(raw, kind):
            if want.function is Function.DATA:
                return raw
            if want.function in (Function.ELEMENT, Function.SUMMARY):
                wanted |= self._asked[name]
        if not wanted:
            return None
        fields = table()[kind]
        made = {}
        for key, value in raw.items():
            if key in wanted or key.removeprefix("_") in wanted:
                made[key] = value
            else:
                known = key.removeprefix("_") in fields
                place = f"{kind}.{key}" if known else f"{kind}.(unknown)"
                notes.drops.append((place, "not needed by the study"))
        return made


def _check(number: int, want: Want) -> None:
    fields = table()[want.type]
    for name in want.elements if want.function is Function.ELEMENT else ():
        if not children(fields, name.partition(".")[0]):
            raise SettingsError(
                f"line {number} of the study's list asks for an element that {want.type} does not have",
                remedy="use an element of that resource type",
            )


def _elements(kind: str, want: Want) -> set[str]:
    fields = table()[kind]
    wanted = set(_ALWAYS) | {element.name for element in fields.values() if element.required}
    if want.function is Function.SUMMARY:
        return wanted | {element.name for element in fields.values() if element.summary}
    for name in want.elements:
        wanted.update(element.name for element in children(fields, name.partition(".")[0]))
    return wanted


def passing(kind: str, wants: Iterable[Want]) -> frozenset[str]:
    """The elements of a resource type that a study's list lets through; none if it does not ask for the type.

    >>> sorted(passing("Patient", [Want("Patient", Function.ELEMENT, ("gender",))]) - _ALWAYS)
    ['gender']
    """
    wanted: set[str] = set()
    for want in wants:
        if want.function is Function.AGE_FROM_DATE and kind == "Observation":
            wanted |= _ALWAYS | {"status", "code", "valueQuantity"}  # the age itself is an observation
        elif want.type == kind and want.function is Function.DATA:
            wanted |= set(table()[kind])
        elif want.type == kind and want.function in (Function.ELEMENT, Function.SUMMARY):
            wanted |= _elements(kind, want)
    return frozenset(wanted)


def answers(raw: dict[str, Any], want: Want) -> bool:
    """Whether a resource passes all filters of a line.

    >>> answers({"gender": "male"}, Want("Patient"))
    True
    """
    return all(_has_code(raw, each) for each in want.codes) and all(
        _in_time(raw, each) for each in want.dates
    )


def _at(node: Any, names: list[str]) -> Iterator[Any]:
    if isinstance(node, list):
        for each in node:
            yield from _at(each, names)
    elif not names:
        yield node
    elif isinstance(node, dict):
        head, rest = names[0].removesuffix("[x]"), names[1:]
        for key, child in node.items():
            if key == head or (key.startswith(head) and key[len(head) : len(head) + 1].isupper()):
                yield from _at(child, rest)


def _has_code(raw: dict[str, Any], wanted: CodeFilter) -> bool:
    return any(
        each.means(system, code)
        for node in _at(raw, wanted.path.split("."))
        for system, code in _codes(node)
        for each in wanted.codes
    )


def _codes(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield "", node
    elif isinstance(node, dict):
        coding = node.get("coding", [node])
        for each in coding if isinstance(coding, list) else ():
            if isinstance(each, dict):
                yield str(each.get("system", "")), str(each.get("code", ""))


def _in_time(raw: dict[str, Any], wanted: DateFilter) -> bool:
    paths = [wanted.path] if wanted.path else _WHEN
    for path in paths:
        for start, end in _times(raw, path):
            if overlap(start, end, wanted.start, wanted.end):
                return True
    return False


def _times(raw: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    # A filter on effectivePeriod also means effectiveDateTime: the study asks when, not in which form.
    names = path.split(".")
    for suffix in ("Period", "DateTime", "Date", "Instant"):
        if names[-1].endswith(suffix) and names[-1] != suffix:
            names[-1] = names[-1].removesuffix(suffix)
            break
    for node in _at(raw, names):
        if isinstance(node, str):
            yield node, node
        elif isinstance(node, dict):
            yield str(node.get("start", "")), str(node.get("end", ""))
