"""The vault: the mapping table from people to pseudonyms, which only the data controller's private key can read.

It lives in two databases of its own. *Rows* hold tag, pseudonym and the identity, encrypted under a key of its own.
*Row keys* hold those keys, each sealed to the data controller's public key. The service can add to both and read
neither. Destroying a row key makes the row unreadable at once, in every copy and backup of the rows; so the row keys
must not be in the backups of the rows (``docs/threat-model.md``).

Invariants:
(1) a person has one row in a study; whoever comes first wins;
(2) identity, tag and pseudonym of a row cannot be exchanged for those of another (authenticated data);
(3) a row is never changed, only added and destroyed; its key is destroyed first.

Re-identification: one person, for a stated purpose, by two people, and never unseen.

The data controller signs a request that names one pseudonym, the purpose, a ticket and how long it holds. A second
person signs an approval of exactly that request. The holder of the controller's private key then gets the answer,
after the audit entry is on the disk. A request counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from abaton.canonical_json import canonical, digest
from abaton.deid.mapping_table import MappingRow
from abaton.deid.pseudonyms import Pseudonyms, letters
from abaton.errors import SettingsError, StoreError
from abaton.governance.audit_log import Audit, Entry
from abaton.governance.identifiers import Denied, RefusalCode, first_moment, is_name, stamp
from abaton.governance.keys import Draw, PublicKey, Ring
from abaton.governance.senders import Sender, SenderRole, Senders
from abaton.governance.signed_statements import Signer, Statement, check, state
from abaton.store import Database, insert_new, mark_version

_PAD = 64  # identities of different lengths look alike
_BATCH = 1_000
_INFO = b"abaton-vault-1\0"

_rows_metadata, _keys_metadata = sql.MetaData(), sql.MetaData()

rows = sql.Table(
    "vault_rows",
    _rows_metadata,
    sql.Column("study", sql.Text, primary_key=True),
    sql.Column("tag", sql.Text, primary_key=True),
    sql.Column("pseudonym", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    sql.Column("sealed", sql.LargeBinary, nullable=False),
    sql.UniqueConstraint("study", "pseudonym"),
)

requests = sql.Table(  # re-identifications that were asked for: each once
    "vault_requests",
    _rows_metadata,
    sql.Column("request", sql.Text, primary_key=True),
    sql.Column("purpose", sql.Text, nullable=False),
    sql.Column("ticket", sql.Text, nullable=False),
    sql.Column("requester", sql.Text, nullable=False),
    sql.Column("approver", sql.Text, nullable=False),
    sql.Column("at", sql.Text, nullable=False),
)

row_keys = sql.Table(
    "vault_row_keys",
    _keys_metadata,
    sql.Column("key", sql.Text, primary_key=True),
    sql.Column("recipient", sql.Text, nullable=False),
    sql.Column("wrapped", sql.LargeBinary, nullable=False),
)

VERSION = 2
"""2: people are found by keyed BLAKE2b. A vault of version 1 would find nobody and name everybody anew."""

for _metadata, _what in ((_rows_metadata, "vault row"), (_keys_metadata, "vault key")):
    mark_version(
        _metadata,
        _what,
        VERSION,
        "re-identify with the version of Abaton that made it, and name new places under [vault]",
    )


@dataclass(frozen=True, slots=True)
class SealedRow:
    """A row as it lies in the vault."""

    study: str
    tag: str
    pseudonym: str
    key: str
    sealed: bytes


class Vault:
    """The mapping table of one site; a :class:`abaton.deid.mapping_table.MappingSink`.

    Args:
        url: The database of the rows.
        keys_url: The database of the row keys; another one, kept out of the backups of the rows.
        controller: The data controller's public sealing key.
        draw: A source of random bytes.
    """

    def __init__(self, url: str | Path, keys_url: str | Path, controller: PublicKey, draw: Draw) -> None:
        self.database = Database(url, _rows_metadata)
        try:
            self.keys = Database(keys_url, _keys_metadata)
        except BaseException:
            self.database.close()
            raise
        self.controller, self._draw = controller, draw

    def find(self, study: str, tag: str) -> str | None:
        """The new identity already given to a person, if any."""
        chosen = sql.select(rows.c.pseudonym).where(rows.c.study == study, rows.c.tag == tag)
        return self.database.read(lambda connection: connection.scalar(chosen))

    def add(self, row: MappingRow) -> str:
        """Keep a row and return the identity that counts: an earlier one for the same person wins."""
        return self.add_many([row])[0]

    def add_many(self, added: Iterable[MappingRow]) -> list[str]:
        """Keep many rows in one go; the identities that count, in the same order."""
        given = list(added)
        sealed = [self._seal(row) for row in given]
        if not given:
            return []
        wrapped = [{"key": row.key, "recipient": self.controller.id, "wrapped": key} for row, key in sealed]
        self.keys.write(lambda connection: connection.execute(row_keys.insert(), wrapped))
        values = [{f: getattr(row, f) for f in row.__slots__} for row, _ in sealed]
        self.database.write(lambda connection: insert_new(connection, rows, values))
        there = self._there([row for row, _ in sealed])
        kept = [there.get((row.study, row.tag)) for row, _ in sealed]
        pairs = zip(sealed, kept, strict=True)
        lost = [ours.key for (ours, _), found in pairs if found is None or found[0] != ours.key]
        self._drop_keys(lost)  # somebody was quicker: these keys open nothing
        if None in kept:
            raise StoreError("a pseudonym was given to two people", where="vault", remedy="issue another one")
        return [found[1] for found in kept if found is not None]

    def _there(self, wanted: list[SealedRow]) -> dict[tuple[str, str], tuple[str, str]]:
        """Key and pseudonym of the rows that are there, by study and tag."""

        def work(connection: sql.Connection) -> dict[tuple[str, str], tuple[str, str]]:
            found = {}
            for start in range(0, len(wanted), _BATCH):
                part = wanted[start : start + _BATCH]
                chosen = sql.select(rows.c.study, rows.c.tag, rows.c.key, rows.c.pseudonym).where(
                    rows.c.study.in_({row.study for row in part}), rows.c.tag.in_([row.tag for row in part])
                )
                found.update({(r.study, r.tag): (r.key, r.pseudonym) for r in connection.execute(chosen)})
            return found

        return self.database.read(work)

    def row(self, study: str, tag: str) -> SealedRow | None:
        """A row by its person's tag."""
        return self._one((rows.c.study == study) & (rows.c.tag == tag))

    def row_of(self, study: str, pseudonym: str) -> SealedRow | None:
        """A row by its pseudonym."""
        return self._one((rows.c.study == study) & (rows.c.pseudonym == pseudonym))

    def count(self, study: str) -> int:
        """How many people a study has in the vault."""
        chosen = sql.select(sql.func.count()).select_from(rows).where(rows.c.study == study)
        return int(self.database.read(lambda connection: connection.scalar(chosen)) or 0)

    def destroy_key(self, study: str, tag: str) -> bool:
        """Destroy the key of a row: from now on nobody can read it, not even from a backup of the rows."""
        row = self.row(study, tag)
        if row is None:
            return False
        chosen = row_keys.delete().where(row_keys.c.key == row.key)
        found = self.keys.write(lambda connection: connection.execute(chosen).rowcount)
        self.keys.scrub(row_keys)
        return bool(found)

    def destroy_row(self, study: str, tag: str) -> bool:
        """Delete a row whose key is destroyed."""
        chosen = rows.delete().where(rows.c.study == study, rows.c.tag == tag)
        found = self.database.write(lambda connection: connection.execute(chosen).rowcount)
        self.database.scrub(rows)
        return bool(found)

    def destroy_study(self, study: str) -> int:
        """Destroy everything of a study, keys first. How many rows there were."""
        chosen = sql.select(rows.c.key).where(rows.c.study == study)
        names = self.database.read(lambda connection: list(connection.scalars(chosen)))
        self._drop_keys(names)
        self.keys.scrub(row_keys)
        self.database.write(lambda connection: connection.execute(rows.delete().where(rows.c.study == study)))
        self.database.scrub(rows)
        return len(names)

    def open(self, row: SealedRow, ring: Ring) -> str:
        """The identity in a row, for the holder of the controller's private key.

        Only :func:`reidentify` calls this: it asks for two signatures first.
        """
        chosen = sql.select(row_keys.c.recipient, row_keys.c.wrapped).where(row_keys.c.key == row.key)
        found = self.keys.read(lambda connection: connection.execute(chosen).first())
        if found is None:
            raise Denied(
                RefusalCode.NOT_FOUND,
                "the row's key was destroyed: nobody can read it any more",
                where="vault",
            )
        key = ring.opening(found.recipient).unwrap(found.wrapped, _INFO + row.key.encode())
        try:
            padded = AESGCM(key).decrypt(row.sealed[:12], row.sealed[12:], _about(row))
        except (InvalidTag, ValueError):
            raise Denied(RefusalCode.TAMPERED, "the row was changed", where="vault") from None
        return padded.rstrip(b"\0").decode()

    def rewrap(self, ring: Ring) -> int:
        """Seal every row key to the controller's newest key; goes on where it was stopped. How many were changed."""
        count, newest = 0, ring.public.sealing
        chosen = sql.select(row_keys).where(row_keys.c.recipient != newest.id).limit(_BATCH)

        def work(connection: sql.Connection) -> int:
            found = connection.execute(chosen).all()
            for row in found:
                info = _INFO + row.key.encode()
                wrapped = newest.wrap(ring.opening(row.recipient).unwrap(row.wrapped, info), info)
                this = row_keys.update().where(row_keys.c.key == row.key)
                connection.execute(this.values(recipient=newest.id, wrapped=wrapped))
            return len(found)

        while changed := self.keys.write(work, lock="rewrap"):
            count += changed
        if count:
            self.keys.scrub(row_keys)
        return count

    def sweep(self) -> int:
        """Delete row keys that belong to no row, as a crash may leave behind. How many there were."""
        used = self.database.read(lambda connection: set(connection.scalars(sql.select(rows.c.key))))
        there = self.keys.read(lambda connection: set(connection.scalars(sql.select(row_keys.c.key))))
        self._drop_keys(sorted(there - used))
        return len(there - used)

    def _drop_keys(self, names: list[str]) -> None:
        def work(connection: sql.Connection) -> None:
            for start in range(0, len(names), _BATCH):
                part = names[start : start + _BATCH]
                connection.execute(row_keys.delete().where(row_keys.c.key.in_(part)))

        if names:
            self.keys.write(work)

    def close(self) -> None:
        """Let go of both databases."""
        self.database.close()
        self.keys.close()

    def _seal(self, row: MappingRow) -> tuple[SealedRow, bytes]:
        key, name, nonce = self._draw(32), self._draw(16).hex(), self._draw(12)
        identity = row.subject.encode()
        padded = identity + bytes(-len(identity) % _PAD)
        bare = SealedRow(row.study, row.tag, row.pseudonym, name, b"")
        sealed = nonce + AESGCM(key).encrypt(nonce, padded, _about(bare))
        wrapped = self.controller.wrap(key, _INFO + name.encode())
        return SealedRow(row.study, row.tag, row.pseudonym, name, sealed), wrapped

    def _one(self, chosen: sql.ColumnElement[bool]) -> SealedRow | None:
        query = sql.select(rows).where(chosen)
        found = self.database.read(lambda connection: connection.execute(query).mappings().first())
        return None if found is None else SealedRow(**found)


