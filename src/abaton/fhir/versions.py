"""Elements and types of other FHIR versions, by which such records are recognised and refused."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from abaton.errors import RefusedError

_FORMS: dict[str, type] = {"text": str, "list": list, "object": dict}


@cache
def _version_marks() -> dict[str, tuple[str, str]]:
    """Return, by type or element, the only FHIR version that has it, and its form if R4 has another."""
    marks: dict[str, tuple[str, str]] = {}
    for line in files("abaton.fhir").joinpath("versions.txt").read_text(encoding="utf-8").splitlines():
        tokens = line.partition("#")[0].split()
        if tokens:
            marks[tokens[1]] = (tokens[0], tokens[2] if len(tokens) > 2 else "")
    return marks


def foreign_version(type_or_element: str) -> str:
    """Return the only FHIR version that has a type or element; empty if R4 has it or no version does.

    >>> foreign_version("ProcedureRequest"), foreign_version("Procedure.occurrenceDateTime"), foreign_version("Patient")
    ('STU3', 'R5', '')
    """
    version, form = _version_marks().get(type_or_element, ("", ""))
    return "" if form else version


def foreign_form(element: str) -> tuple[str, type] | None:
    """Return the FHIR version (STU3, R5) that writes an R4 element in another form, and that form.

    >>> foreign_form("Condition.clinicalStatus")
    ('STU3', <class 'str'>)
    """
    version, form = _version_marks().get(element, ("", ""))
    return (version, _FORMS[form]) if form else None


def foreign_elements(resource_type: str) -> tuple[tuple[str, str, type | None], ...]:
    """Return the elements by which a resource of another FHIR version is recognised, with version and form.

    >>> ("clinicalStatus", "STU3", str) in foreign_elements("Condition")
    True
    """
    return _foreign_elements().get(resource_type, ())


@cache
def _foreign_elements() -> dict[str, tuple[tuple[str, str, type | None], ...]]:
    elements: dict[str, tuple[tuple[str, str, type | None], ...]] = {}
    for name, (version, form) in _version_marks().items():
        resource_type, _, element = name.partition(".")
        if element:
            elements[resource_type] = (*elements.get(resource_type, ()), (element, version, _FORMS.get(form)))
    return elements


def refuse_version(version: str) -> Any:
    """Refuse a record of another FHIR version than R4."""
    raise RefusedError(
        f"the record is FHIR {version.replace('/', ' or ')}; only R4 is supported",
        remedy="export it as R4 (4.0.1), or convert it first",
    )
