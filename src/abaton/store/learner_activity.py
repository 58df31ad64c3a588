"""Activity of a run's learners, aggregated by the database; every result has a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from abaton.store import schema
from abaton.store.store import Store

MAX_LEARNERS = 200
MAX_SPANS = 600


@dataclass(frozen=True, slots=True)
class LearnerActivity:
    """Totals and current state of one learner; None is a value that a viewer may not see."""

    learner: str
    group: str
    examples: int | None
    commits: int
    bytes: int
    steps: int | None
    weight: float | None
    staleness: float | None
    training_seconds: float
    upload_seconds: float
    waiting_seconds: float
    failures: int
    last_received_at: float | None
    state: str


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """Period in which a learner had one activity: training, uploading, evaluating, waiting or lost."""

    learner: str
    activity: str
    start: float
    end: float


def most_active_learners(
    store: Store, run: str, limit: int = MAX_LEARNERS
) -> tuple[list[LearnerActivity], int]:
    """Return a run's learners with the most commits, sorted by name, and the number of all learners."""
    commits, events = schema.commits, schema.events
    learner = events.c.body["learner"].as_string()
    summed = (
        sql.select(
            commits.c.learner,
            sql.func.count().label("commits"),
            sql.func.sum(commits.c.payload_bytes).label("bytes"),
            sql.func.sum(commits.c.steps).label("steps"),
            sql.func.avg(commits.c.staleness).label("staleness"),
            sql.func.sum(commits.c.received_at - commits.c.upload_seconds - commits.c.started_at).label(
                "training_seconds"
            ),
            sql.func.sum(commits.c.upload_seconds).label("upload_seconds"),
            sql.func.max(commits.c.sequence).label("sequence"),
            sql.func.max(commits.c.received_at).label("last_received_at"),
        )
        .where(commits.c.run == run)
        .group_by(commits.c.learner)
    )
    changed = (
        sql.select(events.c.type, learner.label("learner"), sql.func.count().label("row_count"),
                   sql.func.max(events.c.sequence).label("sequence"),
                   sql.func.max(events.c.timestamp).label("timestamp"))
        .where(events.c.run == run, events.c.type.in_(("task_failed", "learner_joined", "learner_left")))
        .group_by(events.c.type, learner)
    )  # fmt: skip
    with store.reading() as connection:
        totals = {row.learner: row for row in connection.execute(summed)}
        changes = {(row.type, row.learner): row for row in connection.execute(changed)}
        joined = [row.sequence for (kind, _), row in changes.items() if kind == "learner_joined"]
        joined_rows: dict[str, Any] = {}
        for start in range(0, len(joined), 500):
            part = sql.select(events.c.timestamp, events.c.body).where(
                events.c.run == run, events.c.sequence.in_(joined[start : start + 500])
            )
            joined_rows |= {row.body["learner"]: row for row in connection.execute(part)}
        names = sorted(joined_rows, key=lambda name: -(totals[name].commits if name in totals else 0))[:limit]
        latest = connection.execute(
            sql.select(commits.c.learner, commits.c.weight).where(
                commits.c.run == run,
                commits.c.sequence.in_([totals[n].sequence for n in names if n in totals]),
            )
        ).all()
        last_tasks = dict(_last_tasks(connection, run))
        status = connection.scalar(sql.select(schema.runs.c.status).where(schema.runs.c.run == run))
        end = (
            connection.scalar(sql.select(sql.func.max(events.c.timestamp)).where(events.c.run == run)) or 0.0
        )
    weights = {row.learner: row.weight for row in latest}
    activities = []
    for name in sorted(names):
        body, total, failed = joined_rows[name].body, totals.get(name), changes.get(("task_failed", name))
        left = changes.get(("learner_left", name))
        spent = (total.training_seconds + total.upload_seconds) if total else 0.0
        state = _state(total, last_tasks.get(name), left, failed) if status == "running" else "ended"
        training_now = end - last_tasks[name][1] if state == "training" else 0.0
        present = (left.timestamp if left else end) - joined_rows[name].timestamp
        activities.append(
            LearnerActivity(
                name, body.get("group", ""), body.get("examples", 0),
                total.commits if total else 0, int(total.bytes) if total else 0, int(total.steps) if total else 0,
                weights.get(name), float(total.staleness) if total else None,
                (total.training_seconds if total else 0.0) + training_now, total.upload_seconds if total else 0.0,
                max(0.0, present - spent - training_now), failed.row_count if failed else 0,
                total.last_received_at if total else None, state,
            )
        )  # fmt: skip
    return activities, len(joined_rows)


