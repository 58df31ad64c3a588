"""Eligibility criteria as the characteristics of a FHIR Group, read and written."""

from __future__ import annotations

from typing import Any

from abaton.documents.fields import Term
from abaton.study.criteria import KINDS, Criterion, Eligibility
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.primitives import (
    Node,
    Report,
    concept,
    period,
    read_period,
    terms,
    without_none,
)

_SEXES = {
    (primitives.GENDERS, "male"): "male",
    (primitives.GENDERS, "female"): "female",
    (primitives.GENDERS, "other"): "other",
    ("http://terminology.hl7.org/CodeSystem/v3-AdministrativeGender", "M"): "male",
    ("http://terminology.hl7.org/CodeSystem/v3-AdministrativeGender", "F"): "female",
    ("http://loinc.org", "LA2-8"): "male",
    ("http://loinc.org", "LA3-6"): "female",
}
_DISPLAYS = {
    "age": "Age",
    "sex": "Sex [HL7.v3]",
    "location": "Patient location",
    "medication": "Medications",
    "condition": "Condition",
    "finding": "Observation",
    "procedure": "Procedure",
    "encounter": "Encounter",
    "test": "Test",
    "consent": "Consent",
    "lifespan": "Expected lifespan",
}
_COMPARATORS = {">": "above", "<": "below", ">=": "low", "<=": "high"}
_VALUES = ("valueCodeableConcept", "valueBoolean", "valueQuantity", "valueRange", "valueReference")


def read_cohort(group: Node | None, report: Report) -> dict[str, Any]:
    """The table of the eligibility section, from a Group."""
    if group is None:
        return {}
    report.origins[("eligibility",)] = group.path
    if group.text("type", needed=True) not in ("person", None):
        group.wrong("the cohort is not a group of persons", "set Group.type to 'person'")
    found = group.each("characteristic", needed=True)
    for i, node in enumerate(found):
        report.origins[("eligibility", "criteria", i)] = node.path
    quantity = group.get("quantity")
    return without_none(
        {
            "name": group.text("name"),
            "target": quantity.value if quantity else None,
            "criteria": [_criterion(node) for node in found],
        }
    )


def _criterion(node: Node) -> dict[str, Any]:
    node.only("code", "exclude", "period", "extension", *_VALUES)
    code = node.get("code", needed=True)
    named = terms(code) if code else []
    kinds = [kind for term in named if (kind := KINDS.get((term.get("system", ""), term.get("code", ""))))]
    note = node.extension(primitives.NOTE)
    exclude = node.value.get("exclude") if isinstance(node.value, dict) else None
    if not isinstance(exclude, bool):
        node.wrong("'exclude' is missing", "say true or false: it turns the meaning round")
    what = kinds[0] if kinds else "observation"
    made = {
        "what": what,
        "exclude": exclude or None,
        "period": read_period(node.get("period")),
        "note": note.text("valueString") if note else None,
        **({} if kinds else {"codes": named}),
    }
    return without_none({**made, **_value(node, what)})


def _value(node: Node, what: str) -> dict[str, Any]:
    given = [name for name in _VALUES if isinstance(node.value, dict) and name in node.value]
    if len(given) != 1:
        node.wrong("there is not exactly one value[x]", f"give one of {', '.join(_VALUES[:4])}")
        return {}
    value = Node(node.value[given[0]], f"{node.path}.{given[0]}", node.report)
    if given[0] == "valueBoolean":
        return {"flag": value.value}
    if given[0] == "valueQuantity":
        return _quantity(value)
    if given[0] == "valueRange":
        return _range(value)
    if given[0] == "valueReference":
        value.wrong("a criterion cannot be judged by a reference", "use a code")
        return {}
    if what == "sex":
        return {"sex": _sexes(value)}
    return {"values" if what == "observation" else "codes": terms(value)}


def _sexes(value: Node) -> list[str]:
    found = [_SEXES.get((term.get("system", ""), term.get("code", ""))) for term in terms(value)]
    if None in found:
        value.wrong("this sex cannot be found in a Patient's gender", f"use a code of {primitives.GENDERS}")
    return [sex for sex in found if sex]


def _number(node: Node | None) -> float | None:
    found = node.get("value", needed=True) if node else None
    if found is None:
        return None
    if isinstance(found.value, bool) or not isinstance(found.value, int | float):
        found.wrong("this must be a number", "write it without quotes")
        return None
    return float(found.value)


def _unit(node: Node | None) -> str | None:
    return (node.text("code") or node.text("unit")) if node else None


def _quantity(node: Node) -> dict[str, Any]:
    comparator = node.text("comparator")
    key = _COMPARATORS.get(comparator, "equals") if comparator else "equals"
    if comparator and comparator not in _COMPARATORS:
        node.wrong("this comparator is not known", f"use one of {', '.join(_COMPARATORS)}")
    return {key: _number(node), "unit": _unit(node)}


def _range(node: Node) -> dict[str, Any]:
    low, high = node.get("low"), node.get("high")
    if low is None and high is None:
        node.wrong("the range has neither low nor high", "give at least one of them")
    if low and high and _unit(low) and _unit(high) and _unit(low) != _unit(high):
        node.wrong("low and high have different units", "use one unit")
    return {"low": _number(low), "high": _number(high), "unit": _unit(low) or _unit(high)}


def group(eligibility: Eligibility) -> dict[str, Any]:
    """The eligibility section as a Group."""
    return without_none(
        {
            "resourceType": "Group",
            "id": "cohort",
            "meta": {"profile": [primitives.COHORT]},
            "type": "person",
            "name": eligibility.name,
            "quantity": eligibility.target,
        }
    ) | {"actual": False, "characteristic": [_characteristic(item) for item in eligibility.criteria]}


def _characteristic(item: Criterion) -> dict[str, Any]:
    kind = next((key for key, what in KINDS.items() if what == item.what), None)
    made: dict[str, Any] = {}
    if item.note:
        made["extension"] = [{"url": primitives.NOTE, "valueString": item.note}]
    if kind is None:
        made["code"] = concept(*item.codes)
    else:
        made["code"] = {"coding": [{"system": kind[0], "code": kind[1], "display": _DISPLAYS[item.what]}]}
    made |= _written_value(item)
    made["exclude"] = item.exclude
    return made | ({"period": period(item.period)} if item.period else {})


def _written_value(item: Criterion) -> dict[str, Any]:
    if item.flag is not None:
        return {"valueBoolean": item.flag}
    if item.sex:
        return {
            "valueCodeableConcept": concept(*(Term(system=primitives.GENDERS, code=sex) for sex in item.sex))
        }
    if not item.bounded:
        return {"valueCodeableConcept": concept(*(item.values or item.codes))}
    if item.low is not None or item.high is not None:
        sides = {"low": item.low, "high": item.high}
        return {"valueRange": {k: _amount(v, item.unit) for k, v in sides.items() if v is not None}}
    for comparator, value in ((">", item.above), ("<", item.below)):
        if value is not None:
            return {"valueQuantity": {**_amount(value, item.unit), "comparator": comparator}}
    assert item.equals is not None
    return {"valueQuantity": _amount(item.equals, item.unit)}


def _amount(value: float, unit: str | None) -> dict[str, Any]:
    number = int(value) if value.is_integer() else value
    return {"value": number} | ({"unit": unit, "system": primitives.UCUM, "code": unit} if unit else {})
