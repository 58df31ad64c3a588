"""Runs at a glance: added up by the database, so that looking at a long run costs little.

Nothing here reads a run's events one by one: heads of runs come from indices, curves from a bounded number of versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sql

from abaton.errors import SettingsError
from abaton.store import schema
from abaton.store.store import Store

MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of the list of runs.

    Attributes:
        run: its name.
        created: when it was begun.
        engine: what carries it.
        kind: which recipe it follows.
        title: the study's title, if it is a run of a study.
        status: running, finished, stopped or failed.
        version: the newest version of its community model.
        updates: how many updates led to it, of how many bytes.
        metrics: what was measured of that version.
    """

    run: str
    created: str
    engine: str
    kind: str
    title: str
    status: str
    version: int
    updates: int
    bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """How far a run has come: cheap to ask as often as one likes."""

    status: str
    events: int
    at: float
    wall: float
    version: int
    updates: int
    bytes: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """One version of the community model: when it was published, by four ways to count, and what was measured.

    `wall`, `updates` and `bytes` are nothing for runs that were begun before they were written down.
    """

    version: int
    at: float
    wall: float | None
    updates: int | None
    bytes: int | None
    metrics: Mapping[str, float]


def run_lines(store: Store, most: int = 200, after: int = 0) -> tuple[list[RunLine], int]:
    """The newest runs, and how many there are in all."""
    runs, models, milestones = schema.runs, schema.models, schema.milestones
    newest = (
        sql.select(models.c.run, sql.func.max(models.c.version).label("version"))
        .group_by(models.c.run)
        .subquery()
    )
    text, number = sql.func.coalesce(runs.c.recipe["study", "title"].as_string(), ""), sql.func.coalesce
    chosen = (
        sql.select(
            runs.c.run, runs.c.created, runs.c.engine, runs.c.status,
            runs.c.recipe["name"].as_string().label("kind"), text.label("title"),
            newest.c.version, models.c.metrics, runs.c.result["progress"].label("progress"),
            number(milestones.c.updates, runs.c.result["updates"].as_integer()).label("updates"),
            number(milestones.c.bytes, runs.c.result["bytes_up"].as_integer()).label("bytes"),
        )
        .select_from(runs)
        .outerjoin(newest, newest.c.run == runs.c.run)
        .outerjoin(models, (models.c.run == runs.c.run) & (models.c.version == newest.c.version))
        .outerjoin(milestones, (milestones.c.run == runs.c.run) & (milestones.c.version == newest.c.version))
        .order_by(runs.c.created.desc(), runs.c.run.desc())
        .limit(most)
        .offset(after)
    )  # fmt: skip
    with store.reading() as connection:
        found = connection.execute(chosen).all()
        total = connection.scalar(sql.select(sql.func.count()).select_from(runs)) or 0
    lines = [
        RunLine(
            row.run, row.created, row.engine, row.kind or "", row.title, _status(store, row.run, row.status),
            row.version or 0, row.updates or 0, row.bytes or 0,
            {**(row.metrics or {}), **_judged(row.progress)},
        )
        for row in found
    ]  # fmt: skip
    return lines, total


def head(store: Store, run: str) -> Head:
    """How far a run has come."""
    events, models, milestones = schema.events, schema.models, schema.milestones
    last = sql.select(events.c.sequence, events.c.at).where(events.c.run == run)
    version = sql.select(models.c.version, models.c.metrics).where(models.c.run == run)
    told = sql.select(milestones.c.wall, milestones.c.updates, milestones.c.bytes).where(
        milestones.c.run == run
    )
    with store.reading() as connection:
        row = connection.execute(
            sql.select(
                schema.runs.c.created, schema.runs.c.status,
                schema.runs.c.result["updates"].as_integer().label("updates"),
                schema.runs.c.result["bytes_up"].as_integer().label("bytes"),
                schema.runs.c.result["progress"].label("progress"),
            ).where(schema.runs.c.run == run)
        ).first()  # fmt: skip
        event = connection.execute(last.order_by(events.c.sequence.desc()).limit(1)).first()
        model = connection.execute(version.order_by(models.c.version.desc()).limit(1)).first()
        mark = connection.execute(told.order_by(milestones.c.version.desc()).limit(1)).first()
        loss = connection.scalar(
            sql.select(schema.commits.c.validation)
            .where(schema.commits.c.run == run)
            .order_by(schema.commits.c.sequence.desc())
            .limit(1)
        )
    if row is None:
        raise SettingsError(f"there is no run '{run}'", remedy="list the runs with 'abaton runs'")
    heard = {} if loss is None else {"validation loss": loss}
    return Head(
        status=_status(store, run, row.status),
        events=event.sequence + 1 if event else 0,
        at=event.at if event else 0.0,
        wall=max(0.0, mark.wall - _began(row.created)) if mark else 0.0,
        version=model.version if model else 0,
        updates=(mark.updates if mark else row.updates) or 0,
        bytes=(mark.bytes if mark else row.bytes) or 0,
        metrics={**({} if model is None else model.metrics or heard), **_judged(row.progress)},
    )


