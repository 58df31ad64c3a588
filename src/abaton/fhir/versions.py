"""Other versions of FHIR: what only they have, so that a record of theirs is refused by its name, not misread."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from abaton.errors import Refused

_FORMS: dict[str, type] = {"text": str, "list": list, "object": dict}


@cache
def _marks() -> dict[str, tuple[str, str]]:
    """By type or element: the version that alone has it, and in which form if R4 has it in another."""
    made: dict[str, tuple[str, str]] = {}
    for line in (
        files("abaton.fhir").joinpath("versions.txt").read_text(encoding="utf-8").splitlines()
    ):
        words = line.partition("#")[0].split()
        if words:
            made[words[1]] = (words[0], words[2] if len(words) > 2 else "")
    return made


def version_of(type_or_element: str) -> str:
    """The version of FHIR that alone has a resource type or an element; empty if R4 has it or nobody.

    >>> version_of("ProcedureRequest"), version_of("Procedure.occurrenceDateTime"), version_of("Patient")
    ('STU3', 'R5', '')
    """
    version, form = _marks().get(type_or_element, ("", ""))
    return "" if form else version


def other_form(element: str) -> tuple[str, type] | None:
    """The version that writes an element of R4 in another form, and that form.

    >>> other_form("Condition.clinicalStatus")
    ('STU3', <class 'str'>)
    """
    version, form = _marks().get(element, ("", ""))
    return (version, _FORMS[form]) if form else None


def signs(kind: str) -> tuple[tuple[str, str, type | None], ...]:
    """What shows that a resource of a type is of another version: its elements, each with the version and its form.

    >>> ("clinicalStatus", "STU3", str) in signs("Condition")
    True
    """
    return _signs().get(kind, ())


@cache
def _signs() -> dict[str, tuple[tuple[str, str, type | None], ...]]:
    made: dict[str, tuple[tuple[str, str, type | None], ...]] = {}
    for place, (version, form) in _marks().items():
        kind, _, element = place.partition(".")
        if element:
            made[kind] = (*made.get(kind, ()), (element, version, _FORMS.get(form)))
    return made


def refuse(version: str) -> Any:
    """Refuse a record of another version."""
    raise Refused(
        f"this is a record of FHIR {version.replace('/', ' or ')}; only R4 is read",
        remedy="export it as R4 (4.0.1), or convert it first",
    )
