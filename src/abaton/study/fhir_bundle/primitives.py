"""FHIR primitives of the study Bundle: nodes with their path, extensions, codings, periods and contact points.

A table becomes an extension whose children have the names of its keys; a list becomes children that are all named
``item``; values become ``valueString``, ``valueBoolean``, ``valueInteger`` or ``valueDecimal``. The constants are the
URLs of profiles, extensions and code systems in InteropEHRate's implementation guide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from abaton.documents.fields import CodePrefix, Coding, DatePeriod
from abaton.study.data_requirements import Telecom

Origins = dict[tuple[str | int, ...], str]
BundleProblem = tuple[str, str, str]
"""FHIR path, problem and remedy."""


@dataclass
class BundleIssues:
    """Problems found while reading, the origin of each key, and the elements that were not imported."""

    problems: list[BundleProblem] = field(default_factory=list)
    origins: Origins = field(default_factory=dict)
    ignored_keys: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class BundleNode:
    """JSON value with its FHIR path; absent members are None or a problem."""

    value: Any
    path: str
    report: BundleIssues

    def add_problem(self, what: str, remedy: str) -> None:
        """Report a problem at the path of this node of a study's Bundle."""
        self.report.problems.append((self.path, what, remedy))

    def get(self, key: str, *, required: bool = False) -> BundleNode | None:
        """Return the member of that name of a node of a study's Bundle, or None."""
        member = self.value.get(key) if isinstance(self.value, dict) else None
        if member is None or member in ("", [], {}):
            if required:
                BundleNode(None, f"{self.path}.{key}", self.report).add_problem(
                    f"'{key}' is missing", "add it"
                )
            return None
        return BundleNode(member, f"{self.path}.{key}", self.report)

    def items(self, key: str, *, required: bool = False) -> list[BundleNode]:
        """Return the items of the list of that name in a node of a study's Bundle."""
        member = self.get(key, required=required)
        if member is None:
            return []
        if not isinstance(member.value, list):
            member.add_problem("this must be a list", "put it in [ ]")
            return []
        return [BundleNode(item, f"{member.path}[{i}]", self.report) for i, item in enumerate(member.value)]

    def single(self, key: str, *, required: bool = True) -> BundleNode | None:
        """Return the only item of the list of that name in a Bundle's node; report further items."""
        items = self.items(key, required=required)
        if len(items) > 1:
            items[1].add_problem(f"'{key}' has {len(items)} items; one is supported", "keep one")
        return items[0] if items else None

    def text(self, key: str, *, required: bool = False) -> str | None:
        """Return the primitive text of that name in a node of a study's Bundle."""
        member = self.get(key, required=required)
        if member is None:
            return None
        if not isinstance(member.value, str):
            member.add_problem("this must be text", "put it in quotes")
            return None
        return member.value

    def refuse_other_keys(self, *known: str) -> None:
        """Report every member of a Bundle's node that restricts the study and cannot be imported."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in (*known, "id"):
                node = BundleNode(None, f"{self.path}.{key}", self.report)
                node.add_problem("this restriction is not supported", "remove it or express it differently")

    def extensions(self, url: str) -> list[BundleNode]:
        """Return the extensions with that URL of a node of a study's Bundle."""
        return [node for node in self.items("extension") if node.text("url") == url]

    def extension(self, url: str, *, required: bool = False) -> BundleNode | None:
        """Return the extension with that URL of a node of a study's Bundle, which may occur once."""
        extensions = self.extensions(url)
        if len(extensions) > 1:
            extensions[1].add_problem("this extension occurs twice", "keep one")
        if not extensions and required:
            BundleNode(None, f"{self.path}.extension", self.report).add_problem(
                f"extension '{url}' is missing", "add it"
            )
        return extensions[0] if extensions else None


_ITEM = "item"
_VALUES = ("valueString", "valueBoolean", "valueInteger", "valueDecimal")