def points(store: Store, run: str, most: int = MOST_POINTS) -> list[Point]:
    """Versions of a run's community model, evenly thinned out; the first and the newest are always among them."""
    models, milestones = schema.models, schema.milestones
    with store.reading() as connection:
        newest = connection.scalar(sql.select(sql.func.max(models.c.version)).where(models.c.run == run)) or 0
        created = connection.scalar(sql.select(schema.runs.c.created).where(schema.runs.c.run == run))
        stride = max(1, -(-newest // most))
        chosen = (
            sql.select(
                models.c.version, models.c.at, models.c.metrics,
                milestones.c.wall, milestones.c.updates, milestones.c.bytes,
            )
            .outerjoin(
                milestones, (milestones.c.run == models.c.run) & (milestones.c.version == models.c.version)
            )
            .where(models.c.run == run, (models.c.version % stride == 0) | (models.c.version == newest))
            .order_by(models.c.version)
        )  # fmt: skip
        found = connection.execute(chosen).all()
        losses = _losses(connection, run, stride)
        progress = connection.scalar(
            sql.select(schema.runs.c.result["progress"]).where(schema.runs.c.run == run)
        )
    began = _began(created or "")
    judged = {each["version"]: _judged([each]) for each in progress or ()}
    made = []
    for r in found:
        metrics = {**r.metrics, **judged.get(r.version, {}), **losses.get(-(-r.version // stride), {})}
        wall = None if r.wall is None else max(0.0, r.wall - began)
        made.append(Point(r.version, r.at, wall, r.updates, r.bytes, metrics))
    return made


def _losses(connection: sql.Connection, run: str, stride: int) -> dict[int, dict[str, float]]:
    """The mean losses of the updates that went into each stretch of versions."""
    commits, milestones = schema.commits, schema.milestones
    group = ((milestones.c.version + (stride - 1)) // stride).label("part")
    chosen = (
        sql.select(
            group,
            sql.func.avg(commits.c.validation).label("validation"),
            sql.func.avg(commits.c.loss).label("loss"),
        )
        .join(commits, (commits.c.run == milestones.c.run) & (commits.c.sequence == milestones.c.sequence))
        .where(milestones.c.run == run)
        .group_by(group)
    )
    made = {}
    for row in connection.execute(chosen):
        named = {"validation loss": row.validation, "training loss": row.loss}
        made[row.part] = {name: float(value) for name, value in named.items() if value is not None}
    return made


def model_bytes(store: Store, run: str) -> int | None:
    """How many bytes the numbers of a run's model take uncompressed, if a version of it is still on disk."""
    models = schema.models
    chosen = sql.select(models.c.digest).where(models.c.run == run).order_by(models.c.version.desc()).limit(5)
    with store.reading() as connection:
        digests: Sequence[str] = connection.scalars(chosen).all()
    for digest in digests:
        path = store.vectors.path(digest)
        if path.is_file():
            with path.open("rb") as file:
                head_bytes = int.from_bytes(file.read(8), "little")
            return path.stat().st_size - 8 - head_bytes
    return None


def codec_of(recipe: Mapping[str, Any]) -> str:
    """How a run's updates travel, by its recipe; 'raw' if it says nothing.

    >>> codec_of({"method": {"codec": "stc:sparsity=0.01"}}), codec_of({"settings": {}})
    ('stc:sparsity=0.01', 'raw')
    """
    for part in (recipe.get("method"), recipe.get("settings")):
        if isinstance(part, Mapping) and part.get("codec"):
            return str(part["codec"])
    return "raw"


def _judged(progress: Sequence[Mapping[str, Any]] | None) -> dict[str, float]:
    """What was found when a study's run was judged at its end, of the newest version."""
    return {k: v for k, v in progress[-1].items() if k not in ("version", "at")} if progress else {}


def _status(store: Store, run: str, status: str) -> str:
    return "interrupted" if status == "running" and not store.is_held(run) else status


def _began(created: str) -> float:
    return datetime.fromisoformat(created).timestamp() if created else 0.0
