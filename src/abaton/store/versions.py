"""The version of some tables, written beside them: a database of another version is refused before it is touched."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql

from abaton.errors import StoreError


def mark_version(metadata: sql.MetaData, what: str, version: int, remedy: str) -> sql.Table:
    """Have a version stand in a table of its own, and refuse a database in which another one stands.

    Tables that are there without any mark are of version 1: they were made before versions were written down.

    Args:
        metadata: The tables.
        what: What they are, in a word or two.
        version: The version that this Abaton reads and writes.
        remedy: What to do with a database of an earlier version.
    """
    others = list(metadata.tables)
    mark = sql.Table(
        f"{what.replace(' ', '_')}_tables",
        metadata,
        sql.Column("name", sql.Text, primary_key=True),
        sql.Column("version", sql.Integer, nullable=False),
    )

    def check(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        there = sql.inspect(connection)
        if there.has_table(mark.name):
            found = connection.scalar(sql.select(mark.c.version).where(mark.c.name == what))
        else:
            found = 1 if any(there.has_table(name) for name in others) else None
        if found is not None and found != version:
            raise StoreError(
                f"the {what} tables are of version {found}, and this Abaton knows version {version}",
                where=connection.engine.url.render_as_string(hide_password=True),
                remedy=remedy if found < version else "use a newer Abaton",
            )

    def note(_target: Any, connection: sql.Connection, **_more: Any) -> None:
        known = sql.select(mark.c.version).where(mark.c.name == what)
        if connection.scalar(known) is None:
            connection.execute(mark.insert().values(name=what, version=version))

    sql.event.listen(metadata, "before_create", check)
    sql.event.listen(metadata, "after_create", note)
    return mark
