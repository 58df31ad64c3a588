"""Eligibility criteria as the characteristics of a FHIR Group, read and written."""

from __future__ import annotations

from typing import Any

from abaton.documents.fields import Coding
from abaton.study.criteria import CHARACTERISTIC_CODES, Criterion, Eligibility
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.primitives import (
    BundleIssues,
    BundleNode,
    concept,
    period,
    read_codings,
    read_period,
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


def read_cohort(group: BundleNode | None, report: BundleIssues) -> dict[str, Any]:
    """Convert a FHIR Group resource to the table of the eligibility section."""
    if group is None:
        return {}
    report.origins[("eligibility",)] = group.path
    if group.text("type", required=True) not in ("person", None):
        group.add_problem("the cohort is not a group of persons", "set Group.type to 'person'")
    characteristics = group.items("characteristic", required=True)
    for i, node in enumerate(characteristics):
        report.origins[("eligibility", "criteria", i)] = node.path
    quantity = group.get("quantity")
    return without_none(
        {
            "name": group.text("name"),
            "target": quantity.value if quantity else None,
            "criteria": [_criterion(node) for node in characteristics],
        }
    )


def _system_and_code(code: dict[str, Any]) -> tuple[str, str]:
    return code.get("system", ""), code.get("code", "")


def _criterion(node: BundleNode) -> dict[str, Any]:
    node.refuse_other_keys("code", "exclude", "period", "extension", *_VALUES)
    code = node.get("code", required=True)
    codings = read_codings(code) if code else []
    types = [kind for code in codings if (kind := CHARACTERISTIC_CODES.get(_system_and_code(code)))]
    note = node.extension(primitives.NOTE)
    exclude = node.value.get("exclude") if isinstance(node.value, dict) else None
    if not isinstance(exclude, bool):
        node.add_problem("'exclude' is missing", "write true or false")
    criterion_type = types[0] if types else "observation"
    criterion = {
        "type": criterion_type,
        "exclude": exclude or None,
        "period": read_period(node.get("period")),
        "note": note.text("valueString") if note else None,
        **({} if types else {"codes": codings}),
    }
    return without_none({**criterion, **_value(node, criterion_type)})


def _value(node: BundleNode, criterion_type: str) -> dict[str, Any]:
    given = [name for name in _VALUES if isinstance(node.value, dict) and name in node.value]
    if len(given) != 1:
        node.add_problem("there is not exactly one value[x]", f"give one of {', '.join(_VALUES[:4])}")
        return {}
    value = BundleNode(node.value[given[0]], f"{node.path}.{given[0]}", node.report)
    if given[0] == "valueBoolean":
        return {"flag": value.value}
    if given[0] == "valueQuantity":
        return _quantity(value)
    if given[0] == "valueRange":
        return _range(value)
    if given[0] == "valueReference":
        value.add_problem("a criterion with a reference is not supported", "use a code")
        return {}
    if criterion_type == "sex":
        return {"sex": _sexes(value)}
    return {"values" if criterion_type == "observation" else "codes": read_codings(value)}


def _sexes(value: BundleNode) -> list[str]:
    sexes = [_SEXES.get(_system_and_code(code)) for code in read_codings(value)]
    if None in sexes:
        value.add_problem("this sex is not a code of Patient.gender", f"use a code of {primitives.GENDERS}")
    return [sex for sex in sexes if sex]


def _number(node: BundleNode | None) -> float | None:
    value = node.get("value", required=True) if node else None
    if value is None:
        return None
    if isinstance(value.value, bool) or not isinstance(value.value, int | float):
        value.add_problem("this must be a number", "write it without quotes")
        return None
    return float(value.value)


def _unit(node: BundleNode | None) -> str | None:
    return (node.text("code") or node.text("unit")) if node else None


def _quantity(node: BundleNode) -> dict[str, Any]:
    comparator = node.text("comparator")
    key = _COMPARATORS.get(comparator, "equals") if comparator else "equals"
    if comparator and comparator not in _COMPARATORS:
        node.add_problem("this comparator is unknown", f"use one of {', '.join(_COMPARATORS)}")
    return {key: _number(node), "unit": _unit(node)}


def _range(node: BundleNode) -> dict[str, Any]:
    low, high = node.get("low"), node.get("high")
    if low is None and high is None:
        node.add_problem("the range has neither low nor high", "give at least one of them")
    if low and high and _unit(low) and _unit(high) and _unit(low) != _unit(high):
        node.add_problem("low and high have different units", "use one unit")
    return {"low": _number(low), "high": _number(high), "unit": _unit(low) or _unit(high)}


def group(eligibility: Eligibility) -> dict[str, Any]:
    """Convert the eligibility section of a study to a FHIR Group resource."""
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
    code = next((key for key, kind in CHARACTERISTIC_CODES.items() if kind == item.type), None)
    characteristic: dict[str, Any] = {}
    if item.note:
        characteristic["extension"] = [{"url": primitives.NOTE, "valueString": item.note}]
    if code is None:
        characteristic["code"] = concept(*item.codes)
    else:
        characteristic["code"] = {
            "coding": [{"system": code[0], "code": code[1], "display": _DISPLAYS[item.type]}]
        }
    characteristic |= _characteristic_value(item)
    characteristic["exclude"] = item.exclude
    return characteristic | ({"period": period(item.period)} if item.period else {})


def _characteristic_value(item: Criterion) -> dict[str, Any]:
    if item.flag is not None:
        return {"valueBoolean": item.flag}
    if item.sex:
        return {
            "valueCodeableConcept": concept(
                *(Coding(system=primitives.GENDERS, code=sex) for sex in item.sex)
            )
        }
    if not item.has_bounds:
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
