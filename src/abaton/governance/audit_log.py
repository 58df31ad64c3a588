"""The audit chain: what was done, when, under whose key; never to whom by name.

Every entry's hash covers the entry before it. Invariants:
(1) entries are numbered from 0 without a gap, also when many processes write at once;
(2) an entry is written in the same transaction as what it tells of, or before it;
(3) an entry holds codes, numbers, fingerprints and tags, and nothing that could name a person;
(4) whoever keeps a signed checkpoint notices if anything before it is changed, moved or gone.

Audit entries as FHIR AuditEvent resources, for those who collect them with other systems' trails.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sql

from abaton.canonical_json import canonical
from abaton.errors import AbatonError, SettingsError
from abaton.governance import schema
from abaton.governance.signed_statements import Signer, Statement, Verify, check, state
from abaton.governance.identifiers import is_digest, is_name, is_tag, stamp
from abaton.store import Database, hold

GENESIS = hashlib.sha256(b"abaton-audit-1").hexdigest()
CHECKPOINT = "audit-checkpoint"
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}\Z")
_KEY_ID = re.compile(r"[a-z0-9-]{1,20}:[A-Z2-7]{26}\Z")
_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    Args:
        action: What was done, as a code such as ``consent-withdrawn``.
        outcome: ``done``, or the code for which it was refused.
        actor: The key id or tag of who did it.
        about: The tag of whom it concerns.
        study: The study's identifier.
        detail: More codes, numbers, fingerprints and tags.
    """

    action: str
    outcome: str = "done"
    actor: str = ""
    about: str = ""
    study: str = ""
    detail: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sound = (
            _CODE.match(self.action)
            and _CODE.match(self.outcome)
            and (not self.actor or is_nameless(self.actor))
            and (not self.about or is_tag(self.about))
            and (not self.study or is_name(self.study))
            and all(_CODE.match(key) and is_nameless(value) for key, value in self.detail.items())
        )
        if not sound:
            raise SettingsError(
                "an audit entry would hold more than codes, numbers and tags", remedy="give a tag instead"
            )


def is_nameless(value: object) -> bool:
    """Whether a value can stand in the audit chain: a number, code, tag, key id or fingerprint."""
    if type(value) is int:
        return abs(value) < 2**53
    if not isinstance(value, str):
        return False
    return bool(_CODE.match(value) or _KEY_ID.match(value) or is_digest(value) or is_tag(value))


Row = tuple[int, str, str]


class Audit:
    """The chain of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def append(self, entry: Entry, when: datetime) -> int:
        """Write an entry down and return its number; it is on the disk when this returns."""
        return self.database.write(lambda connection: append_in(connection, entry, when))

    def rows(self, after: int = -1) -> Iterator[Row]:
        """The entries as they lie in the database: number, canonical text, hash."""
        while found := self._after(after):
            yield from found
            after = found[-1][0]

    def _after(self, after: int) -> list[Row]:
        table = schema.audit
        chosen = sql.select(table).where(table.c.sequence > after).order_by(table.c.sequence).limit(_BATCH)
        found = self.database.read(lambda connection: connection.execute(chosen).all())
        return [(row.sequence, row.body, row.hash) for row in found]

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries as they were written."""
        return (json.loads(body) for _, body, _ in self.rows())

    def checkpoint(self, signer: Signer, when: datetime) -> Statement:
        """A signed statement of how long the chain is and how it ends, to be kept by somebody else."""
        head = self.database.read(head_in)
        body = {"length": head.sequence + 1, "hash": head.hash, "at": stamp(when)}
        return state(signer, CHECKPOINT, body)


class Head(NamedTuple):
    """How the chain ends: the number and the hash of its last entry; -1 and a fixed hash while it is empty."""

    sequence: int
    hash: str


def head_in(connection: sql.Connection) -> Head:
    """How the chain ends now. While it stays, nothing that governance keeps has changed."""
    table = schema.audit
    chosen = sql.select(table.c.sequence, table.c.hash).order_by(table.c.sequence.desc()).limit(1)
    last = connection.execute(chosen).first()
    return Head(int(last.sequence), str(last.hash)) if last else Head(-1, GENESIS)


@dataclass(frozen=True, slots=True, init=False)
class Held:
    """Why records may be used, as an audit chain holds it; :func:`held_in` alone makes one, from the chain."""

    words: str
    chain: str


def held_in(connection: sql.Connection, words: str) -> Held:
    """The ground of a use, bound to the chain that has told of it already."""
    head, made = head_in(connection), object.__new__(Held)
    if head.sequence < 0 or not words.strip():
        raise SettingsError("the audit chain holds no ground", remedy="state one, or ask for consent")
    object.__setattr__(made, "words", words)
    object.__setattr__(made, "chain", head.hash)
    return made


def append_in(connection: sql.Connection, entry: Entry, when: datetime) -> int:
    """Write an entry down in a transaction that is already open: both happen, or neither."""
    return append_many(connection, [entry], when)


