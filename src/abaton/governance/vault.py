"""Vault: encrypted mapping table from subjects to pseudonyms, readable only with the data controller's private key.

It uses two databases. *Rows* contain subject pseudonym, study pseudonym and the encrypted identity. *Row keys*
contain the key of each row, sealed to the data controller. The service can add rows and read none. Destroying a row
key makes the row unreadable in every copy and backup of the rows, so row keys must not be in the same backups
(``docs/threat-model.md``).

Invariants:
(1) a subject has one row per study; the first one counts;
(2) identity, subject pseudonym and pseudonym of a row cannot be exchanged with another row's (authenticated data);
(3) a row is never changed, only added and destroyed; its key is destroyed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from abaton.canonical_json import to_canonical_json
from abaton.deid.mapping_table import MappingRow
from abaton.deid.pseudonyms import Pseudonyms, encode_base32
from abaton.errors import StoreError
from abaton.governance.keys import KeySet, PublicKey, RandomBytes
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.store import Database, insert_new, mark_version

_PAD_BYTES = 64  # padding hides the length of an identity
_BATCH = 1_000
_INFO = b"abaton-vault-1\0"  # frozen: part of the bytes

_rows_metadata, _keys_metadata = sql.MetaData(), sql.MetaData()

rows = sql.Table(
    "vault_rows",
    _rows_metadata,
    sql.Column("study", sql.Text, primary_key=True),
    sql.Column("subject_pseudonym", sql.Text, primary_key=True),
    sql.Column("pseudonym", sql.Text, nullable=False),
    sql.Column("key", sql.Text, nullable=False),
    sql.Column("sealed", sql.LargeBinary, nullable=False),
    sql.UniqueConstraint("study", "pseudonym"),
)

requests = sql.Table(  # used re-identification requests
    "vault_requests",
    _rows_metadata,
    sql.Column("request", sql.Text, primary_key=True),
    sql.Column("purpose", sql.Text, nullable=False),
    sql.Column("ticket", sql.Text, nullable=False),
    sql.Column("requester", sql.Text, nullable=False),
    sql.Column("approver", sql.Text, nullable=False),
    sql.Column("recorded_at", sql.Text, nullable=False),
)

row_keys = sql.Table(
    "vault_row_keys",
    _keys_metadata,
    sql.Column("key", sql.Text, primary_key=True),
    sql.Column("recipient", sql.Text, nullable=False),
    sql.Column("wrapped", sql.LargeBinary, nullable=False),
)

VERSION = 2
"""2: subject pseudonyms are keyed BLAKE2b; version 1 used another derivation and would assign new pseudonyms."""

for _metadata, _label in ((_rows_metadata, "vault row"), (_keys_metadata, "vault key")):
    mark_version(
        _metadata,
        _label,
        VERSION,
        "re-identify with the version of Abaton that created it, and configure new databases under [vault]",
    )


@dataclass(frozen=True, slots=True)
class SealedRow:
    """Stored row of the vault."""

    study: str
    subject_pseudonym: str
    pseudonym: str
    key: str
    sealed: bytes


class Vault:
    """Mapping table of one site; a :class:`abaton.deid.mapping_table.MappingSink`.

    Args:
        url: Database of the rows.
        keys_url: Database of the row keys; a different one, excluded from the backups of the rows.
        data_controller_key: Public sealing key of the data controller.
        random_bytes: Source of random bytes.
    """

    def __init__(
        self, url: str | Path, keys_url: str | Path, data_controller_key: PublicKey, random_bytes: RandomBytes
    ) -> None:
        self.database = Database(url, _rows_metadata)
        try:
            self.keys = Database(keys_url, _keys_metadata)
        except BaseException:
            self.database.close()
            raise
        self.data_controller_key, self._random_bytes = data_controller_key, random_bytes

    def find(self, study: str, subject_pseudonym: str) -> str | None:
        """Return the pseudonym already assigned to a subject in the vault, if any."""
        selection = sql.select(rows.c.pseudonym).where(
            rows.c.study == study, rows.c.subject_pseudonym == subject_pseudonym
        )
        return self.database.read(lambda connection: connection.scalar(selection))

    def add(self, row: MappingRow) -> str:
        """Store a row in the vault; return the pseudonym that counts: an earlier one of the same subject."""
        return self.add_many([row])[0]

    def add_many(self, added: Iterable[MappingRow]) -> list[str]:
        """Store rows in the vault in one transaction and return the pseudonyms that count, in order."""
        mapping_rows = list(added)
        sealed = [self._seal(row) for row in mapping_rows]
        if not mapping_rows:
            return []
        wrapped = [
            {"key": row.key, "recipient": self.data_controller_key.id, "wrapped": key} for row, key in sealed
        ]
        self.keys.write(lambda connection: connection.execute(row_keys.insert(), wrapped))
        values = [{f: getattr(row, f) for f in row.__slots__} for row, _ in sealed]
        self.database.write(lambda connection: insert_new(connection, rows, values))
        stored_rows = self._stored_rows([row for row, _ in sealed])
        stored = [stored_rows.get((row.study, row.subject_pseudonym)) for row, _ in sealed]
        pairs = zip(sealed, stored, strict=True)
        unused_keys = [
            own_row.key
            for (own_row, _), stored_row in pairs
            if stored_row is None or stored_row[0] != own_row.key
        ]
        self._drop_keys(unused_keys)  # rows added concurrently: these keys open nothing
        if None in stored:
            raise StoreError(
                "a pseudonym was assigned to two subjects", where="vault", remedy="derive another pseudonym"
            )
        return [stored_row[1] for stored_row in stored if stored_row is not None]

    def _stored_rows(self, wanted: list[SealedRow]) -> dict[tuple[str, str], tuple[str, str]]:
        """Return key and pseudonym of the vault's rows, by study and subject pseudonym."""

        def work(connection: sql.Connection) -> dict[tuple[str, str], tuple[str, str]]:
            stored = {}
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                selection = sql.select(
                    rows.c.study, rows.c.subject_pseudonym, rows.c.key, rows.c.pseudonym
                ).where(
                    rows.c.study.in_({row.study for row in batch}),
                    rows.c.subject_pseudonym.in_([row.subject_pseudonym for row in batch]),
                )
                stored.update(
                    {
                        (r.study, r.subject_pseudonym): (r.key, r.pseudonym)
                        for r in connection.execute(selection)
                    }
                )
            return stored

        return self.database.read(work)

    def row(self, study: str, subject_pseudonym: str) -> SealedRow | None:
        """Return a row of the vault by subject pseudonym."""
        return self._select_row((rows.c.study == study) & (rows.c.subject_pseudonym == subject_pseudonym))

    def row_by_pseudonym(self, study: str, pseudonym: str) -> SealedRow | None:
        """Return a row of the vault by study pseudonym."""
        return self._select_row((rows.c.study == study) & (rows.c.pseudonym == pseudonym))

    def count(self, study: str) -> int:
        """Return the number of subjects of a study in the vault."""
        selection = sql.select(sql.func.count()).select_from(rows).where(rows.c.study == study)
        return int(self.database.read(lambda connection: connection.scalar(selection)) or 0)

    def destroy_key(self, study: str, subject_pseudonym: str) -> bool:
        """Destroy the key of a vault row, which makes it unreadable also in backups of the rows."""
        row = self.row(study, subject_pseudonym)
        if row is None:
            return False
        deletion = row_keys.delete().where(row_keys.c.key == row.key)
        deleted = self.keys.write(lambda connection: connection.execute(deletion).rowcount)
        self.keys.scrub(row_keys)
        return bool(deleted)

    def destroy_row(self, study: str, subject_pseudonym: str) -> bool:
        """Delete a vault row whose key is destroyed."""
        deletion = rows.delete().where(rows.c.study == study, rows.c.subject_pseudonym == subject_pseudonym)
        deleted = self.database.write(lambda connection: connection.execute(deletion).rowcount)
        self.database.scrub(rows)
        return bool(deleted)

    def destroy_study(self, study: str) -> int:
        """Destroy all vault rows of a study, keys first; return their number."""
        selection = sql.select(rows.c.key).where(rows.c.study == study)
        key_names = self.database.read(lambda connection: list(connection.scalars(selection)))
        self._drop_keys(key_names)
        self.keys.scrub(row_keys)
        self.database.write(lambda connection: connection.execute(rows.delete().where(rows.c.study == study)))
        self.database.scrub(rows)
        return len(key_names)

    def open(self, row: SealedRow, key_set: KeySet) -> str:
        """Return the identity in a vault row, given the data controller's private keys.

        Only :func:`abaton.governance.reidentification.reidentify` calls this, after checking two signatures.
        """
        selection = sql.select(row_keys.c.recipient, row_keys.c.wrapped).where(row_keys.c.key == row.key)
        row_key = self.keys.read(lambda connection: connection.execute(selection).first())
        if row_key is None:
            raise DeniedError(
                RefusalCode.NOT_FOUND,
                "the row's key was destroyed, so the row is unreadable",
                where="vault",
            )
        key = key_set.opening_key(row_key.recipient).unwrap(row_key.wrapped, _INFO + row.key.encode())
        try:
            padded = AESGCM(key).decrypt(row.sealed[:12], row.sealed[12:], _associated_data(row))
        except (InvalidTag, ValueError):
            raise DeniedError(RefusalCode.TAMPERED, "the row was changed", where="vault") from None
        return padded.rstrip(b"\0").decode()

    def rewrap(self, key_set: KeySet) -> int:
        """Seal all row keys of the vault to the data controller's latest key; return the number of changes."""
        count, latest = 0, key_set.public.sealing_key
        selection = sql.select(row_keys).where(row_keys.c.recipient != latest.id).limit(_BATCH)

        def work(connection: sql.Connection) -> int:
            batch = connection.execute(selection).all()
            for row in batch:
                info = _INFO + row.key.encode()
                wrapped = latest.wrap(key_set.opening_key(row.recipient).unwrap(row.wrapped, info), info)
                update = row_keys.update().where(row_keys.c.key == row.key)
                connection.execute(update.values(recipient=latest.id, wrapped=wrapped))
            return len(batch)

        while changed := self.keys.write(work, lock="rewrap"):
            count += changed
        if count:
            self.keys.scrub(row_keys)
        return count

    def sweep(self) -> int:
        """Delete row keys of the vault without a row, left by a crash; return their number."""
        used = self.database.read(lambda connection: set(connection.scalars(sql.select(rows.c.key))))
        stored = self.keys.read(lambda connection: set(connection.scalars(sql.select(row_keys.c.key))))
        self._drop_keys(sorted(stored - used))
        return len(stored - used)

    def _drop_keys(self, names: list[str]) -> None:
        def work(connection: sql.Connection) -> None:
            for start in range(0, len(names), _BATCH):
                batch = names[start : start + _BATCH]
                connection.execute(row_keys.delete().where(row_keys.c.key.in_(batch)))

        if names:
            self.keys.write(work)

    def close(self) -> None:
        """Close both databases of the vault."""
        self.database.close()
        self.keys.close()

    def _seal(self, row: MappingRow) -> tuple[SealedRow, bytes]:
        key, name, nonce = self._random_bytes(32), self._random_bytes(16).hex(), self._random_bytes(12)
        identity = row.subject.encode()
        padded = identity + bytes(-len(identity) % _PAD_BYTES)
        unsealed = SealedRow(row.study, row.tag, row.pseudonym, name, b"")
        sealed = nonce + AESGCM(key).encrypt(nonce, padded, _associated_data(unsealed))
        wrapped = self.data_controller_key.wrap(key, _INFO + name.encode())
        return SealedRow(row.study, row.tag, row.pseudonym, name, sealed), wrapped

    def _select_row(self, condition: sql.ColumnElement[bool]) -> SealedRow | None:
        query = sql.select(rows).where(condition)
        row = self.database.read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else SealedRow(**row)


def _associated_data(row: SealedRow) -> bytes:
    return to_canonical_json([row.study, row.subject_pseudonym, row.pseudonym, row.key])


def vault_pseudonym(names: Pseudonyms, patient: str, server: str = "") -> str:
    """Return the subject pseudonym of a patient's row in the vault."""
    return encode_base32(
        names.token("tag", encode_base32(names.token("Patient", patient, server)))
    )  # frozen: part of the bytes
