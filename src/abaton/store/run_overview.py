"""Run list, run heads and metric points, aggregated by the database.

No query reads all events of a run: heads use indices, and curves a bounded number of versions.
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

MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Row of the list of runs.

    Attributes:
        run: Name of the run.
        created: Time of creation.
        engine: Engine of the run.
        recipe_name: Recipe that built it.
        title: Title of the study, if it is a run of a study.
        status: Running, finished, stopped, failed or interrupted.
        version: Latest version of the community model.
        updates: Number of updates up to this version.
        bytes: Payload bytes of these updates.
        metrics: Metrics of this version.
    """

    run: str
    created: str
    engine: str
    recipe_name: str
    title: str
    status: str
    version: int
    updates: int
    bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHead:
    """Progress of a run; cheap enough to poll."""

    status: str
    events: int
    timestamp: float
    wall_time: float
    version: int
    updates: int
    bytes: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Version of the community model with its metrics and the time, updates and bytes until its publication.

    `wall_time`, `updates` and `bytes` are None for versions without totals.
    """

    version: int
    timestamp: float
    wall_time: float | None
    updates: int | None
    bytes: int | None
    metrics: Mapping[str, float]


def run_summaries(store: Store, limit: int = 200, after: int = 0) -> tuple[list[RunSummary], int]:
    """Return an overview of the latest runs, and the total number of runs."""
    runs, models, version_totals = schema.runs, schema.models, schema.version_totals
    latest = (
        sql.select(models.c.run, sql.func.max(models.c.version).label("version"))
        .group_by(models.c.run)
        .subquery()
    )
    text, number = sql.func.coalesce(runs.c.recipe["study", "title"].as_string(), ""), sql.func.coalesce
    query = (
        sql.select(
            runs.c.run, runs.c.created, runs.c.engine, runs.c.status,
            runs.c.recipe["name"].as_string().label("recipe_name"), text.label("title"),
            latest.c.version, models.c.metrics, runs.c.result["progress"].label("progress"),
            number(version_totals.c.updates, runs.c.result["updates"].as_integer()).label("updates"),
            number(version_totals.c.bytes, runs.c.result["bytes_up"].as_integer()).label("bytes"),
        )
        .select_from(runs)
        .outerjoin(latest, latest.c.run == runs.c.run)
        .outerjoin(models, (models.c.run == runs.c.run) & (models.c.version == latest.c.version))
        .outerjoin(
            version_totals, (version_totals.c.run == runs.c.run) & (version_totals.c.version == latest.c.version)
        )
        .order_by(runs.c.created.desc(), runs.c.run.desc())
        .limit(limit)
        .offset(after)
    )  # fmt: skip
    with store.reading() as connection:
        rows = connection.execute(query).all()
        total = connection.scalar(sql.select(sql.func.count()).select_from(runs)) or 0
    summaries = [
        RunSummary(
            row.run, row.created, row.engine, row.recipe_name or "", row.title, _status(store, row.run, row.status),
            row.version or 0, row.updates or 0, row.bytes or 0,
            {**(row.metrics or {}), **_final_metrics(row.progress)},
        )
        for row in rows
    ]  # fmt: skip
    return summaries, total


def run_head(store: Store, run: str) -> RunHead:
    """Return the head of a run for an overview: its status, latest version, totals and metrics."""
    events, models, version_totals = schema.events, schema.models, schema.version_totals
    last = sql.select(events.c.sequence, events.c.timestamp).where(events.c.run == run)
    version = sql.select(models.c.version, models.c.metrics).where(models.c.run == run)
    totals = sql.select(version_totals.c.wall_time, version_totals.c.updates, version_totals.c.bytes).where(
        version_totals.c.run == run
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
        total = connection.execute(totals.order_by(version_totals.c.version.desc()).limit(1)).first()
        loss = connection.scalar(
            sql.select(schema.commits.c.validation)
            .where(schema.commits.c.run == run)
            .order_by(schema.commits.c.sequence.desc())
            .limit(1)
        )
    if row is None:
        raise SettingsError(f"there is no run '{run}'", remedy="list the runs with 'abaton runs'")
    loss_metric = {} if loss is None else {"validation loss": loss}
    return RunHead(
        status=_status(store, run, row.status),
        events=event.sequence + 1 if event else 0,
        timestamp=event.timestamp if event else 0.0,
        wall_time=max(0.0, total.wall_time - _start_time(row.created)) if total else 0.0,
        version=model.version if model else 0,
        updates=(total.updates if total else row.updates) or 0,
        bytes=(total.bytes if total else row.bytes) or 0,
        metrics={**({} if model is None else model.metrics or loss_metric), **_final_metrics(row.progress)},
    )


def metric_points(store: Store, run: str, limit: int = MAX_POINTS) -> list[MetricPoint]:
    """Return evenly sampled versions of a run with their metrics, with the first and the latest."""
    models, version_totals = schema.models, schema.version_totals
    with store.reading() as connection:
        latest = connection.scalar(sql.select(sql.func.max(models.c.version)).where(models.c.run == run)) or 0
        created = connection.scalar(sql.select(schema.runs.c.created).where(schema.runs.c.run == run))
        stride = max(1, -(-latest // limit))
        query = (
            sql.select(
                models.c.version, models.c.timestamp, models.c.metrics,
                version_totals.c.wall_time, version_totals.c.updates, version_totals.c.bytes,
            )
            .outerjoin(
                version_totals, (version_totals.c.run == models.c.run) & (version_totals.c.version == models.c.version)
            )
            .where(models.c.run == run, (models.c.version % stride == 0) | (models.c.version == latest))
            .order_by(models.c.version)
        )  # fmt: skip
        rows = connection.execute(query).all()
        losses = _losses(connection, run, stride)
        progress = connection.scalar(
            sql.select(schema.runs.c.result["progress"]).where(schema.runs.c.run == run)
        )
    started_at = _start_time(created or "")
    final_metrics = {point["version"]: _final_metrics([point]) for point in progress or ()}
    points = []
    for r in rows:
        metrics = {**r.metrics, **final_metrics.get(r.version, {}), **losses.get(-(-r.version // stride), {})}
        wall_time = None if r.wall_time is None else max(0.0, r.wall_time - started_at)
        points.append(MetricPoint(r.version, r.timestamp, wall_time, r.updates, r.bytes, metrics))
    return points


def _losses(connection: sql.Connection, run: str, stride: int) -> dict[int, dict[str, float]]:
    """Return the mean losses of each interval of versions in a run's overview."""
    commits, version_totals = schema.commits, schema.version_totals
    group = ((version_totals.c.version + (stride - 1)) // stride).label("part")
    query = (
        sql.select(
            group,
            sql.func.avg(commits.c.validation).label("validation"),
            sql.func.avg(commits.c.loss).label("loss"),
        )
        .join(
            commits,
            (commits.c.run == version_totals.c.run) & (commits.c.sequence == version_totals.c.sequence),
        )
        .where(version_totals.c.run == run)
        .group_by(group)
    )
    losses = {}
    for row in connection.execute(query):
        named = {"validation loss": row.validation, "training loss": row.loss}
        losses[row.part] = {name: float(value) for name, value in named.items() if value is not None}
    return losses


def model_bytes(store: Store, run: str) -> int | None:
    """Return the uncompressed size of a run's model for the overview, or None if no version is on disk."""
    models = schema.models
    query = sql.select(models.c.digest).where(models.c.run == run).order_by(models.c.version.desc()).limit(5)
    with store.reading() as connection:
        digests: Sequence[str] = connection.scalars(query).all()
    for digest in digests:
        path = store.model_files.path(digest)
        if path.is_file():
            with path.open("rb") as file:
                head_bytes = int.from_bytes(file.read(8), "little")
            return path.stat().st_size - 8 - head_bytes
    return None


def recipe_codec(recipe: Mapping[str, Any]) -> str:
    """Return the codec spec of a run's recipe for the overview; 'raw' if it has none.

    >>> recipe_codec({"method": {"codec": "stc(sparsity=0.01)"}}), recipe_codec({"settings": {}})
    ('stc(sparsity=0.01)', 'raw')
    """
    for section in (recipe.get("method"), recipe.get("settings")):
        if isinstance(section, Mapping) and section.get("codec"):
            return str(section["codec"])
    return "raw"


def _final_metrics(progress: Sequence[Mapping[str, Any]] | None) -> dict[str, float]:
    """Return the metrics of the last evaluated version for the overview, from a finished run's result."""
    return {k: v for k, v in progress[-1].items() if k not in ("version", "timestamp")} if progress else {}


def _status(store: Store, run: str, status: str) -> str:
    return "interrupted" if status == "running" and not store.is_locked(run) else status


def _start_time(created: str) -> float:
    return datetime.fromisoformat(created).timestamp() if created else 0.0
