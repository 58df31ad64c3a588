"""Registered senders, their keys, and the subjects they are custodian of.

Keys are compared by people over a second channel before registration; newer keys must follow from the registered
ones. The sender of a subject's first consent is the custodian. Pseudonyms are readable in envelope headers, so
without this list a second site could withdraw or send for a subject that it has merely seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sql

from abaton.governance import schema
from abaton.governance.audit_log import AuditEntry, append_in
from abaton.governance.keys import PublicKey, PublicKeySet
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database, insert_new


class SenderRole(StrEnum):
    """Role of a registered key."""

    SITE = "site"
    CENTRE = "centre"
    DATA_CONTROLLER = "data_controller"
    APPROVER = "approver"
    WITNESS = "witness"
    CITIZEN = "person"


@dataclass(frozen=True, slots=True)
class Sender:
    """Registered sender."""

    name: str
    role: SenderRole
    key_set: PublicKeySet
    registered_at: str
    valid_until: str


class SenderRegistry:
    """Registered senders of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def register(self, key_set: PublicKeySet, role: SenderRole, when: datetime) -> None:
        """Register a sender's public keys, or newer keys, which must follow from the sender's old ones."""
        self.database.write(
            lambda connection: register_in(connection, key_set, role, when), lock=f"sender/{key_set.name}"
        )

    def unregister(self, name: str, when: datetime) -> None:
        """Unregister a sender: refuse everything that this sender signs from now on."""

        def work(connection: sql.Connection) -> None:
            sender = _find(connection, name)
            if sender is not None and not sender.valid_until:
                table = schema.senders
                connection.execute(
                    table.update().where(table.c.name == name).values(valid_until=to_timestamp(when))
                )
                append_in(
                    connection, AuditEntry("sender-unregistered", actor=sender.key_set.signing_key.id), when
                )

        self.database.write(work, lock=f"sender/{name}")

    def find(self, name: str) -> Sender | None:
        """Return a registered sender by name."""
        return self.database.read(lambda connection: _find(connection, name))

    def all(self) -> list[Sender]:
        """Return all registered senders, sorted by name."""
        selection = sql.select(schema.senders).order_by(schema.senders.c.name)
        rows = self.database.read(lambda connection: connection.execute(selection).all())
        return [_read(row) for row in rows]

    def signing_key(self, key_id: str, *roles: SenderRole) -> PublicKey | None:
        """Return the signing key with an id if its sender is registered and has one of the roles."""
        owner = self.owner(key_id)
        if owner is None or owner.valid_until or (roles and owner.role not in roles):
            return None
        key = owner.key_set.signing_key
        return key if key.id == key_id else None

    def owner(self, key_id: str) -> Sender | None:
        """Return the registered sender that owns a key."""
        table = schema.sender_keys
        selection = sql.select(table.c.name).where(table.c.key == key_id)

        def work(connection: sql.Connection) -> Sender | None:
            name = connection.scalar(selection)
            return None if name is None else _find(connection, name)

        return self.database.read(work)


def register_in(connection: sql.Connection, key_set: PublicKeySet, role: SenderRole, when: datetime) -> None:
    """Register a sender's public keys inside an open transaction."""
    known = _find(connection, key_set.name)
    if known is not None:
        PublicKeySet.read(key_set.row(), trusted=known.key_set.signing_key.id)
        if known.valid_until or known.role is not role or len(key_set.keys) < len(known.key_set.keys):
            raise DeniedError(
                RefusalCode.RETIRED_KEY,
                "the name is unregistered, has another role, or has newer keys",
            )
    row = json.dumps(key_set.row(), sort_keys=True)
    table = schema.senders
    connection.execute(table.delete().where(table.c.name == key_set.name))
    values = {"name": key_set.name, "role": role.value, "key_set": row, "valid_until": ""}
    registered_at = known.registered_at if known else to_timestamp(when)
    connection.execute(table.insert().values(**values, registered_at=registered_at))
    keys = [{"key": key.id, "name": key_set.name} for key in key_set.keys]
    insert_new(connection, schema.sender_keys, keys)
    append_in(
        connection,
        AuditEntry(
            "sender-registered", actor=key_set.signing_key.id, detail={"role": role.value.replace("_", "-")}
        ),
        when,
    )


def _find(connection: sql.Connection, name: str) -> Sender | None:
    row = connection.execute(sql.select(schema.senders).where(schema.senders.c.name == name)).first()
    return None if row is None else _read(row)


def _read(row: sql.Row[tuple[str, ...]]) -> Sender:
    key_set = PublicKeySet.read(json.loads(row.key_set))
    return Sender(row.name, SenderRole(row.role), key_set, row.registered_at, row.valid_until)


def claim_subject(connection: sql.Connection, subject: str, sender: str) -> None:
    """Make a sender the custodian of a subject; refused if another sender is."""
    insert_new(connection, schema.custodians, [{"subject": subject, "sender": sender}])
    _check_custodian(connection, subject, sender)


def check_custodian(database: Database, subject: str, sender: str) -> None:
    """Raise an error if another sender is the subject's custodian; without a custodian, any sender passes."""
    database.read(lambda connection: _check_custodian(connection, subject, sender))


def _check_custodian(connection: sql.Connection, subject: str, sender: str) -> None:
    selection = sql.select(schema.custodians.c.sender).where(schema.custodians.c.subject == subject)
    custodian = connection.scalar(selection)
    if custodian is not None and custodian != sender:
        raise DeniedError(
            RefusalCode.WRONG_SENDER, "another sender is the subject's custodian", where="subject"
        )
