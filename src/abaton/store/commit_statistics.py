"""Commits of a run: how many, how heavy, how stale, how large; added up by the database, or each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sql

from abaton.store import schema
from abaton.store.store import Store

_MOST_NAMES = 200
_STRETCHES = 120


@dataclass(frozen=True, slots=True)
class CommitLine:
    """One commit: when, by whom, for which task, from which version, of how many steps, how heavy and how stale."""

    at: float
    learner: str
    task: str
    version: int
    steps: int
    weight: float
    staleness: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a learner committed in a stretch of time: how often, and with which mean weight."""

    learner: str
    at: float
    commits: int
    weight: float


@dataclass(frozen=True, slots=True)
class Quartiles:
    """How a number is spread."""

    name: str
    count: int
    low: float
    first: float
    median: float
    third: float
    high: float
    mean: float


@dataclass(frozen=True, slots=True)
class CycleLine:
    """One cycle of a learner: its number, how many steps it was if that may be told, and the losses at its end."""

    learner: str
    cycle: int
    at: float
    steps: int | None
    loss: float | None
    validation: float | None


def commit_lines(store: Store, run: str) -> list[CommitLine]:
    """All commits of a run, in the order of the events that led to them."""
    table = schema.commits
    columns = [table.c[field.name] for field in fields(CommitLine)]
    chosen = (
        sql.select(*columns)
        .where(table.c.run == run)
        .order_by(table.c.sequence, table.c.learner, table.c.task)
    )
    with store.reading() as connection:
        return [CommitLine(*row) for row in connection.execute(chosen)]


def stretches(
    store: Store, run: str, *, wall: bool = False, learners: Sequence[str] | None = None
) -> tuple[list[Stretch], float]:
    """Commits by learner and stretch of time, and how many seconds a stretch is; with `wall`, of wall-clock time.

    Args:
        store: The store.
        run: The run.
        wall: Whether to count wall-clock time from the first commit, instead of the engine's.
        learners: Only these; all together under the name '' if not given.
    """
    table = schema.commits
    at = table.c.wall if wall else table.c.at
    with store.reading() as connection:
        chosen = sql.select(sql.func.min(at), sql.func.max(at)).where(table.c.run == run)
        low, high = connection.execute(chosen).one()
        if low is None:
            return [], 1.0
        zero = low if wall else 0.0
        width = max((high - zero) / _STRETCHES, 1e-6)
        share = (at - zero) / width  # never below zero; PostgreSQL's cast alone would round
        whole = share if connection.dialect.name == "sqlite" else sql.func.floor(share)
        place = sql.cast(whole, sql.Integer).label("place")
        who = table.c.learner if learners is not None else sql.literal("")
        summed = sql.select(
            who.label("learner"), place, sql.func.count().label("n"), sql.func.avg(table.c.weight).label("w")
        )
        summed = summed.where(table.c.run == run)
        if learners is not None:
            summed = summed.where(table.c.learner.in_(learners))
        rows = connection.execute(summed.group_by(sql.text("1"), sql.text("2")).order_by(sql.text("2"))).all()
    return [Stretch(row.learner, (row.place + 0.5) * width, row.n, row.w) for row in rows], width


def quartiles(store: Store, run: str, column: str, *, by_learner: bool = True) -> list[Quartiles]:
    """How staleness, missed versions, steps or sizes of commits are spread, by learner or altogether."""
    table = schema.commits
    value = table.c[column]
    who = table.c.learner if by_learner else sql.literal("")
    partition = table.c.learner if by_learner else None
    ranked = (
        sql.select(who.label("name"), value.label("value"),
                   sql.func.cume_dist().over(order_by=value, partition_by=partition).label("rank"))
        .where(table.c.run == run)
        .subquery()
    )  # fmt: skip

    def at_least(share: float) -> Any:
        return sql.func.min(sql.case((ranked.c.rank >= share, ranked.c.value)))

    chosen = sql.select(
        ranked.c.name, sql.func.count().label("number"), sql.func.min(ranked.c.value).label("low"),
        at_least(0.25).label("first"), at_least(0.5).label("median"), at_least(0.75).label("third"),
        sql.func.max(ranked.c.value).label("high"), sql.func.avg(ranked.c.value).label("mean"),
    ).group_by(ranked.c.name).order_by(sql.desc("number")).limit(_MOST_NAMES)  # fmt: skip
    with store.reading() as connection:
        rows = connection.execute(chosen).all()
    return [
        Quartiles(r.name, r.number, *map(float, (r.low, r.first, r.median, r.third, r.high, r.mean)))
        for r in sorted(rows, key=lambda row: row.name)
    ]


def cycle_lines(store: Store, run: str, learners: Sequence[str], most: int = 80) -> list[CycleLine]:
    """The cycles of some learners, evenly thinned out to so many each."""
    table = schema.commits
    number = sql.func.row_number().over(partition_by=table.c.learner, order_by=table.c.sequence)
    columns = (table.c.learner, table.c.at, table.c.steps, table.c.loss, table.c.validation)
    total = sql.func.count().over(partition_by=table.c.learner)
    part = (
        sql.select(*columns, number.label("cycle"), total.label("total"))
        .where(table.c.run == run, table.c.learner.in_(learners))
        .subquery()
    )
    stride = (part.c.total + (most - 1)) // most
    chosen = sql.select(part).where(((part.c.cycle - 1) % stride == 0) | (part.c.cycle == part.c.total))
    with store.reading() as connection:
        rows = connection.execute(chosen.order_by(part.c.learner, part.c.cycle)).all()
    return [CycleLine(r.learner, r.cycle, r.at, r.steps, r.loss, r.validation) for r in rows]
