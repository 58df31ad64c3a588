"""Commits of a run: single rows, totals per interval, quartiles and adaptive cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sql

from abaton.store import schema
from abaton.store.store import Store

_MAX_LEARNERS = 200
_INTERVALS = 120


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One commit of a run."""

    timestamp: float
    learner: str
    task: str
    version: int
    steps: int
    weight: float
    staleness: int


@dataclass(frozen=True, slots=True)
class CommitInterval:
    """Number and mean weight of a learner's commits in an interval of time."""

    learner: str
    timestamp: float
    commits: int
    weight: float


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Quartiles, range and mean of a quantity."""

    name: str
    count: int
    low: float
    first: float
    median: float
    third: float
    high: float
    mean: float


@dataclass(frozen=True, slots=True)
class CycleRow:
    """One cycle of a learner with the losses at its end; `steps` is None if a viewer may not see it."""

    learner: str
    cycle: int
    timestamp: float
    steps: int | None
    loss: float | None
    validation: float | None


def commit_rows(store: Store, run: str) -> list[CommitRow]:
    """Return all commits of a run, in the order of their events."""
    table = schema.commits
    columns = [table.c[field.name] for field in fields(CommitRow)]
    query = (
        sql.select(*columns)
        .where(table.c.run == run)
        .order_by(table.c.sequence, table.c.learner, table.c.task)
    )
    with store.reading() as connection:
        return [CommitRow(*row) for row in connection.execute(query)]


def latest_weights(store: Store, run: str) -> dict[str, float]:
    """Return each learner's weight in its latest commit of a run, as a fraction of the sum."""
    latest = {commit.learner: commit.weight for commit in commit_rows(store, run)}
    total = sum(latest.values())
    return {learner: weight / total for learner, weight in sorted(latest.items())} if total else {}


def commits_by_interval(
    store: Store, run: str, *, wall_time: bool = False, learners: Sequence[str] | None = None
) -> tuple[list[CommitInterval], float]:
    """Return numbers of commits by learner and interval of time, and the length of an interval in seconds.

    Args:
        store: The store.
        run: The run.
        wall_time: Whether to use wall-clock time from the first commit instead of the engine's.
        learners: Learners to return; None aggregates all under the name ''.
    """
    table = schema.commits
    time = table.c.wall_time if wall_time else table.c.timestamp
    with store.reading() as connection:
        query = sql.select(sql.func.min(time), sql.func.max(time)).where(table.c.run == run)
        low, high = connection.execute(query).one()
        if low is None:
            return [], 1.0
        zero = low if wall_time else 0.0
        width = max((high - zero) / _INTERVALS, 1e-6)
        position = (time - zero) / width  # never below zero; PostgreSQL's cast alone would round
        floored = position if connection.dialect.name == "sqlite" else sql.func.floor(position)
        interval = sql.cast(floored, sql.Integer).label("interval")
        learner = table.c.learner if learners is not None else sql.literal("")
        summed = sql.select(
            learner.label("learner"),
            interval,
            sql.func.count().label("n"),
            sql.func.avg(table.c.weight).label("w"),
        )
        summed = summed.where(table.c.run == run)
        if learners is not None:
            summed = summed.where(table.c.learner.in_(learners))
        rows = connection.execute(summed.group_by(sql.text("1"), sql.text("2")).order_by(sql.text("2"))).all()
    return [CommitInterval(row.learner, (row.interval + 0.5) * width, row.n, row.w) for row in rows], width


def quartiles(store: Store, run: str, column: str, *, by_learner: bool = True) -> list[Quartiles]:
    """Return the quartiles of a column of the commits, by learner or over all."""
    table = schema.commits
    value = table.c[column]
    name = table.c.learner if by_learner else sql.literal("")
    partition = table.c.learner if by_learner else None
    ranked = (
        sql.select(name.label("name"), value.label("value"),
                   sql.func.cume_dist().over(order_by=value, partition_by=partition).label("rank"))
        .where(table.c.run == run)
        .subquery()
    )  # fmt: skip

    def at_least(share: float) -> Any:
        return sql.func.min(sql.case((ranked.c.rank >= share, ranked.c.value)))

    query = sql.select(
        ranked.c.name, sql.func.count().label("row_count"), sql.func.min(ranked.c.value).label("low"),
        at_least(0.25).label("first"), at_least(0.5).label("median"), at_least(0.75).label("third"),
        sql.func.max(ranked.c.value).label("high"), sql.func.avg(ranked.c.value).label("mean"),
    ).group_by(ranked.c.name).order_by(sql.desc("row_count")).limit(_MAX_LEARNERS)  # fmt: skip
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return [
        Quartiles(r.name, r.row_count, *map(float, (r.low, r.first, r.median, r.third, r.high, r.mean)))
        for r in sorted(rows, key=lambda row: row.name)
    ]


def cycle_rows(store: Store, run: str, learners: Sequence[str], limit: int = 80) -> list[CycleRow]:
    """Return evenly sampled adaptive cycles of these learners' commits, about `limit` of each."""
    table = schema.commits
    number = sql.func.row_number().over(partition_by=table.c.learner, order_by=table.c.sequence)
    columns = (table.c.learner, table.c.timestamp, table.c.steps, table.c.loss, table.c.validation)
    total = sql.func.count().over(partition_by=table.c.learner)
    numbered = (
        sql.select(*columns, number.label("cycle"), total.label("total"))
        .where(table.c.run == run, table.c.learner.in_(learners))
        .subquery()
    )
    stride = (numbered.c.total + (limit - 1)) // limit
    query = sql.select(numbered).where(
        ((numbered.c.cycle - 1) % stride == 0) | (numbered.c.cycle == numbered.c.total)
    )
    with store.reading() as connection:
        rows = connection.execute(query.order_by(numbered.c.learner, numbered.c.cycle)).all()
    return [CycleRow(r.learner, r.cycle, r.timestamp, r.steps, r.loss, r.validation) for r in rows]
