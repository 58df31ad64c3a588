"""Hash-chained audit log: what was done, when and with whose key; and its export as FHIR AuditEvent resources.

The hash of each entry covers the previous entry. Invariants:
(1) entries are numbered from 0 without gaps, also with concurrent writers;
(2) an entry is written in the transaction of the action it records, or before it;
(3) an entry contains codes, numbers, digests and pseudonyms, and nothing that names a person;
(4) with a signed checkpoint, any change, move or removal of earlier entries is detected.
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

from abaton.canonical_json import to_canonical_json
from abaton.errors import AbatonError, SettingsError
from abaton.governance import schema
from abaton.governance.identifiers import is_digest, is_name, is_pseudonym
from abaton.governance.signed_statements import (
    Statement,
    StatementSigner,
    Verify,
    sign_statement,
    verify_statement,
)
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database, acquire_lock

GENESIS = hashlib.sha256(b"abaton-audit-1").hexdigest()
CHECKPOINT = "audit-checkpoint"
_CODE = re.compile(r"[a-z][a-z0-9-]{0,39}\Z")
_KEY_ID = re.compile(r"[a-z0-9-]{1,20}:[A-Z2-7]{26}\Z")
_BATCH_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log.

    Args:
        action: Code of the action, such as ``consent-withdrawn``.
        outcome: ``done``, or the code of the refusal.
        actor: Key id or pseudonym of the actor.
        subject: Registry pseudonym of the subject concerned.
        study: Identifier of the study.
        detail: Further codes, numbers, digests and pseudonyms.
    """

    action: str
    outcome: str = "done"
    actor: str = ""
    subject: str = ""
    study: str = ""
    detail: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_valid = (
            _CODE.match(self.action)
            and _CODE.match(self.outcome)
            and (not self.actor or is_identifier_free(self.actor))
            and (not self.subject or is_pseudonym(self.subject))
            and (not self.study or is_name(self.study))
            and all(_CODE.match(key) and is_identifier_free(value) for key, value in self.detail.items())
        )
        if not is_valid:
            raise SettingsError(
                f"the audit entry '{self.action}' contains text that may identify a person",
                remedy="use codes, numbers, digests and pseudonyms only",
            )


def is_identifier_free(value: object) -> bool:
    """Return whether a value may be in the audit log: a number, code, pseudonym, key id or digest."""
    if type(value) is int:
        return abs(value) < 2**53
    if not isinstance(value, str):
        return False
    return bool(_CODE.match(value) or _KEY_ID.match(value) or is_digest(value) or is_pseudonym(value))


Row = tuple[int, str, str]


class AuditLog:
    """Audit log of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def append(self, entry: AuditEntry, when: datetime) -> int:
        """Append an entry to the audit log and return its number; it is on disk when this returns."""
        return self.database.write(lambda connection: append_in(connection, entry, when))

    def rows(self, after: int = -1) -> Iterator[Row]:
        """Yield the stored entries of the audit log: number, canonical text, hash."""
        while batch := self._after(after):
            yield from batch
            after = batch[-1][0]

    def _after(self, after: int) -> list[Row]:
        table = schema.audit
        selection = (
            sql.select(table).where(table.c.sequence > after).order_by(table.c.sequence).limit(_BATCH_ROWS)
        )
        batch = self.database.read(lambda connection: connection.execute(selection).all())
        return [(row.sequence, row.body, row.hash) for row in batch]

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the audit log as JSON objects."""
        return (json.loads(body) for _, body, _ in self.rows())

    def checkpoint(self, signer: StatementSigner, when: datetime) -> Statement:
        """Return a signed checkpoint of the audit log: length and last hash, to be kept by a second party."""
        head = self.database.read(head_in)
        body = {"length": head.sequence + 1, "hash": head.hash, "at": to_timestamp(when)}
        return sign_statement(signer, CHECKPOINT, body)


class AuditHead(NamedTuple):
    """Number and hash of the last entry; -1 and a fixed hash while the log is empty."""

    sequence: int
    hash: str


def head_in(connection: sql.Connection) -> AuditHead:
    """Return number and hash of the audit log's last entry; while unchanged, no governance data have changed."""
    table = schema.audit
    selection = sql.select(table.c.sequence, table.c.hash).order_by(table.c.sequence.desc()).limit(1)
    last = connection.execute(selection).first()
    return AuditHead(int(last.sequence), str(last.hash)) if last else AuditHead(-1, GENESIS)


@dataclass(frozen=True, slots=True, init=False)
class AuditedLegalBasis:
    """Legal basis with the hash of the audit log that records it; only :func:`audited_basis_in` creates one."""

    text: str
    audit_hash: str


def audited_basis_in(connection: sql.Connection, text: str) -> AuditedLegalBasis:
    """Return a legal basis that the audit log already records, with the current hash of the log."""
    head, basis = head_in(connection), object.__new__(AuditedLegalBasis)
    if head.sequence < 0 or not text.strip():
        raise SettingsError(
            "the audit log records no legal basis", remedy="state a legal basis, or obtain consent"
        )
    object.__setattr__(basis, "text", text)
    object.__setattr__(basis, "audit_hash", head.hash)
    return basis


