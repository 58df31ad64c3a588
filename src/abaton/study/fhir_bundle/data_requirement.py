"""Data requirements, read and written: which resources, which of them, what of them, how often."""

from __future__ import annotations

import re
from typing import Any

from abaton.deid.settings import Function
from abaton.study.data_requirements import CodeRule, DateRule, Frequency, Requirement
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.primitives import Node, coding, read_term, without_none

_SPANS = {"a": "P{}Y", "mo": "P{}M", "wk": "P{}W", "d": "P{}D", "h": "PT{}H"}
_UNITS = {"Y": "a", "M": "mo", "W": "wk", "D": "d", "H": "h"}
_REPEAT = ("frequency", "period", "periodUnit", "count")
_FUNCTIONS = {function.value.lower(): function.value for function in Function}


def read_requirement(node: Node) -> dict[str, Any]:
    """The table of one data requirement."""
    node.only("extension", "type", "codeFilter", "dateFilter")
    for extension in node.each("extension"):
        if extension.text("url") not in (primitives.FREQUENCY, primitives.FUNCTION):
            extension.wrong("this extension is not known here", "only frequency and function are")
    frequency = node.extension(primitives.FREQUENCY)
    timing = frequency.get("valueTiming", needed=True) if frequency else None
    function = node.extension(primitives.FUNCTION)
    return without_none(
        {
            "type": node.text("type", needed=True),
            **(_function(function) if function else {}),
            "codes": [_code_rule(item) for item in node.each("codeFilter")],
            "dates": [_date_rule(item) for item in node.each("dateFilter")],
            "frequency": read_timing(timing) if timing else None,
        }
    )


def _function(node: Node) -> dict[str, Any]:
    name = node.extension("Name", needed=True)
    value = name.get("valueCoding", needed=True) if name else None
    code = value.text("code", needed=True) if value else None
    # The code system says that its codes are not case sensitive.
    known = _FUNCTIONS.get((code or "").lower(), code)
    elements = [item.text("valueString", needed=True) for item in node.extensions("Parameter")]
    return {"function": known, "elements": elements}


def _code_rule(node: Node) -> dict[str, Any]:
    node.only("path", "valueSet", "code")
    codes = [read_term(item) for item in node.each("code")]
    return without_none(
        {"path": node.text("path", needed=True), "any": codes, "value_set": node.text("valueSet")}
    )


def _date_rule(node: Node) -> dict[str, Any]:
    node.only("path", "valueDateTime", "valuePeriod", "valueDuration")
    period, duration = node.get("valuePeriod"), node.get("valueDuration")
    moment = node.text("valueDateTime")
    made: dict[str, Any] = {"path": node.text("path", needed=True)}
    if period:
        made |= {"start": period.text("start"), "end": period.text("end")}
    if moment:
        # A year or a month is a period; a moment counts as its day.
        made |= {"on": moment[:10]} if len(moment) >= 10 else {"start": moment, "end": moment}
    if duration:
        made["last"] = _span(duration)
    return without_none(made)


def _span(node: Node) -> str | None:
    value, unit = node.get("value", needed=True), node.text("code") or node.text("unit")
    whole = value is not None and isinstance(value.value, int | float) and float(value.value).is_integer()
    if value is None or not whole or unit not in _SPANS or node.get("comparator"):
        node.wrong("this is not a plain span of time", f"give a whole number of {', '.join(_SPANS)}")
        return None
    return _SPANS[unit].format(int(value.value))


def read_timing(node: Node) -> dict[str, Any]:
    """The table of a frequency, from a Timing."""
    node.only("event", "repeat")
    repeat = node.get("repeat")
    made: dict[str, Any] = {"on": [str(item.value)[:10] for item in node.each("event")]}
    if repeat:
        repeat.only(*_REPEAT)
        found = {name: value.value for name in _REPEAT if (value := repeat.get(name))}
        names = {"frequency": "times", "period": "every", "periodUnit": "unit", "count": "count"}
        made |= {names[name]: value for name, value in found.items()}
    return without_none(made)


def data_requirement(made: Requirement) -> dict[str, Any]:
    """A requirement as a FHIR DataRequirement."""
    function = {"system": primitives.FUNCTION_CODES, "code": made.function.value}
    parts: list[dict[str, Any]] = [{"url": "Name", "valueCoding": function}]
    parts += [{"url": "Parameter", "valueString": element} for element in made.elements]
    extensions: list[dict[str, Any]] = [{"url": primitives.FUNCTION, "extension": parts}]
    if made.frequency:
        extensions.insert(0, {"url": primitives.FREQUENCY, "valueTiming": timing(made.frequency)})
    return without_none(
        {
            "extension": extensions,
            "type": made.type,
            "codeFilter": [_code_filter(rule) for rule in made.codes],
            "dateFilter": [_date_filter(rule) for rule in made.dates],
        }
    )


def timing(made: Frequency) -> dict[str, Any]:
    """A frequency as a FHIR Timing."""
    every = made.every
    repeat = {
        "count": made.count,
        "frequency": made.times,
        "period": int(every) if every is not None and every.is_integer() else every,
        "periodUnit": made.unit,
    }
    return without_none({"event": [day.isoformat() for day in made.on], "repeat": without_none(repeat)})


def _code_filter(rule: CodeRule) -> dict[str, Any]:
    return without_none(
        {"path": rule.path, "valueSet": rule.value_set, "code": [coding(term) for term in rule.any]}
    )


def _date_filter(rule: DateRule) -> dict[str, Any]:
    if rule.on:
        return {"path": rule.path, "valueDateTime": rule.on.isoformat()}
    if rule.last:
        number, letter = re.findall(r"\d+|[YMWDH]$", rule.last)
        unit = _UNITS[letter]
        duration = {"value": int(number), "unit": unit, "system": primitives.UCUM, "code": unit}
        return {"path": rule.path, "valueDuration": duration}
    days = {"start": rule.start, "end": rule.end}
    return {"path": rule.path, "valuePeriod": {name: day.isoformat() for name, day in days.items() if day}}
