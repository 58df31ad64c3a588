"""What learners did in a run: added up by the database, each answer of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from abaton.store import schema
from abaton.store.store import Store

MOST_LEARNERS = 200
MOST_SPANS = 600


@dataclass(frozen=True, slots=True)
class LearnerLine:
    """One learner of a run: who, what it did in all, and what it does now; None is what may not be told."""

    learner: str
    group: str
    examples: int | None
    commits: int
    bytes: int
    steps: int | None
    weight: float | None
    staleness: float | None
    training: float
    uploading: float
    waiting: float
    failed: int
    last: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a learner did for a time."""

    learner: str
    what: str
    begin: float
    end: float


def busiest(store: Store, run: str, most: int = MOST_LEARNERS) -> tuple[list[LearnerLine], int]:
    """The learners that committed most, in the order of their names, and how many there are in all."""
    commits, events = schema.commits, schema.events
    who = events.c.body["learner"].as_string()
    summed = (
        sql.select(
            commits.c.learner,
            sql.func.count().label("commits"),
            sql.func.sum(commits.c.size).label("bytes"),
            sql.func.sum(commits.c.steps).label("steps"),
            sql.func.avg(commits.c.staleness).label("staleness"),
            sql.func.sum(commits.c.arrived - commits.c.uploading - commits.c.began).label("training"),
            sql.func.sum(commits.c.uploading).label("uploading"),
            sql.func.max(commits.c.sequence).label("sequence"),
            sql.func.max(commits.c.arrived).label("last"),
        )
        .where(commits.c.run == run)
        .group_by(commits.c.learner)
    )
    rare = (
        sql.select(events.c.kind, who.label("learner"), sql.func.count().label("number"),
                   sql.func.max(events.c.sequence).label("sequence"), sql.func.max(events.c.at).label("at"))
        .where(events.c.run == run, events.c.kind.in_(("Failed", "Joined", "Left")))
        .group_by(events.c.kind, who)
    )  # fmt: skip
    with store.reading() as connection:
        found = {row.learner: row for row in connection.execute(summed)}
        gone = {(row.kind, row.learner): row for row in connection.execute(rare)}
        joined = [row.sequence for (kind, _), row in gone.items() if kind == "Joined"]
        there: dict[str, Any] = {}
        for begin in range(0, len(joined), 500):
            part = sql.select(events.c.at, events.c.body).where(
                events.c.run == run, events.c.sequence.in_(joined[begin : begin + 500])
            )
            there |= {row.body["learner"]: row for row in connection.execute(part)}
        names = sorted(there, key=lambda name: -(found[name].commits if name in found else 0))[:most]
        latest = connection.execute(
            sql.select(commits.c.learner, commits.c.weight).where(
                commits.c.run == run, commits.c.sequence.in_([found[n].sequence for n in names if n in found])
            )
        ).all()
        asked = dict(_asked(connection, run))
        status = connection.scalar(sql.select(schema.runs.c.status).where(schema.runs.c.run == run))
        end = connection.scalar(sql.select(sql.func.max(events.c.at)).where(events.c.run == run)) or 0.0
    weights = {row.learner: row.weight for row in latest}
    lines = []
    for name in sorted(names):
        body, one, failed = there[name].body, found.get(name), gone.get(("Failed", name))
        left = gone.get(("Left", name))
        spent = (one.training + one.uploading) if one else 0.0
        state = _state(one, asked.get(name), left, failed) if status == "running" else "ended"
        doing = end - asked[name][1] if state == "training" else 0.0
        stays = (left.at if left else end) - there[name].at
        lines.append(
            LearnerLine(
                name, body.get("group", ""), body.get("examples", 0),
                one.commits if one else 0, int(one.bytes) if one else 0, int(one.steps) if one else 0,
                weights.get(name), float(one.staleness) if one else None,
                (one.training if one else 0.0) + doing, one.uploading if one else 0.0,
                max(0.0, stays - spent - doing), failed.number if failed else 0, one.last if one else None, state,
            )
        )  # fmt: skip
    return lines, len(there)


