"""Operators of FHIRPath: equality, order, arithmetic, and three-valued logic.

Operands are collections. The empty collection means unknown, and so does the result of an operation with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from abaton.errors import AbatonError
from abaton.fhirpath.parser import TemporalLiteral

Items = list[Any]
Operator = Callable[[Items, Items], Items]


def to_boolean(items: Items) -> bool | None:
    """Return the FHIRPath operand as a boolean: a single item that is not boolean is true; empty is None."""
    if not items:
        return None
    if len(items) > 1:
        raise AbatonError("a condition has several values", remedy="use first() or exists()")
    return items[0] if isinstance(items[0], bool) else True


def _and(left: Items, right: Items) -> Items:
    a, b = to_boolean(left), to_boolean(right)
    if a is False or b is False:
        return [False]
    return [] if a is None or b is None else [True]


def _or(left: Items, right: Items) -> Items:
    a, b = to_boolean(left), to_boolean(right)
    if a or b:
        return [True]
    return [] if a is None or b is None else [False]


def _xor(left: Items, right: Items) -> Items:
    a, b = to_boolean(left), to_boolean(right)
    return [] if a is None or b is None else [a != b]


def _implies(left: Items, right: Items) -> Items:
    a = to_boolean(left)
    return _or([] if a is None else [not a], right)


def is_equal(a: Any, b: Any) -> bool | None:
    """Apply FHIRPath's ``=`` operator to two items; None, unknown, for dates of different precision."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, TemporalLiteral) or isinstance(b, TemporalLiteral):
        order = _compare_temporal(a, b)
        return None if order is None else order == 0
    return bool(a == b)


def _equal(left: Items, right: Items) -> Items:
    if not left or not right:
        return []
    if len(left) != len(right):
        return [False]
    equalities = [is_equal(a, b) for a, b in zip(left, right, strict=True)]
    if False in equalities:
        return [False]
    return [] if None in equalities else [True]


def _not_equal(left: Items, right: Items) -> Items:
    return [not value for value in _equal(left, right)]


def _equivalent(left: Items, right: Items) -> Items:
    """Apply FHIRPath's ``~`` operator: case, white space and order are ignored."""
    if len(left) != len(right):
        return [False]
    remaining = [_normalise(item) for item in right]
    for item in left:
        if _normalise(item) not in remaining:
            return [False]
        remaining.remove(_normalise(item))
    return [True]


def _normalise(item: Any) -> Any:
    return " ".join(item.casefold().split()) if isinstance(item, str) else item


def _single(items: Items, symbol: str) -> Any:
    if len(items) > 1:
        raise AbatonError(f"an operand of '{symbol}' has several values", remedy="use first()")
    return items[0]


def _comparison(symbol: str, compare: Callable[[Any, Any], bool]) -> Operator:
    def run(left: Items, right: Items) -> Items:
        if not left or not right:
            return []
        a, b = _single(left, symbol), _single(right, symbol)
        if isinstance(a, TemporalLiteral) or isinstance(b, TemporalLiteral):
            order = _compare_temporal(a, b)
            return [] if order is None else [compare(order, 0)]
        if _is_number(a) and _is_number(b):
            return [compare(a, b)]
        if isinstance(a, str) and isinstance(b, str):
            return [compare(a, b)]
        raise AbatonError(
            f"'{symbol}' cannot compare values of different types", remedy="compare values of the same type"
        )

    return run


def _compare_temporal(a: Any, b: Any) -> int | None:
    """Compare two dates or times for FHIRPath's ``<`` operators; None if the precision does not suffice."""
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


def _arithmetic(symbol: str, compute: Callable[[Any, Any], Any]) -> Operator:
    def run(left: Items, right: Items) -> Items:
        if not left or not right:
            return []
        a, b = _single(left, symbol), _single(right, symbol)
        is_concatenation = symbol == "+" and isinstance(a, str) and isinstance(b, str)
        if not is_concatenation and not (_is_number(a) and _is_number(b)):
            raise AbatonError(
                f"the operands of '{symbol}' are not numbers", remedy="check the elements of the path"
            )
        try:
            return [compute(a, b) if is_concatenation else _compute_decimal(compute, a, b)]
        except (ZeroDivisionError, InvalidOperation):
            return []

    return run


def _compute_decimal(compute: Callable[[Any, Any], Any], a: float, b: float) -> float:
    """Compute an arithmetic FHIRPath operator with decimals: 0.1 + 0.2 is 0.3, and 0.3 div 0.1 is 3."""
    exact = compute(Decimal(repr(a)), Decimal(repr(b)))
    is_integer = isinstance(exact, int) or (isinstance(a, int) and isinstance(b, int) and exact == int(exact))
    return int(exact) if is_integer else float(exact)


def _concatenate(left: Items, right: Items) -> Items:
    a, b = (_single(items, "&") if items else "" for items in (left, right))
    return [f"{a}{b}"]


def _union(left: Items, right: Items) -> Items:
    union: Items = []
    for item in left + right:
        if not any(is_equal(item, other) for other in union):
            union.append(item)
    return union


def _member_of(left: Items, right: Items) -> Items:
    if not left:
        return []
    return [any(is_equal(_single(left, "in"), item) for item in right)]


OPERATORS: dict[str, Operator] = {
    "and": _and,
    "or": _or,
    "xor": _xor,
    "implies": _implies,
    "=": _equal,
    "!=": _not_equal,
    "~": _equivalent,
    "!~": lambda left, right: [not _equivalent(left, right)[0]],
    "<": _comparison("<", operator.lt),
    "<=": _comparison("<=", operator.le),
    ">": _comparison(">", operator.gt),
    ">=": _comparison(">=", operator.ge),
    "+": _arithmetic("+", operator.add),
    "-": _arithmetic("-", operator.sub),
    "*": _arithmetic("*", operator.mul),
    "/": _arithmetic("/", operator.truediv),
    "div": _arithmetic("div", lambda a, b: int(a / b)),
    "mod": _arithmetic("mod", lambda a, b: a - b * int(a / b)),
    "&": _concatenate,
    "|": _union,
    "in": _member_of,
    "contains": lambda left, right: _member_of(right, left),
}
