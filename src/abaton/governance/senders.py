"""The senders that are known: whose public keys count, in which role, and until when."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.keys import PublicKey
from abaton.governance.refusals import Code, Denied
from abaton.governance.rings import PublicRing
from abaton.governance.times import stamp
from abaton.store import Database, insert_new


class Role(StrEnum):
    """What somebody may do with his signature."""

    SITE = "site"
    CENTRE = "centre"
    CONTROLLER = "controller"
    APPROVER = "approver"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class Sender:
    """Somebody whose keys are known."""

    name: str
    role: Role
    ring: PublicRing
    since: str
    until: str


class Senders:
    """The register of senders in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def enter(self, ring: PublicRing, role: Role, when: datetime) -> None:
        """Enter somebody's public keys, or the newer keys of somebody known: they must follow from the old ones."""

        def work(connection: sql.Connection) -> None:
            known = _find(connection, ring.name)
            if known is not None:
                PublicRing.read(ring.row(), trusted=known.ring.signing.id)
                if known.until or known.role is not role or len(ring.keys) < len(known.ring.keys):
                    raise Denied(Code.RETIRED_KEY, "these keys cannot be entered under this name")
            row = json.dumps(ring.row(), sort_keys=True)
            table = schema.senders
            connection.execute(table.delete().where(table.c.name == ring.name))
            values = {"name": ring.name, "role": role.value, "ring": row, "until": ""}
            since = known.since if known else stamp(when)
            connection.execute(table.insert().values(**values, since=since))
            keys = [{"key": key.id, "name": ring.name} for key in ring.keys]
            insert_new(connection, schema.sender_keys, keys)
            append_in(
                connection, Entry("sender-entered", actor=ring.signing.id, detail={"role": role.value}), when
            )

        self.database.write(work, lock=f"sender/{ring.name}")

    def dismiss(self, name: str, when: datetime) -> None:
        """From now on nothing that this sender signs is taken."""

        def work(connection: sql.Connection) -> None:
            known = _find(connection, name)
            if known is not None and not known.until:
                table = schema.senders
                connection.execute(table.update().where(table.c.name == name).values(until=stamp(when)))
                append_in(connection, Entry("sender-dismissed", actor=known.ring.signing.id), when)

        self.database.write(work, lock=f"sender/{name}")

    def find(self, name: str) -> Sender | None:
        """A sender by name."""
        return self.database.read(lambda connection: _find(connection, name))

    def everybody(self) -> list[Sender]:
        """All senders, by name."""
        chosen = sql.select(schema.senders).order_by(schema.senders.c.name)
        rows = self.database.read(lambda connection: connection.execute(chosen).all())
        return [_read(row) for row in rows]

    def signing(self, key_id: str, *roles: Role) -> PublicKey | None:
        """The signing key with an id, if it is in use by somebody who is not dismissed and has one of the roles."""
        owner = self.owner(key_id)
        if owner is None or owner.until or (roles and owner.role not in roles):
            return None
        key = owner.ring.signing
        return key if key.id == key_id else None

    def owner(self, key_id: str) -> Sender | None:
        """Whose key it is."""
        table = schema.sender_keys
        chosen = sql.select(table.c.name).where(table.c.key == key_id)

        def work(connection: sql.Connection) -> Sender | None:
            name = connection.scalar(chosen)
            return None if name is None else _find(connection, name)

        return self.database.read(work)


def _find(connection: sql.Connection, name: str) -> Sender | None:
    row = connection.execute(sql.select(schema.senders).where(schema.senders.c.name == name)).first()
    return None if row is None else _read(row)


def _read(row: sql.Row[tuple[str, ...]]) -> Sender:
    ring = PublicRing.read(json.loads(row.ring))
    return Sender(row.name, Role(row.role), ring, row.since, row.until)
