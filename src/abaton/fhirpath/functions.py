"""Functions of the FHIRPath subset of views, and boundaries of imprecise values.

Boundaries follow FHIRPath 3.0 (half a unit). Values are Python numbers, so a trailing zero as in `15.080` is lost
before a boundary is computed.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from abaton.errors import AbatonError
from abaton.fhir.bundles import SUBJECT_ELEMENTS
from abaton.fhirpath.operators import Items, is_equal, to_boolean

Function = Callable[..., Items]
Inner = Callable[[Any], Items]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "positiveInt": (int,),
    "unsignedInt": (int,),
    "decimal": (int, float),
    **dict.fromkeys(
        ("string", "code", "id", "uri", "url", "canonical", "oid", "uuid", "markdown", "base64Binary"), (str,)
    ),
    **dict.fromkeys(("date", "dateTime", "instant", "time"), (str,)),
}


def type_predicate(name: str) -> Callable[[Any], bool]:
    """Return the FHIRPath type test: a resource by its ``resourceType``, a primitive by its Python type."""
    python_types = _PYTHON_TYPES.get(name[0].lower() + name[1:])
    if python_types is None:
        return lambda item: item.__class__ is dict and item.get("resourceType") == name
    return lambda item: (
        isinstance(item, python_types) and (python_types == (bool,) or not isinstance(item, bool))
    )


def resource_key(items: Items) -> Items:
    """Return FHIRPath's ``getResourceKey()``: type and id of resources, equal to their :func:`reference_key`."""
    return [
        f"{item['resourceType']}/{item['id']}"
        for item in items
        if isinstance(item, dict) and item.get("resourceType") and item.get("id")
    ]


def reference_key(items: Items, fhir_type: str) -> Items:
    """Return FHIRPath's ``getReferenceKey()``: the keys of references to a resource type.

    For a resource, the reference to its subject is used: ``subject`` of an Observation, ``patient`` of a Device or an
    AllergyIntolerance, ``beneficiary`` of a Coverage.

    >>> reference_key([{"reference": "http://a.example/Patient/p1/_history/2"}], "Patient")
    ['Patient/p1']
    >>> reference_key([{"resourceType": "Device", "patient": {"reference": "Patient/p1"}}], "Patient")
    ['Patient/p1']
    """
    keys: Items = []
    for item in items:
        reference = item.get("reference") if isinstance(item, dict) else None
        if reference is None and isinstance(item, dict) and "resourceType" in item:
            subject = next(
                (item[name] for name in SUBJECT_ELEMENTS if isinstance(item.get(name), dict)), None
            )
            keys += reference_key([subject], fhir_type)
            continue
        if not isinstance(reference, str) or reference.startswith("#"):
            continue
        parts = reference.split("/_history/")[0].split("/")
        if len(parts) < 2:
            key, resource_type = reference, item.get("type")
        else:
            key, resource_type = "/".join(parts[-2:]), parts[-2]
        if not fhir_type or resource_type == fhir_type:
            keys.append(key)
    return keys


def _join(items: Items, separator: Items | None = None) -> Items:
    separator_text = separator[0] if separator else ""
    return [str(separator_text).join(item if isinstance(item, str) else _to_text(item) for item in items)]


def _to_text(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item)


def _distinct(items: Items) -> Items:
    distinct: Items = []
    for item in items:
        if not any(is_equal(item, other) for other in distinct):
            distinct.append(item)
    return distinct


def _single(items: Items) -> Items:
    if len(items) > 1:
        raise AbatonError("the input of single() has several values", remedy="use first()")
    return items


def _not(items: Items) -> Items:
    value = to_boolean(items)
    return [] if value is None else [not value]


def _text_function(change: Callable[..., Any]) -> Function:
    def run(items: Items, *arguments: Items) -> Items:
        if not items or any(not argument for argument in arguments):
            return []
        texts = [*_single(items), *(argument[0] for argument in arguments)]
        if not all(isinstance(word, str) for word in texts):
            raise AbatonError(
                "the input of a text function is not text", remedy="check the elements of the path"
            )
        return [change(*texts)]

    return run