def _asked(connection: sql.Connection, run: str) -> list[tuple[str, tuple[int, float]]]:
    """When each learner was last asked to train."""
    table = schema.tasks
    newest = sql.select(table.c.learner, sql.func.max(table.c.sequence).label("sequence"),
                        sql.func.max(table.c.at).label("at"))  # fmt: skip
    rows = connection.execute(newest.where(table.c.run == run).group_by(table.c.learner))
    return [(row.learner, (row.sequence, row.at)) for row in rows]


def _state(commit: Any, asked: tuple[int, float] | None, left: Any, failed: Any) -> str:
    """What a learner is doing, from the newest that is known of it."""
    if left is not None:
        return "lost"
    if asked is None:
        return "waiting"
    if failed is not None and failed.sequence > asked[0]:
        return "lost"
    arrived = commit is not None and commit.last >= asked[1] and commit.sequence > asked[0]
    return "waiting" if arrived else "training"


def spans(store: Store, run: str, most: int = MOST_SPANS, *, first: bool = False) -> list[Span]:
    """What learners did in the newest, or the first, stretch of a run; at most so many spans of each kind."""
    commits, tasks, events = schema.commits, schema.tasks, schema.events
    order: Callable[[Any], Any] = sql.asc if first else sql.desc
    done = sql.select(commits).where(commits.c.run == run).order_by(order(commits.c.sequence)).limit(most)
    who, task = events.c.body["learner"].as_string(), events.c.body["task"].as_string()
    told = sql.select(
        events.c.kind, events.c.sequence, events.c.at, who.label("learner"), task.label("task")
    ).where(events.c.run == run, events.c.kind.in_(("Scored", "Failed", "Left")))
    with store.reading() as connection:
        rows = connection.execute(done).all()
        window = [row.sequence for row in rows]
        if len(rows) == most:
            near = events.c.sequence <= max(window) if first else events.c.sequence >= min(window)
            told = told.where(near)
        heard = connection.execute(told.order_by(order(events.c.sequence)).limit(2 * most)).all()
        newest = connection.execute(
            sql.select(tasks).where(tasks.c.run == run).order_by(order(tasks.c.sequence)).limit(most)
        ).all()
        status = connection.scalar(sql.select(schema.runs.c.status).where(schema.runs.c.run == run))
        end = connection.scalar(sql.select(sql.func.max(events.c.at)).where(events.c.run == run)) or 0.0
    made = [Span(r.learner, "training", r.began, max(r.began, r.arrived - r.uploading)) for r in rows]
    made += [
        Span(r.learner, "uploading", r.arrived - r.uploading, r.arrived) for r in rows if r.uploading > 0
    ]
    arrived = {row.task: row.arrived for row in rows}
    asked = {row.task: row for row in newest}
    lost: set[str] = set()
    for row in heard:
        if row.kind == "Left":
            made.append(Span(row.learner, "lost", row.at, end))
        elif row.kind == "Failed" and row.task in asked:
            made.append(Span(row.learner, "lost", asked[row.task].at, row.at))
            lost.add(row.task)
        elif row.kind == "Scored" and (begin := arrived.get(row.task.rpartition("@")[0])) is not None:
            made.append(Span(row.learner, "evaluating", begin, row.at))
    gone = {row.learner for row in heard if row.kind == "Left"}
    if not first and status == "running":
        open_ = (r for r in newest if r.task not in arrived and r.task not in lost and r.learner not in gone)
        made += [Span(row.learner, "training", row.at, end) for row in open_]
    return made + _waiting(made)


def _waiting(made: Sequence[Span]) -> list[Span]:
    """The gaps between what a learner did itself: evaluators work beside their learner."""
    mine: dict[str, list[Span]] = {}
    for span in made:
        if span.what != "evaluating":
            mine.setdefault(span.learner, []).append(span)
    gaps = []
    for learner, each in mine.items():
        each.sort(key=lambda span: span.begin)
        end = each[0].end
        for span in each[1:]:
            if span.begin - end > 1e-9:
                gaps.append(Span(learner, "waiting", end, span.begin))
            end = max(end, span.end)
    return gaps