def append_many(connection: sql.Connection, entries: Iterable[Entry], when: datetime) -> int:
    """Write entries down one after the other in a transaction that is already open; the number of the last one."""
    hold(connection, "audit")
    (sequence, before), at, rows = head_in(connection), stamp(when), []
    for entry in entries:
        sequence += 1
        detail = {key: str(value) if isinstance(value, str) else value for key, value in entry.detail.items()}
        row = {
            "sequence": sequence,
            "at": at,
            "action": str(entry.action),
            "outcome": str(entry.outcome),
            "actor": entry.actor,
            "about": entry.about,
            "study": entry.study,
            "detail": detail,
        }
        body = canonical(row).decode()
        before = chain_hash(before, body.encode())
        rows.append({"sequence": sequence, "body": body, "hash": before})
    if rows:
        connection.execute(schema.audit.insert(), rows)
    return sequence


def chain_hash(before: str, body: bytes) -> str:
    """The hash of an entry: SHA-256 of the hash before it (32 bytes) and its canonical text.

    >>> chain_hash(GENESIS, b"{}")[:8]
    '1b787c26'
    """
    return hashlib.sha256(bytes.fromhex(before) + body).hexdigest()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in the chain that is not as it was written: where, and what."""

    sequence: int
    what: str


def verify(
    rows: Iterable[Row],
    checkpoints: Iterable[Statement] = (),
    find: Callable[[str], Verify | None] = lambda _: None,
) -> list[Fault]:
    """Every place at which the chain was changed, moved, cut or written anew; an empty list if none.

    Args:
        rows: The chain as it lies in the database.
        checkpoints: Signed statements that somebody else kept; without them a chain that was written anew from some
            place on, or cut off at its end, looks sound.
        find: The check of a signing key by its id.
    """
    faults: list[Fault] = []
    kept: dict[int, str] = {}
    for statement in checkpoints:
        body = check(statement, CHECKPOINT, find)
        kept[int(body["length"])] = str(body["hash"])
    expected, before = 0, GENESIS
    ends = {0: GENESIS}
    for sequence, body_text, stored in rows:
        if sequence > expected:
            faults.append(Fault(expected, f"entries {expected} to {sequence - 1} are gone"))
        faults += _faults_of(sequence, body_text, stored, before if sequence == expected else None)
        expected, before = sequence + 1, stored if is_digest(stored) else GENESIS
        if expected in kept:
            ends[expected] = stored
    for length, end in sorted(kept.items()):
        if length > expected:
            faults.append(Fault(expected, f"the chain ends before its checkpoint at {length}"))
        elif ends.get(length) != end:
            faults.append(
                Fault(max(length - 1, 0), f"the chain is not the one of its checkpoint at {length}")
            )
    return sorted(faults, key=lambda fault: fault.sequence)


def _faults_of(sequence: int, body: str, stored: str, before: str | None) -> Iterator[Fault]:
    try:
        row = json.loads(body)
        sound = canonical(row).decode() == body
    except (ValueError, RecursionError, AbatonError):
        sound, row = False, None
    if not sound or not isinstance(row, dict):
        yield Fault(sequence, "the entry is damaged")
    elif row.get("sequence") != sequence:
        yield Fault(sequence, "the entry was moved")
    elif before is not None and (not is_digest(stored) or chain_hash(before, body.encode()) != stored):
        yield Fault(sequence, "the entry was changed")


_TYPE = "http://terminology.hl7.org/CodeSystem/audit-event-type"
_ENTITY = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
_ROLE = "http://terminology.hl7.org/CodeSystem/object-role"
_OURS = "urn:abaton:audit"
_CREATES = ("enrolled", "opted-in", "published", "received", "queued", "added", "started")
_DELETES = ("deleted", "destroyed", "withdrawn", "expired", "opted-out", "left")


def audit_event(entry: Mapping[str, Any], observer: str) -> dict[str, Any]:
    """One entry of the chain as an AuditEvent (R4).

    Args:
        entry: The entry as it was written.
        observer: The name of the service whose chain it is.
    """
    action, done = str(entry["action"]), entry["outcome"] == "done"
    entities = [_entity(1, 1, entry["about"], "subject")] if entry["about"] else []
    if entry["study"]:
        entities.append(_entity(2, 24, entry["study"], "study"))
    details = [{"type": key, "valueString": str(value)} for key, value in sorted(entry["detail"].items())]
    if details:
        entities.append({"what": _identified("entry", str(entry["sequence"])), "detail": details})
    event = {
        "resourceType": "AuditEvent",
        "id": f"audit-{entry['sequence']}",
        "type": {"system": _TYPE, "code": "rest", "display": "RESTful Operation"},
        "subtype": [{"system": _OURS, "code": action}],
        "action": _code(action),
        "recorded": entry["at"],
        "outcome": "0" if done else "4",
        "agent": [{"who": _identified("actor", entry["actor"] or "service"), "requestor": True}],
        "source": {"observer": {"display": observer}},
    }
    if not done:
        event["outcomeDesc"] = entry["outcome"]
    return {**event, "entity": entities} if entities else event


def _code(action: str) -> str:
    if action.endswith(_CREATES):
        return "C"
    return "D" if action.endswith(_DELETES) else "E"


def _entity(kind: int, role: int, value: str, name: str) -> dict[str, Any]:
    return {
        "what": _identified(name, value),
        "type": {"system": _ENTITY, "code": str(kind)},
        "role": {"system": _ROLE, "code": str(role)},
    }


def _identified(name: str, value: str) -> dict[str, Any]:
    return {"identifier": {"system": f"{_OURS}:{name}", "value": value}}
