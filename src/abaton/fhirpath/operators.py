"""What the signs of FHIRPath mean: equality, order, arithmetic, and logic with an unknown.

Everything is a collection: no item means *not known*, and whatever meets it is not known either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from abaton.errors import AbatonError
from abaton.fhirpath.parser import Moment

Items = list[Any]
Operator = Callable[[Items, Items], Items]


def truth(items: Items) -> bool | None:
    """The truth of a collection: its one truth value; one item of another kind is true; none is unknown."""
    if not items:
        return None
    if len(items) > 1:
        raise AbatonError("a condition gives several values", remedy="use first() or exists()")
    return items[0] if isinstance(items[0], bool) else True


def _both(left: Items, right: Items) -> Items:
    a, b = truth(left), truth(right)
    if a is False or b is False:
        return [False]
    return [] if a is None or b is None else [True]


def _either(left: Items, right: Items) -> Items:
    a, b = truth(left), truth(right)
    if a or b:
        return [True]
    return [] if a is None or b is None else [False]


def _one_of(left: Items, right: Items) -> Items:
    a, b = truth(left), truth(right)
    return [] if a is None or b is None else [a != b]


def _implies(left: Items, right: Items) -> Items:
    a = truth(left)
    return _either([] if a is None else [not a], right)


def same(a: Any, b: Any) -> bool | None:
    """Whether two items are equal; unknown for dates of different precision."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Moment) or isinstance(b, Moment):
        order = _moments(a, b)
        return None if order is None else order == 0
    return bool(a == b)


def _equal(left: Items, right: Items) -> Items:
    if not left or not right:
        return []
    if len(left) != len(right):
        return [False]
    found = [same(a, b) for a, b in zip(left, right, strict=True)]
    if False in found:
        return [False]
    return [] if None in found else [True]


def _unequal(left: Items, right: Items) -> Items:
    return [not value for value in _equal(left, right)]


def _alike(left: Items, right: Items) -> Items:
    """Equivalence: texts without regard to case and spaces, collections without regard to order."""
    if len(left) != len(right):
        return [False]
    rest = [_folded(item) for item in right]
    for item in left:
        if _folded(item) not in rest:
            return [False]
        rest.remove(_folded(item))
    return [True]


def _folded(item: Any) -> Any:
    return " ".join(item.casefold().split()) if isinstance(item, str) else item


def _single(items: Items, sign: str) -> Any:
    if len(items) > 1:
        raise AbatonError(f"'{sign}' meets several values", remedy="use first()")
    return items[0]


def _ordered(sign: str, compare: Callable[[Any, Any], bool]) -> Operator:
    def run(left: Items, right: Items) -> Items:
        if not left or not right:
            return []
        a, b = _single(left, sign), _single(right, sign)
        if isinstance(a, Moment) or isinstance(b, Moment):
            order = _moments(a, b)
            return [] if order is None else [compare(order, 0)]
        if _is_number(a) and _is_number(b):
            return [compare(a, b)]
        if isinstance(a, str) and isinstance(b, str):
            return [compare(a, b)]
        raise AbatonError(f"'{sign}' cannot compare values of these kinds", remedy="compare like with like")

    return run


def _moments(a: Any, b: Any) -> int | None:
    """The order of two dates or times; unknown if the coarser one leaves it open."""
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    if "T" in a and "T" in b and _has_zone(a) and _has_zone(b):
        try:
            one, two = (datetime.fromisoformat(text) for text in (a, b))
        except ValueError:
            return None
        return (one > two) - (one < two)
    size = min(len(a), len(b))
    if a[:size] != b[:size]:
        return 1 if a[:size] > b[:size] else -1
    return 0 if len(a) == len(b) else None


def _has_zone(text: str) -> bool:
    clock = text.partition("T")[2]
    return clock.endswith("Z") or "+" in clock or "-" in clock


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> Operator:
    def run(left: Items, right: Items) -> Items:
        if not left or not right:
            return []
        a, b = _single(left, sign), _single(right, sign)
        words = sign == "+" and isinstance(a, str) and isinstance(b, str)
        if not words and not (_is_number(a) and _is_number(b)):
            raise AbatonError(f"'{sign}' needs two numbers", remedy="check the elements of the path")
        try:
            return [compute(a, b) if words else _exactly(compute, a, b)]
        except (ZeroDivisionError, InvalidOperation):
            return []

    return run


def _exactly(compute: Callable[[Any, Any], Any], a: float, b: float) -> float:
    """Compute in decimals, which numbers in FHIR are: 0.1 + 0.2 is 0.3, and 0.3 div 0.1 is 3."""
    found = compute(Decimal(repr(a)), Decimal(repr(b)))
    whole = isinstance(found, int) or (isinstance(a, int) and isinstance(b, int) and found == int(found))
    return int(found) if whole else float(found)


def _joined(left: Items, right: Items) -> Items:
    a, b = (_single(items, "&") if items else "" for items in (left, right))
    return [f"{a}{b}"]


def _union(left: Items, right: Items) -> Items:
    made: Items = []
    for item in left + right:
        if not any(same(item, other) for other in made):
            made.append(item)
    return made


def _inside(left: Items, right: Items) -> Items:
    if not left:
        return []
    return [any(same(_single(left, "in"), item) for item in right)]


OPERATORS: dict[str, Operator] = {
    "and": _both,
    "or": _either,
    "xor": _one_of,
    "implies": _implies,
    "=": _equal,
    "!=": _unequal,
    "~": _alike,
    "!~": lambda left, right: [not _alike(left, right)[0]],
    "<": _ordered("<", operator.lt),
    "<=": _ordered("<=", operator.le),
    ">": _ordered(">", operator.gt),
    ">=": _ordered(">=", operator.ge),
    "+": _arithmetic("+", operator.add),
    "-": _arithmetic("-", operator.sub),
    "*": _arithmetic("*", operator.mul),
    "/": _arithmetic("/", operator.truediv),
    "div": _arithmetic("div", lambda a, b: int(a / b)),
    "mod": _arithmetic("mod", lambda a, b: a - b * int(a / b)),
    "&": _joined,
    "|": _union,
    "in": _inside,
    "contains": lambda left, right: _inside(right, left),
}
