"""Sealed files: written and opened whole or not at all, however large they are.

The receiver's ledger: which numbers of which senders were used, so that nothing is taken in twice unnoticed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import sqlalchemy as sql

from abaton.canonical import canonical
from abaton.errors import Refused, SettingsError
from abaton.files import replacing
from abaton.governance import schema
from abaton.governance.audit import Entry, append_in
from abaton.governance.keys import PrivateKey, PublicKey, Ring
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.sealing import MOST_CONTENT, Find, Header, Looked, look, opened, seal
from abaton.store import Database

_PIECE = 1 << 18
_LONGEST_LINE = 1 << 28


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, a quarter of a megabyte at a time."""
    try:
        with path.open("rb") as file:
            yield from pieces_in(file)
    except OSError as error:
        raise SettingsError(
            "the file cannot be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def pieces_in(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes of an open file, a quarter of a megabyte at a time."""
    while piece := file.read(_PIECE):
        yield piece


def canonical_lines(path: Path) -> Iterator[bytes]:
    """The records of a file, one line each in the one form that stands for their content."""
    with path.open("rb") as file:
        if path.suffix == ".json":
            yield canonical(_json(file.read(), path, 1)) + b"\n"
            return
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if line.strip():
                yield canonical(_json(line, path, number)) + b"\n"


def _json(raw: bytes, path: Path, line: int) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(
            "this is not JSON",
            where=f"{path.name}, line {line}",
            remedy="mend it, or seal the file with --as-is",
        ) from None


def seal_file(
    content: Iterable[bytes],
    target: Path,
    header: Header,
    signer: PrivateKey,
    recipient: PublicKey,
    content_key: bytes,
) -> int:
    """Seal content into a file and return its size; the file is there only when it is complete and on the disk."""
    size = 0
    with appearing(target) as file:
        for piece in seal(content, header, signer, recipient, content_key):
            size += file.write(piece)
    return size


def open_file(
    source: Path,
    target: Path,
    ring: Ring,
    find: Find,
    *,
    accept: Callable[[Looked], object],
    limit: int = MOST_CONTENT,
) -> Looked:
    """Open a sealed file; nothing is under the target's name until all of it is known to be whole and genuine.

    Args:
        source: The sealed file.
        target: Where the content goes.
        ring: The recipient's keys.
        find: The sender's key by its id.
        accept: Called once all is verified, before the content appears; it raises to refuse (replays, wrong study).
        limit: The most bytes that the content may have.
    """
    looked = look(pieces_of(source), find)
    with appearing(target) as file:
        stream = opened(pieces_of(source), ring, find, limit=limit)
        next(stream)
        for piece in stream:
            assert isinstance(piece, bytes)
            file.write(piece)
        accept(looked)
    return looked


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete, readable by its owner alone."""
    try:
        with replacing(target, mode=0o600) as begun, begun.open("wb") as file:
            yield file
        sync_folder(target.parent)
    except OSError as error:
        raise SettingsError(
            "the file was not written", where=str(target), remedy=error.strerror or "choose another place"
        ) from None


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def use_number(database: Database, looked: Looked, when: datetime, *, again: bool = False) -> None:
    """Enter an envelope's number in the ledger; a number that was used before is refused as a replay.

    Args:
        database: The governance database of the receiver.
        looked: The envelope, checked.
        when: The time now.
        again: Whether the very same envelope may be opened once more, as after a crash.
    """
    head, table = looked.header, schema.ledger
    key = {"sender": head.sender, "study": head.study, "sequence": head.sequence}

    def work(connection: sql.Connection) -> None:
        chosen = sql.select(table.c.digest).where(*(table.c[name] == value for name, value in key.items()))
        known = connection.scalar(chosen)
        if known is not None and not (again and known == looked.digest):
            raise Denied(RefusalCode.REPLAYED, "this sender has used this number already", where="ledger")
        if known is None:
            connection.execute(table.insert().values(**key, digest=looked.digest, receipt=""))
        entry = Entry(
            "envelope-opened", actor=head.sender, study=head.study, detail={"digest": looked.digest}
        )
        append_in(connection, entry, when)

    database.write(work, lock=f"ledger/{head.sender}/{head.study}")
