"""The journal for a reader: the newest events first, by kind and learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from abaton.store import schema
from abaton.store.store import Store
from abaton.store.run_visibility import is_about_people

_SHOWN = ("size", "group", "reason", "what", "name", "task")
"""What is shown of an event: never what evaluators counted, never a cohort."""

_COUNTS = ("steps", "examples")
"""What is shown beyond it where examples are not people."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event of the journal, with what may be shown of it."""

    sequence: int
    at: float
    kind: str
    learner: str
    detail: Mapping[str, Any]


def events_of(
    store: Store,
    run: str,
    *,
    kinds: Sequence[str] = (),
    learner: str = "",
    before: int | None = None,
    most: int = 50,
) -> list[EventLine]:
    """Events of a run, the newest first, of some kinds and of one learner if these are given."""
    table = schema.events
    shown = _SHOWN if is_about_people(store.run(run).recipe) else (*_COUNTS, *_SHOWN)
    chosen = sql.select(table).where(table.c.run == run)
    if kinds:
        chosen = chosen.where(table.c.kind.in_(kinds))
    if learner:
        chosen = chosen.where(table.c.body["learner"].as_string() == learner)
    if before is not None:
        chosen = chosen.where(table.c.sequence < before)
    with store.reading() as connection:
        rows = connection.execute(chosen.order_by(table.c.sequence.desc()).limit(most)).all()
    return [
        EventLine(
            row.sequence, row.at, row.kind, row.body.get("learner", ""),
            {key: row.body[key] for key in shown if row.body.get(key) not in (None, "")},
        )
        for row in rows
    ]  # fmt: skip


def kinds_of(store: Store, run: str, *, until: float | None = None) -> dict[str, int]:
    """How many events of each kind a run has, or had until a time of its clock."""
    table = schema.events
    chosen = sql.select(table.c.kind, sql.func.count()).where(table.c.run == run).group_by(table.c.kind)
    if until is not None:
        chosen = chosen.where(table.c.at <= until)
    with store.reading() as connection:
        return {kind: number for kind, number in connection.execute(chosen.order_by(table.c.kind))}