FUNCTIONS: dict[tuple[str, int], Function] = {
    ("exists", 0): lambda items: [bool(items)],
    ("empty", 0): lambda items: [not items],
    ("not", 0): _not,
    ("first", 0): lambda items: items[:1],
    ("last", 0): lambda items: items[-1:],
    ("single", 0): _single,
    ("count", 0): lambda items: [len(items)],
    ("distinct", 0): _distinct,
    ("join", 0): _join,
    ("join", 1): _join,
    ("getResourceKey", 0): resource_key,
    ("lower", 0): _text_function(str.lower),
    ("upper", 0): _text_function(str.upper),
    ("length", 0): _text_function(len),
    ("startsWith", 1): _text_function(str.startswith),
    ("endsWith", 1): _text_function(str.endswith),
    ("contains", 1): _text_function(str.__contains__),
}
"""Functions by name and number of arguments."""


def _where(items: Items, condition: Inner) -> Items:
    return [item for item in items if to_boolean(condition(item))]


LAMBDAS: dict[str, Callable[[Items, Inner], Items]] = {
    "where": _where,
    "exists": lambda items, condition: [bool(_where(items, condition))],
    "all": lambda items, condition: [len(_where(items, condition)) == len(items)],
    "select": lambda items, inner: [value for item in items for value in inner(item)],
}
"""Functions whose argument is evaluated for every item."""


_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_TIME = re.compile(r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?")
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


def compute_boundary(value: Any, fhir_type: str, *, high: bool) -> Any:
    """Return FHIRPath's ``lowBoundary()`` or ``highBoundary()`` of an imprecise value; None if it has none.

    Args:
        value: A number, or a date or time as FHIR text.
        fhir_type: FHIR type if known, because "2010-10-10" may be a date or a dateTime.
        high: Whether to return the highest value.

    >>> compute_boundary(1.0, "", high=False), compute_boundary("1970-06", "date", high=True)
    (0.95, '1970-06-30')
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _number(value, high=high)
    if not isinstance(value, str):
        return None
    if fhir_type == "time" or (not fhir_type and _TIME.fullmatch(value) and ":" in value):
        return _time(value, high=high)
    if fhir_type == "date" or (not fhir_type and "T" not in value):
        return _date(value, high=high)
    return _date_time(value, high=high)


def _number(value: float, *, high: bool) -> float:
    digits = Decimal(repr(value))
    exponent = digits.as_tuple().exponent
    step = Decimal(5).scaleb((exponent if isinstance(exponent, int) else 0) - 1)
    return float(digits + step if high else digits - step)


def _date(value: str, *, high: bool) -> str | None:
    match = _DATE.fullmatch(value)
    if not match:
        return None
    month = int(match[2] or (12 if high else 1))
    if not 1 <= month <= 12 or not int(match[1]):
        return None
    last_day = calendar.monthrange(int(match[1]), month)[1]
    day = int(match[3] or (last_day if high else 1))
    return f"{match[1]}-{month:02d}-{day:02d}"


def _time(value: str, *, high: bool) -> str | None:
    match = _TIME.fullmatch(value)
    if not match:
        return None
    minute, second = (part or ("59" if high else "00") for part in match.groups()[1:3])
    fraction = (match[4] or "").ljust(3, "9" if high else "0")
    return f"{match[1]}:{minute}:{second}.{fraction}"


def _date_time(value: str, *, high: bool) -> str | None:
    day, _, clock = value.partition("T")
    zone = _ZONE.search(clock)
    day_boundary = _date(day, high=high)
    time_boundary = _time(_ZONE.sub("", clock) or ("23" if high else "00"), high=high)
    if day_boundary is None or time_boundary is None:
        return None
    # Without a time zone the earliest time is in +14:00 and the latest in -12:00.
    return f"{day_boundary}T{time_boundary}{zone[1] if zone else '-12:00' if high else '+14:00'}"
