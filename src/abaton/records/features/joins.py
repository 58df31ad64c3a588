"""Joins: the rows of one subject become one value.

Every join gives the same whatever the order in which records were read. Rows of the same moment count alike: of
numbers the mean is taken, of categories the most frequent, and of equally frequent ones the first in the study's list.
So with dates cut to their year, `latest` is the mean of the latest year.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import TypeVar

from abaton.records.features.moments import Moment
from abaton.features.specification import Join

T = TypeVar("T")
Dated = tuple[Moment | None, T]


def at_one_moment(rows: Sequence[Dated[T]], join: Join | None) -> list[T]:
    """The values of the latest or earliest moment; all of them for any other join.

    A row without a date counts only if no row has one.
    """
    if join not in (Join.LATEST, Join.EARLIEST):
        return [value for _, value in rows]
    dated = [(then, value) for then, value in rows if then is not None]
    if not dated:
        return [value for _, value in rows]
    chosen = (max if join is Join.LATEST else min)(then for then, _ in dated)
    return [value for then, value in dated if then == chosen]


def number(rows: Sequence[Dated[float]], join: Join | None) -> float | None:
    """One number out of several, or nothing.

    >>> number([(None, 1.0), (None, 4.0)], Join.MAX), number([], Join.MEAN)
    (4.0, None)
    """
    values = at_one_moment(rows, join)
    if join is Join.COUNT:
        return float(len(values))
    if not values:
        return None
    if join is Join.MIN:
        return min(values)
    if join is Join.MAX:
        return max(values)
    return fsum(values) / len(values)


def category(rows: Sequence[Dated[int]], join: Join | None) -> frozenset[int] | None:
    """Which categories a subject is in, by their place in the list: one, or with `any` all that were found.

    >>> sorted(category([(None, 2), (None, 1), (None, 2)], None)), category([], None)
    ([2], None)
    """
    values = at_one_moment(rows, join)
    if not values:
        return None
    if join is Join.ANY:
        return frozenset(values)
    return frozenset([min(set(values), key=lambda place: (-values.count(place), place))])


def flag(rows: Sequence[Dated[bool]], join: Join | None) -> bool | None:
    """Whether something holds: at any time, or at the latest or earliest moment at which it was told."""
    values = at_one_moment(rows, join)
    return any(values) if values else None