def to_extension(url: str, value: Any) -> dict[str, Any]:
    """Convert a JSON value to a FHIR extension with primitive values.

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
    """Return the JSON value of a FHIR extension of primitives written by :func:`to_extension`.

    Raises:
        ValueError: The extension does not have that form.
    """
    children = extension.get("extension")
    if children is None:
        values = [extension[name] for name in _VALUES if name in extension]
        if len(values) != 1 or not isinstance(values[0], str | bool | int | float):
            raise ValueError("an extension without exactly one primitive value")
        return values[0]
    if not isinstance(children, list) or not all(_has_url(child) for child in children):
        raise ValueError("an extension with children that have no URL")
    if all(child["url"] == _ITEM for child in children):
        return [from_extension(child) for child in children]
    table = {child["url"]: from_extension(child) for child in children}
    if len(table) < len(children):
        raise ValueError("an extension with two children of one URL")
    return table


def _has_url(child: Any) -> bool:
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

# Extensions for content that has no code in the guide.
DETAILS = "urn:abaton:study:details"
NOTE = "urn:abaton:study:note"


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table of FHIR primitives without absent or empty values."""
    return {key: value for key, value in table.items() if value is not None and value not in ("", [], {})}


def read_coding(coding: BundleNode) -> dict[str, Any]:
    """Convert a FHIR Coding of a study's Bundle, with its operator, to the table of a code."""
    operator = coding.extension(OPERATOR)
    match = operator.get("valueCoding", required=True) if operator else None
    names = ("system", "code", "display")
    fields = {name: coding.text(name, required=name != "display") for name in names}
    return without_none({**fields, "match": match.text("code", required=True) if match else None})


def read_codings(concept: BundleNode) -> list[dict[str, Any]]:
    """Return the codings of a CodeableConcept in a study's Bundle as tables."""
    return [read_coding(coding) for coding in concept.items("coding", required=True)]


def read_concepts(nodes: Iterable[BundleNode]) -> list[dict[str, Any]]:
    """Return the codings of several CodeableConcepts in a study's Bundle in one list."""
    return [code for node in nodes for code in read_codings(node)]


def read_period(node: BundleNode | None) -> dict[str, Any] | None:
    """Convert a FHIR Period of a study's Bundle to a table with start and end."""
    if node is None:
        return None
    period = without_none({"start": node.text("start"), "end": node.text("end")})
    if not period:
        node.add_problem("the period has neither start nor end", "give at least one of them")
    return period


def read_telecom(node: BundleNode, *, required: bool = False) -> list[dict[str, Any]]:
    """Return the ContactPoints of a contact or location in a study's Bundle as tables."""
    return [
        without_none(
            {
                "system": point.text("system"),
                "value": point.text("value", required=True),
                "use": point.text("use"),
            }
        )
        for point in node.items("telecom", required=required)
    ]


def coding(code: Coding) -> dict[str, Any]:
    """Convert a code of a study document to a FHIR Coding."""
    fields: dict[str, Any] = {}
    if code.match is not CodePrefix.EXACT:
        operator = {"system": OPERATOR_CODES, "code": code.match.value}
        fields["extension"] = [{"url": OPERATOR, "valueCoding": operator}]
    return without_none({**fields, "system": code.system, "code": code.code, "display": code.display})


def concept(*codes: Coding) -> dict[str, Any]:
    """Convert codes of a study document to one FHIR CodeableConcept."""
    return {"coding": [coding(code) for code in codes]}


def period(date_period: DatePeriod) -> dict[str, Any]:
    """Convert a period of a study document to a FHIR Period."""
    return {
        name: day.isoformat() for name, day in (("start", date_period.start), ("end", date_period.end)) if day
    }


def telecoms(points: Iterable[Telecom]) -> list[dict[str, Any]]:
    """Convert contact points of a study document to FHIR ContactPoints."""
    return [without_none(point.model_dump()) for point in points]