def append_in(connection: sql.Connection, entry: AuditEntry, when: datetime) -> int:
    """Append an entry to the audit log inside an open transaction."""
    return append_many(connection, [entry], when)


def append_many(connection: sql.Connection, entries: Iterable[AuditEntry], when: datetime) -> int:
    """Append entries to the audit log inside an open transaction; return the number of the last one."""
    acquire_lock(connection, "audit")
    (sequence, previous_hash), timestamp, rows = head_in(connection), to_timestamp(when), []
    for entry in entries:
        sequence += 1
        detail = {key: str(value) if isinstance(value, str) else value for key, value in entry.detail.items()}
        row = {
            "sequence": sequence,
            "at": timestamp,
            "action": str(entry.action),
            "outcome": str(entry.outcome),
            "actor": entry.actor,
            "about": entry.subject,  # frozen: part of the bytes
            "study": entry.study,
            "detail": detail,
        }
        body = to_canonical_json(row).decode()
        previous_hash = chain_hash(previous_hash, body.encode())
        rows.append({"sequence": sequence, "body": body, "hash": previous_hash})
    if rows:
        connection.execute(schema.audit.insert(), rows)
    return sequence


def chain_hash(previous_hash: str, body: bytes) -> str:
    """Return the hash of an audit log entry: SHA-256 of the previous hash (32 bytes) and its canonical text.

    >>> chain_hash(GENESIS, b"{}")[:8]
    '1b787c26'
    """
    return hashlib.sha256(bytes.fromhex(previous_hash) + body).hexdigest()


@dataclass(frozen=True, slots=True)
class AuditFault:
    """Damaged position of the audit log."""

    sequence: int
    problem: str


def verify(
    rows: Iterable[Row],
    checkpoints: Iterable[Statement] = (),
    find: Callable[[str], Verify | None] = lambda _: None,
) -> list[AuditFault]:
    """Return the positions at which the audit log was changed, reordered, truncated or rewritten; empty if none.

    Args:
        rows: The log as stored.
        checkpoints: Signed statements kept by a second party; without them a truncated or rewritten end is not
            detected.
        find: Returns the verification function of a signing key by id.
    """
    faults: list[AuditFault] = []
    checkpoint_hashes: dict[int, str] = {}
    for statement in checkpoints:
        body = verify_statement(statement, CHECKPOINT, find)
        checkpoint_hashes[int(body["length"])] = str(body["hash"])
    expected, previous_hash = 0, GENESIS
    hashes = {0: GENESIS}
    for sequence, body_text, entry_hash in rows:
        if sequence > expected:
            faults.append(AuditFault(expected, f"entries {expected} to {sequence - 1} are missing"))
        faults += _entry_faults(
            sequence, body_text, entry_hash, previous_hash if sequence == expected else None
        )
        expected, previous_hash = sequence + 1, entry_hash if is_digest(entry_hash) else GENESIS
        if expected in checkpoint_hashes:
            hashes[expected] = entry_hash
    for length, expected_hash in sorted(checkpoint_hashes.items()):
        if length > expected:
            faults.append(AuditFault(expected, f"the log ends before its checkpoint at {length}"))
        elif hashes.get(length) != expected_hash:
            faults.append(AuditFault(max(length - 1, 0), f"the log differs from its checkpoint at {length}"))
    return sorted(faults, key=lambda fault: fault.sequence)


def _entry_faults(
    sequence: int, body: str, entry_hash: str, previous_hash: str | None
) -> Iterator[AuditFault]:
    try:
        row = json.loads(body)
        is_canonical = to_canonical_json(row).decode() == body
    except (ValueError, RecursionError, AbatonError):
        is_canonical, row = False, None
    if not is_canonical or not isinstance(row, dict):
        yield AuditFault(sequence, "the entry is damaged")
    elif row.get("sequence") != sequence:
        yield AuditFault(sequence, "the entry was moved")
    elif previous_hash is not None and (
        not is_digest(entry_hash) or chain_hash(previous_hash, body.encode()) != entry_hash
    ):
        yield AuditFault(sequence, "the entry was changed")


_TYPE = "http://terminology.hl7.org/CodeSystem/audit-event-type"
_ENTITY = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
_ROLE = "http://terminology.hl7.org/CodeSystem/object-role"
_OURS = "urn:abaton:audit"
_CREATES = ("enrolled", "opted-in", "published", "received", "queued", "added", "started")
_DELETES = ("deleted", "destroyed", "withdrawn", "expired", "opted-out", "left")


def audit_event(entry: Mapping[str, Any], observer: str) -> dict[str, Any]:
    """Return an entry of the audit log as a FHIR R4 AuditEvent.

    Args:
        entry: The entry as a JSON object.
        observer: Name of the service that wrote the log.
    """
    action, is_done = str(entry["action"]), entry["outcome"] == "done"
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
        "outcome": "0" if is_done else "4",
        "agent": [{"who": _identified("actor", entry["actor"] or "service"), "requestor": True}],
        "source": {"observer": {"display": observer}},
    }
    if not is_done:
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
