"""Codes, periods and telephone numbers, from FHIR to the study document and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abaton.documents.fields import Match, Period, Term
from abaton.study.bundle import urls
from abaton.study.bundle.node import Node
from abaton.study.values import Telecom


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """A table without the keys that have no value."""
    return {key: value for key, value in table.items() if value is not None and value not in ("", [], {})}


def read_term(coding: Node) -> dict[str, Any]:
    """A Coding with its operator, as the table of a term."""
    operator = coding.extension(urls.OPERATOR)
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
        operator = {"system": urls.OPERATOR_CODES, "code": term.match.value}
        made["extension"] = [{"url": urls.OPERATOR, "valueCoding": operator}]
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
