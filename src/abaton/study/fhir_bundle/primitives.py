"""A place in a FHIR document: a value that knows its path and reports what is missing or wrong there.

Plain tables as nested FHIR extensions, and back, without loss.

A table becomes an extension whose children are named like its keys; a list becomes children that are all
named ``item``; text becomes ``valueString``, truth values ``valueBoolean``, numbers ``valueInteger`` or
``valueDecimal``.

The names that InteropEHRate's implementation guide gives to profiles, extensions and code systems.

Codes, periods and telephone numbers, from FHIR to the study document and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from abaton.documents.fields import Match, Period, Term
from abaton.study.data_requirements import Telecom

Origins = dict[tuple[str | int, ...], str]
Complaint = tuple[str, str, str]
"""FHIR path, what is wrong, remedy."""


@dataclass
class Report:
    """What was found while reading: complaints, where each key came from, and what was passed over."""

    complaints: list[Complaint] = field(default_factory=list)
    origins: Origins = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Node:
    """A JSON value with its FHIR path; reading past what is there gives nothing, or a complaint."""

    value: Any
    path: str
    report: Report

    def wrong(self, what: str, remedy: str) -> None:
        """Report that something is wrong here."""
        self.report.complaints.append((self.path, what, remedy))

    def get(self, key: str, *, needed: bool = False) -> Node | None:
        """The member of that name, if it is there."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        if found is None or found in ("", [], {}):
            if needed:
                Node(None, f"{self.path}.{key}", self.report).wrong(f"'{key}' is missing", "add it")
            return None
        return Node(found, f"{self.path}.{key}", self.report)

    def each(self, key: str, *, needed: bool = False) -> list[Node]:
        """The items of the list of that name."""
        found = self.get(key, needed=needed)
        if found is None:
            return []
        if not isinstance(found.value, list):
            found.wrong("this must be a list", "put it in [ ]")
            return []
        return [Node(item, f"{found.path}[{i}]", self.report) for i, item in enumerate(found.value)]

    def one(self, key: str, *, needed: bool = True) -> Node | None:
        """The only item of the list of that name; several are more than a study document can carry."""
        found = self.each(key, needed=needed)
        if len(found) > 1:
            found[1].wrong(f"there are {len(found)} of '{key}', one is understood", "keep one")
        return found[0] if found else None

    def text(self, key: str, *, needed: bool = False) -> str | None:
        """The text of that name."""
        found = self.get(key, needed=needed)
        if found is None:
            return None
        if not isinstance(found.value, str):
            found.wrong("this must be text", "put it in quotes")
            return None
        return found.value

    def only(self, *known: str) -> None:
        """Complain about every member that would be lost although it narrows what is asked for."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in (*known, "id"):
                where = Node(None, f"{self.path}.{key}", self.report)
                where.wrong("this narrows the study in a way that cannot be kept", "say it in another way")

    def extensions(self, url: str) -> list[Node]:
        """The extensions of that name."""
        return [node for node in self.each("extension") if node.text("url") == url]

    def extension(self, url: str, *, needed: bool = False) -> Node | None:
        """The extension of that name, which may be there once."""
        found = self.extensions(url)
        if len(found) > 1:
            found[1].wrong("this extension stands twice", "keep one")
        if not found and needed:
            Node(None, f"{self.path}.extension", self.report).wrong(f"extension '{url}' is missing", "add it")
        return found[0] if found else None


_ITEM = "item"
_VALUES = ("valueString", "valueBoolean", "valueInteger", "valueDecimal")


def to_extension(url: str, value: Any) -> dict[str, Any]:
    """A plain value as an extension.

    >>> to_extension("k", {"a": 1})
    {'url': 'k', 'extension': [{'url': 'a', 'valueInteger': 1}]}
    """
    if isinstance(value, dict):
        return {"url": url, "extension": [to_extension(key, item) for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"url": url, "extension": [to_extension(_ITEM, item) for item in value]}
    if isinstance(value, bool):
        return {"url": url, "valueBoolean": value}
    if isinstance(value, int) and abs(value) < 2**31:
        return {"url": url, "valueInteger": value}
    return {"url": url, "valueDecimal" if isinstance(value, int | float) else "valueString": value}


def from_extension(extension: dict[str, Any]) -> Any:
    """The plain value of an extension that :func:`to_extension` made.

    Raises:
        ValueError: The extension is not of that form.
    """
    children = extension.get("extension")
    if children is None:
        found = [extension[name] for name in _VALUES if name in extension]
        if len(found) != 1 or not isinstance(found[0], str | bool | int | float):
            raise ValueError("an extension without one plain value")
        return found[0]
    if not isinstance(children, list) or not all(_named(child) for child in children):
        raise ValueError("an extension with nameless children")
    if all(child["url"] == _ITEM for child in children):
        return [from_extension(child) for child in children]
    made = {child["url"]: from_extension(child) for child in children}
    if len(made) < len(children):
        raise ValueError("an extension with two children of one name")
    return made


def _named(child: Any) -> bool:
    return isinstance(child, dict) and isinstance(child.get("url"), str)


_PROFILE = "http://interopehrate.eu/fhir/StructureDefinition/"
_SYSTEM = "http://interopehrate.eu/fhir/CodeSystem/"
_TERMS = "http://terminology.hl7.org/CodeSystem/"

STUDY = _PROFILE + "ResearchStudy-IEHR"
COHORT = _PROFILE + "Group-Cohort-IEHR"
CENTRE = _PROFILE + "Location-ReferenceResearchCenter-IEHR"

ENROLMENT = _PROFILE + "EnrollmentPeriodExtension-IEHR"
ANONYMISATION = _PROFILE + "AnonymizationExtension-IEHR"
DATA_SET = _PROFILE + "DataSetDefinitionExtension-IEHR"
QUESTIONNAIRE = _PROFILE + "QuestionnaireExtension-IEHR"
FREQUENCY = _PROFILE + "FrequencyExtension-IEHR"
FUNCTION = _PROFILE + "FunctionExtension-IEHR"
OPERATOR = _PROFILE + "Operator-Extension-IEHR"

ANONYMISATION_TYPES = _SYSTEM + "AnonymizationType-IEHR"
FUNCTION_CODES = _SYSTEM + "Function-Codes-IEHR"
OPERATOR_CODES = _SYSTEM + "CodingOperator-IEHR"

PURPOSES = _TERMS + "research-study-prim-purp-type"
GENDERS = "http://hl7.org/fhir/administrative-gender"
UCUM = "http://unitsofmeasure.org"

# What the guide has no code for travels in extensions of our own.
DETAILS = "urn:abaton:study:details"
NOTE = "urn:abaton:study:note"


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """A table without the keys that have no value."""
    return {key: value for key, value in table.items() if value is not None and value not in ("", [], {})}


def read_term(coding: Node) -> dict[str, Any]:
    """A Coding with its operator, as the table of a term."""
    operator = coding.extension(OPERATOR)
    match = operator.get("valueCoding", needed=True) if operator else None
    names = ("system", "code", "display")
    made = {name: coding.text(name, needed=name != "display") for name in names}
    return without_none({**made, "match": match.text("code", needed=True) if match else None})


def terms(concept: Node) -> list[dict[str, Any]]:
    """The codings of a CodeableConcept."""
    return [read_term(coding) for coding in concept.each("coding", needed=True)]


def concepts(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """The codings of several CodeableConcepts, in one list of alternatives."""
    return [term for node in nodes for term in terms(node)]


def read_period(node: Node | None) -> dict[str, Any] | None:
    """A Period as a table with start and end."""
    if node is None:
        return None
    made = without_none({"start": node.text("start"), "end": node.text("end")})
    if not made:
        node.wrong("the period has neither start nor end", "give at least one of them")
    return made


def read_telecom(node: Node, *, needed: bool = False) -> list[dict[str, Any]]:
    """The ContactPoints of a contact or a place."""
    return [
        without_none(
            {
                "system": point.text("system"),
                "value": point.text("value", needed=True),
                "use": point.text("use"),
            }
        )
        for point in node.each("telecom", needed=needed)
    ]


def coding(term: Term) -> dict[str, Any]:
    """A term as a Coding."""
    made: dict[str, Any] = {}
    if term.match is not Match.EXACT:
        operator = {"system": OPERATOR_CODES, "code": term.match.value}
        made["extension"] = [{"url": OPERATOR, "valueCoding": operator}]
    return without_none({**made, "system": term.system, "code": term.code, "display": term.display})


def concept(*terms: Term) -> dict[str, Any]:
    """Terms as one CodeableConcept."""
    return {"coding": [coding(term) for term in terms]}


def period(made: Period) -> dict[str, Any]:
    """A period as a FHIR Period."""
    return {name: day.isoformat() for name, day in (("start", made.start), ("end", made.end)) if day}


def telecoms(points: Iterable[Telecom]) -> list[dict[str, Any]]:
    """Ways to reach somebody as ContactPoints."""
    return [without_none(point.model_dump()) for point in points]