def _last_tasks(connection: sql.Connection, run: str) -> list[tuple[str, tuple[int, float]]]:
    """Return the event and the time of each learner's last training task."""
    table = schema.tasks
    latest_tasks = sql.select(table.c.learner, sql.func.max(table.c.sequence).label("sequence"),
                        sql.func.max(table.c.timestamp).label("timestamp"))  # fmt: skip
    rows = connection.execute(latest_tasks.where(table.c.run == run).group_by(table.c.learner))
    return [(row.learner, (row.sequence, row.timestamp)) for row in rows]


def _state(commit: Any, task: tuple[int, float] | None, left: Any, failed: Any) -> str:
    """Return the current activity of a learner: what it is doing now."""
    if left is not None:
        return "lost"
    if task is None:
        return "waiting"
    if failed is not None and failed.sequence > task[0]:
        return "lost"
    received = commit is not None and commit.last_received_at >= task[1] and commit.sequence > task[0]
    return "waiting" if received else "training"


def training_spans(
    store: Store, run: str, limit: int = MAX_SPANS, *, first: bool = False
) -> list[TrainingSpan]:
    """Return the activity spans of learners in the latest, or the first, part of a run, at most `limit` each."""
    commits, tasks, events = schema.commits, schema.tasks, schema.events
    order: Callable[[Any], Any] = sql.asc if first else sql.desc
    done = sql.select(commits).where(commits.c.run == run).order_by(order(commits.c.sequence)).limit(limit)
    learner, task = events.c.body["learner"].as_string(), events.c.body["task"].as_string()
    query = sql.select(
        events.c.type, events.c.sequence, events.c.timestamp, learner.label("learner"), task.label("task")
    ).where(events.c.run == run, events.c.type.in_(("evaluation_received", "task_failed", "learner_left")))
    with store.reading() as connection:
        rows = connection.execute(done).all()
        window = [row.sequence for row in rows]
        if len(rows) == limit:
            in_window = events.c.sequence <= max(window) if first else events.c.sequence >= min(window)
            query = query.where(in_window)
        event_rows = connection.execute(query.order_by(order(events.c.sequence)).limit(2 * limit)).all()
        latest_tasks = connection.execute(
            sql.select(tasks).where(tasks.c.run == run).order_by(order(tasks.c.sequence)).limit(limit)
        ).all()
        status = connection.scalar(sql.select(schema.runs.c.status).where(schema.runs.c.run == run))
        end = (
            connection.scalar(sql.select(sql.func.max(events.c.timestamp)).where(events.c.run == run)) or 0.0
        )
    all_spans = [
        TrainingSpan(r.learner, "training", r.started_at, max(r.started_at, r.received_at - r.upload_seconds))
        for r in rows
    ]
    all_spans += [
        TrainingSpan(r.learner, "uploading", r.received_at - r.upload_seconds, r.received_at)
        for r in rows
        if r.upload_seconds > 0
    ]
    received = {row.task: row.received_at for row in rows}
    tasks_by_id = {row.task: row for row in latest_tasks}
    lost: set[str] = set()
    for row in event_rows:
        if row.type == "learner_left":
            all_spans.append(TrainingSpan(row.learner, "lost", row.timestamp, end))
        elif row.type == "task_failed" and row.task in tasks_by_id:
            all_spans.append(
                TrainingSpan(row.learner, "lost", tasks_by_id[row.task].timestamp, row.timestamp)
            )
            lost.add(row.task)
        elif (
            row.type == "evaluation_received"
            and (start := received.get(row.task.rpartition("@")[0])) is not None
        ):
            all_spans.append(TrainingSpan(row.learner, "evaluating", start, row.timestamp))
    departed = {row.learner for row in event_rows if row.type == "learner_left"}
    if not first and status == "running":
        open_ = (
            r
            for r in latest_tasks
            if r.task not in received and r.task not in lost and r.learner not in departed
        )
        all_spans += [TrainingSpan(row.learner, "training", row.timestamp, end) for row in open_]
    return all_spans + _waiting_spans(all_spans)


def _waiting_spans(all_spans: Sequence[TrainingSpan]) -> list[TrainingSpan]:
    """Return the gaps between a learner's activity spans; evaluation runs in parallel and is not counted."""
    by_learner: dict[str, list[TrainingSpan]] = {}
    for span in all_spans:
        if span.activity != "evaluating":
            by_learner.setdefault(span.learner, []).append(span)
    gaps = []
    for learner, learner_spans in by_learner.items():
        learner_spans.sort(key=lambda span: span.start)
        end = learner_spans[0].end
        for span in learner_spans[1:]:
            if span.start - end > 1e-9:
                gaps.append(TrainingSpan(learner, "waiting", end, span.start))
            end = max(end, span.end)
    return gaps