def _about(row: SealedRow) -> bytes:
    return canonical([row.study, row.tag, row.pseudonym, row.key])


def row_tag(names: Pseudonyms, patient: str, server: str = "") -> str:
    """The tag under which a patient's row lies in the vault."""
    return letters(names.token("tag", letters(names.token("Patient", patient, server))))


REQUEST = "reidentification-request"
APPROVAL = "reidentification-approval"
LONGEST = timedelta(days=7)
_TICKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,39}\Z")


class VaultPurpose(StrEnum):
    """Why a person may be re-identified."""

    INCIDENTAL_FINDING = "incidental-finding"
    SAFETY = "safety"
    SUBJECT_REQUEST = "subject-request"
    LEGAL_OBLIGATION = "legal-obligation"
    DATA_QUALITY = "data-quality"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for."""

    study: str
    pseudonym: str
    purpose: VaultPurpose
    ticket: str

    def __post_init__(self) -> None:
        sound = is_name(self.study) and is_name(self.pseudonym) and len(self.pseudonym) <= 64
        if not sound or not _TICKET.match(self.ticket):
            raise SettingsError(
                "a request names a study, a pseudonym and a ticket",
                remedy="a ticket has up to 40 letters and digits",
            )


def request(signer: Signer, wish: Wish, when: datetime, lasts: timedelta = timedelta(days=1)) -> Statement:
    """The data controller asks who is behind one pseudonym."""
    if not timedelta() < lasts <= LONGEST:
        raise SettingsError("a request lasts at most seven days", remedy="ask for less")
    body = {
        "role": SenderRole.CONTROLLER.value,
        "study": wish.study,
        "pseudonym": wish.pseudonym,
        "purpose": wish.purpose.value,
        "ticket": wish.ticket,
        "at": stamp(when),
        "until": stamp(when + lasts),
    }
    return state(signer, REQUEST, body)


def approve(signer: Signer, asked: Statement, when: datetime) -> Statement:
    """A second person approves exactly this request."""
    return state(signer, APPROVAL, {"request": digest(asked), "at": stamp(when)})


def reidentify(
    vault: Vault,
    audit: Audit,
    senders: Senders,
    ring: Ring,
    asked: Statement,
    approved: Statement,
    when: datetime,
) -> str:
    """Who is behind a pseudonym; the audit entry is written before the answer is known.

    Args:
        vault: The mapping table.
        audit: The chain that must tell of it.
        senders: The register in which the roles of the two people stand.
        ring: The data controller's private keys.
        asked: The signed request.
        approved: The signed approval of a second person.
        when: The time now.
    """
    seen = digest(asked) if isinstance(asked, dict) else ""
    requester = str(asked.get("signer", "")) if isinstance(asked, dict) else ""
    try:
        wish, people = _allowed(senders, asked, approved, when)
        row = vault.row_of(wish.study, wish.pseudonym)
        if row is None:
            raise Denied(RefusalCode.NOT_FOUND, "there is no such pseudonym in this study", where="vault")
        _use_once(vault, seen, wish, people, when)
    except Denied as error:
        known = requester if senders.owner(requester) else ""
        audit.append(Entry("subject-reidentified", error.code.value, actor=known), when)
        raise
    audit.append(_entry(seen, wish, people, row), when)
    return vault.open(row, ring)


def _entry(seen: str, wish: Wish, people: tuple[Sender, Sender], row: SealedRow) -> Entry:
    requester, approver = people
    detail = {"request": seen, "purpose": wish.purpose.value, "approver": approver.ring.signing.id}
    return Entry(
        "subject-reidentified",
        actor=requester.ring.signing.id,
        about=row.tag,
        study=wish.study,
        detail=detail,
    )


def _allowed(
    senders: Senders, asked: Statement, approved: Statement, when: datetime
) -> tuple[Wish, tuple[Sender, Sender]]:
    requester = _Signed(senders, SenderRole.CONTROLLER)
    approver = _Signed(senders, SenderRole.APPROVER, SenderRole.CONTROLLER)
    body = check(asked, REQUEST, requester)
    approval = check(approved, APPROVAL, approver)
    if approval.get("request") != digest(asked):
        raise Denied(
            RefusalCode.NOT_APPROVED, "the approval is for another request", where="re-identification"
        )
    first, second = requester.who(), approver.who()
    if first.name == second.name or body.get("role") != SenderRole.CONTROLLER.value:
        raise Denied(RefusalCode.NOT_APPROVED, "one person cannot ask and approve", where="re-identification")
    start, end = first_moment(body.get("at")), first_moment(body.get("until"))
    if start is None or end is None or not start <= when < end or end - start > LONGEST:
        raise Denied(RefusalCode.EXPIRED, "the request does not hold now", where="re-identification")
    return _wish(body), (first, second)


def _wish(body: dict[str, Any]) -> Wish:
    try:
        return Wish(body["study"], body["pseudonym"], VaultPurpose(body["purpose"]), body["ticket"])
    except (KeyError, TypeError, ValueError, SettingsError):
        raise Denied(
            RefusalCode.MALFORMED, "the request does not say all it must", where="re-identification"
        ) from None


def _use_once(vault: Vault, seen: str, wish: Wish, people: tuple[Sender, Sender], when: datetime) -> None:
    values = {
        "request": seen,
        "purpose": wish.purpose.value,
        "ticket": wish.ticket,
        "requester": people[0].ring.signing.id,
        "approver": people[1].ring.signing.id,
        "at": stamp(when),
    }

    def work(connection: sql.Connection) -> bool:
        known = connection.scalar(sql.select(requests.c.request).where(requests.c.request == seen))
        if known is None:
            connection.execute(requests.insert().values(**values))
        return known is None

    if not vault.database.write(work, lock=f"request/{seen}"):
        raise Denied(RefusalCode.REPLAYED, "this request was answered already", where="re-identification")


class _Signed:
    """Looks a signing key up among people of some roles, and remembers whose it was."""

    def __init__(self, senders: Senders, *roles: SenderRole) -> None:
        self.senders, self.roles, self.key = senders, roles, ""

    def __call__(self, key_id: str) -> Any:
        found = self.senders.signing(key_id, *self.roles)
        self.key = key_id
        return None if found is None else found.verify

    def who(self) -> Sender:
        found = self.senders.owner(self.key)
        assert found is not None
        return found
