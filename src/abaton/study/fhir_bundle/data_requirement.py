"""Data requirements as FHIR DataRequirement and Timing, read and written."""

from __future__ import annotations

import re
from typing import Any

from abaton.deid.settings import RequirementPurpose
from abaton.study.data_requirements import CodeRequirement, DateRequirement, Frequency, RequirementSection
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.primitives import BundleNode, coding, read_coding, without_none

_DURATIONS = {"a": "P{}Y", "mo": "P{}M", "wk": "P{}W", "d": "P{}D", "h": "PT{}H"}
_UNITS = {"Y": "a", "M": "mo", "W": "wk", "D": "d", "H": "h"}
_REPEAT = ("frequency", "period", "periodUnit", "count")
_PURPOSES = {function.value.lower(): function.value for function in RequirementPurpose}


def read_requirement(node: BundleNode) -> dict[str, Any]:
    """Convert a FHIR DataRequirement to a table of the study document."""
    node.refuse_other_keys("extension", "type", "codeFilter", "dateFilter")
    for extension in node.items("extension"):
        if extension.text("url") not in (primitives.FREQUENCY, primitives.FUNCTION):
            extension.add_problem(
                "this extension is unknown", "use the frequency and function extensions only"
            )
    frequency = node.extension(primitives.FREQUENCY)
    timing = frequency.get("valueTiming", required=True) if frequency else None
    purpose = node.extension(primitives.FUNCTION)
    return without_none(
        {
            "type": node.text("type", required=True),
            **(_read_purpose(purpose) if purpose else {}),
            "codes": [_code_rule(item) for item in node.items("codeFilter")],
            "dates": [_date_rule(item) for item in node.items("dateFilter")],
            "frequency": read_timing(timing) if timing else None,
        }
    )


def _read_purpose(node: BundleNode) -> dict[str, Any]:
    name = node.extension("Name", required=True)
    value = name.get("valueCoding", required=True) if name else None
    code = value.text("code", required=True) if value else None
    # The codes of this system are not case sensitive.
    known = _PURPOSES.get((code or "").lower(), code)
    elements = [item.text("valueString", required=True) for item in node.extensions("Parameter")]
    return {"purpose": known, "elements": elements}


def _code_rule(node: BundleNode) -> dict[str, Any]:
    node.refuse_other_keys("path", "valueSet", "code")
    codes = [read_coding(item) for item in node.items("code")]
    return without_none(
        {"path": node.text("path", required=True), "any_of": codes, "value_set": node.text("valueSet")}
    )


def _date_rule(node: BundleNode) -> dict[str, Any]:
    node.refuse_other_keys("path", "valueDateTime", "valuePeriod", "valueDuration")
    period, duration = node.get("valuePeriod"), node.get("valueDuration")
    date_time = node.text("valueDateTime")
    rule: dict[str, Any] = {"path": node.text("path", required=True)}
    if period:
        rule |= {"start": period.text("start"), "end": period.text("end")}
    if date_time:
        # A year or month is a period; a dateTime counts as its date.
        rule |= {"on": date_time[:10]} if len(date_time) >= 10 else {"start": date_time, "end": date_time}
    if duration:
        rule["last"] = _read_duration(duration)
    return without_none(rule)


def _read_duration(node: BundleNode) -> str | None:
    value, unit = node.get("value", required=True), node.text("code") or node.text("unit")
    is_integer = (
        value is not None and isinstance(value.value, int | float) and float(value.value).is_integer()
    )
    if value is None or not is_integer or unit not in _DURATIONS or node.get("comparator"):
        node.add_problem(
            "this is not a simple duration", f"give an integer number of {', '.join(_DURATIONS)}"
        )
        return None
    return _DURATIONS[unit].format(int(value.value))


def read_timing(node: BundleNode) -> dict[str, Any]:
    """Convert the FHIR Timing of a DataRequirement to the table of a frequency."""
    node.refuse_other_keys("event", "repeat")
    repeat = node.get("repeat")
    frequency: dict[str, Any] = {"on": [str(item.value)[:10] for item in node.items("event")]}
    if repeat:
        repeat.refuse_other_keys(*_REPEAT)
        values = {name: value.value for name in _REPEAT if (value := repeat.get(name))}
        names = {"frequency": "times", "period": "every", "periodUnit": "unit", "count": "count"}
        frequency |= {names[name]: value for name, value in values.items()}
    return without_none(frequency)


def to_data_requirement(requirement: RequirementSection) -> dict[str, Any]:
    """Convert a study's data requirement to a FHIR DataRequirement."""
    purpose = {"system": primitives.FUNCTION_CODES, "code": requirement.purpose.value}
    children: list[dict[str, Any]] = [{"url": "Name", "valueCoding": purpose}]
    children += [{"url": "Parameter", "valueString": element} for element in requirement.elements]
    extensions: list[dict[str, Any]] = [{"url": primitives.FUNCTION, "extension": children}]
    if requirement.frequency:
        extensions.insert(0, {"url": primitives.FREQUENCY, "valueTiming": timing(requirement.frequency)})
    return without_none(
        {
            "extension": extensions,
            "type": requirement.type,
            "codeFilter": [_code_filter(rule) for rule in requirement.codes],
            "dateFilter": [_date_filter(rule) for rule in requirement.dates],
        }
    )


def timing(frequency: Frequency) -> dict[str, Any]:
    """Convert the frequency of a data requirement to a FHIR Timing."""
    every = frequency.every
    repeat = {
        "count": frequency.count,
        "frequency": frequency.times,
        "period": int(every) if every is not None and every.is_integer() else every,
        "periodUnit": frequency.unit,
    }
    return without_none({"event": [day.isoformat() for day in frequency.on], "repeat": without_none(repeat)})


def _code_filter(rule: CodeRequirement) -> dict[str, Any]:
    return without_none(
        {"path": rule.path, "valueSet": rule.value_set, "code": [coding(code) for code in rule.any_of]}
    )


def _date_filter(rule: DateRequirement) -> dict[str, Any]:
    if rule.on:
        return {"path": rule.path, "valueDateTime": rule.on.isoformat()}
    if rule.last:
        count, designator = re.findall(r"\d+|[YMWDH]$", rule.last)
        unit = _UNITS[designator]
        duration = {"value": int(count), "unit": unit, "system": primitives.UCUM, "code": unit}
        return {"path": rule.path, "valueDuration": duration}
    days = {"start": rule.start, "end": rule.end}
    return {"path": rule.path, "valuePeriod": {name: day.isoformat() for name, day in days.items() if day}}
