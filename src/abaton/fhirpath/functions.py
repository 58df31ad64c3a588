"""The functions of FHIRPath that views have, each from collections to a collection.

The least and the greatest value that an imprecise number, date or time may stand for (FHIRPath 3.0).
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from abaton.errors import AbatonError
from abaton.fhir.bundles import SUBJECTS
from abaton.fhirpath.operators import Items, same, truth

Function = Callable[..., Items]
Inner = Callable[[Any], Items]

_PYTHON: dict[str, tuple[type, ...]] = {
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


def type_test(name: str) -> Callable[[Any], bool]:
    """A test whether an item is of a type: a resource by its own word, a plain value by its kind."""
    kinds = _PYTHON.get(name[0].lower() + name[1:])
    if kinds is None:
        return lambda item: item.__class__ is dict and item.get("resourceType") == name
    return lambda item: isinstance(item, kinds) and (kinds == (bool,) or not isinstance(item, bool))


def resource_key(items: Items) -> Items:
    """The key of a resource: its type and id, the same as :func:`reference_key` makes of a reference to it."""
    return [
        f"{item['resourceType']}/{item['id']}"
        for item in items
        if isinstance(item, dict) and item.get("resourceType") and item.get("id")
    ]


def reference_key(items: Items, kind: str) -> Items:
    """The keys of what references point to, if it is of the type asked for.

    A resource stands for the reference to whom it is about, whichever element its type has for that: ``subject`` of an
    Observation, ``patient`` of a Device or an AllergyIntolerance, ``beneficiary`` of a Coverage.

    >>> reference_key([{"reference": "http://a.example/Patient/p1/_history/2"}], "Patient")
    ['Patient/p1']
    >>> reference_key([{"resourceType": "Device", "patient": {"reference": "Patient/p1"}}], "Patient")
    ['Patient/p1']
    """
    made: Items = []
    for item in items:
        reference = item.get("reference") if isinstance(item, dict) else None
        if reference is None and isinstance(item, dict) and "resourceType" in item:
            about = next((item[name] for name in SUBJECTS if isinstance(item.get(name), dict)), None)
            made += reference_key([about], kind)
            continue
        if not isinstance(reference, str) or reference.startswith("#"):
            continue
        parts = reference.split("/_history/")[0].split("/")
        if len(parts) < 2:
            key, found = reference, item.get("type")
        else:
            key, found = "/".join(parts[-2:]), parts[-2]
        if not kind or found == kind:
            made.append(key)
    return made


def _join(items: Items, separator: Items | None = None) -> Items:
    between = separator[0] if separator else ""
    return [str(between).join(item if isinstance(item, str) else _written(item) for item in items)]


def _written(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item)


def _distinct(items: Items) -> Items:
    made: Items = []
    for item in items:
        if not any(same(item, other) for other in made):
            made.append(item)
    return made


def _single(items: Items) -> Items:
    if len(items) > 1:
        raise AbatonError("single() meets several values", remedy="use first()")
    return items


def _negated(items: Items) -> Items:
    value = truth(items)
    return [] if value is None else [not value]


def _on_text(change: Callable[..., Any]) -> Function:
    def run(items: Items, *arguments: Items) -> Items:
        if not items or any(not argument for argument in arguments):
            return []
        words = [*_single(items), *(argument[0] for argument in arguments)]
        if not all(isinstance(word, str) for word in words):
            raise AbatonError(
                "a function on text meets something else", remedy="check the elements of the path"
            )
        return [change(*words)]

    return run


FUNCTIONS: dict[tuple[str, int], Function] = {
    ("exists", 0): lambda items: [bool(items)],
    ("empty", 0): lambda items: [not items],
    ("not", 0): _negated,
    ("first", 0): lambda items: items[:1],
    ("last", 0): lambda items: items[-1:],
    ("single", 0): _single,
    ("count", 0): lambda items: [len(items)],
    ("distinct", 0): _distinct,
    ("join", 0): _join,
    ("join", 1): _join,
    ("getResourceKey", 0): resource_key,
    ("lower", 0): _on_text(str.lower),
    ("upper", 0): _on_text(str.upper),
    ("length", 0): _on_text(len),
    ("startsWith", 1): _on_text(str.startswith),
    ("endsWith", 1): _on_text(str.endswith),
    ("contains", 1): _on_text(str.__contains__),
}
"""Functions by name and number of arguments."""


def _where(items: Items, holds: Inner) -> Items:
    return [item for item in items if truth(holds(item))]


LAMBDAS: dict[str, Callable[[Items, Inner], Items]] = {
    "where": _where,
    "exists": lambda items, holds: [bool(_where(items, holds))],
    "all": lambda items, holds: [len(_where(items, holds)) == len(items)],
    "select": lambda items, inner: [found for item in items for found in inner(item)],
}
"""Functions whose argument is asked of every item."""


_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_TIME = re.compile(r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?")
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


def boundary(value: Any, kind: str, *, high: bool) -> Any:
    """The boundary of a value, or nothing if it has none.

    Args:
        value: A number, or a date or time as FHIR writes it.
        kind: Its FHIR type where it is known, because "2010-10-10" may be a date or a dateTime.
        high: The greatest instead of the least.

    Returns:
        A value of the same type.

    >>> boundary(1.0, "", high=False), boundary("1970-06", "date", high=True)
    (0.95, '1970-06-30')
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _number(value, high=high)
    if not isinstance(value, str):
        return None
    if kind == "time" or (not kind and _TIME.fullmatch(value) and ":" in value):
        return _time(value, high=high)
    if kind == "date" or (not kind and "T" not in value):
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
    last = calendar.monthrange(int(match[1]), month)[1]
    day = int(match[3] or (last if high else 1))
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
    made_day = _date(day, high=high)
    made_clock = _time(_ZONE.sub("", clock) or ("23" if high else "00"), high=high)
    if made_day is None or made_clock is None:
        return None
    # Without a zone the moment may be anywhere on earth: earliest in +14:00, latest in -12:00.
    return f"{made_day}T{made_clock}{zone[1] if zone else '-12:00' if high else '+14:00'}"
