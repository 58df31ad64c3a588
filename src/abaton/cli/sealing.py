"""``abaton seal`` and ``abaton open``: records that only one recipient can read, from a sender who is known."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import typer

from abaton.cli.output import emit, note
from abaton.cli.key_access import DATABASE, JSON, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.errors import SettingsError

_STUDY = typer.Option(
    ..., "--study", help="The study document that the records were made under.", show_default=False
)


def seal(
    source: Path = typer.Argument(
        ..., metavar="IN", help="What to seal: .json and .ndjson are written canonically."
    ),
    target: Path = typer.Argument(..., metavar="OUT", help="The sealed file."),
    *,
    keys: Path = KEYS,
    to: Path = typer.Option(..., "--to", help="The recipient's public key file.", show_default=False),
    study: Path = _STUDY,
    subject_tag: str = typer.Option(
        "", "--subject-tag", help="The tag of the one person inside, if it is one."
    ),
    sequence: int | None = typer.Option(
        None, "--sequence", help="A number never used before; default: the time."
    ),
    as_is: bool = typer.Option(False, "--as-is", help="Seal the bytes as they are."),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Seal a file to a research centre: compressed, encrypted, signed, and bound to the study and its document.

    Memory does not grow with the file; the sealed file appears when it is complete.
    """
    import secrets

    from abaton.governance import Header
    from abaton.governance.keys import read_public
    from abaton.governance.sealed_envelope import canonical_lines, pieces_of, seal_file
    from abaton.governance.identifiers import stamp
    from abaton.study import load_study

    if not source.is_file():
        raise SettingsError("the file cannot be read", where=str(source), remedy="check the path")
    document, recipient = load_study(study), read_public(to).sealing
    sender = ring(keys, passphrase_file, passphrase_env).signing
    number = time.time_ns() // 1_000_000 if sequence is None else sequence
    when = stamp(datetime.now(UTC))
    header = Header(document.study.id, document.hash, sender.id, recipient.id, number, subject_tag, when)
    lines = not as_is and source.suffix in {".json", ".ndjson"}
    content = canonical_lines(source) if lines else pieces_of(source)
    size = seal_file(content, target, header, sender, recipient, secrets.token_bytes(32))
    told = {"study": header.study, "sequence": number, "recipient": recipient.id, "bytes": size}
    emit(told) if json else note(f"sealed {size:,} bytes for {recipient.id}, number {number}")


def open_sealed(
    source: Path = typer.Argument(..., metavar="IN", help="The sealed file."),
    target: Path = typer.Argument(..., metavar="OUT", help="Where its content goes."),
    *,
    keys: Path = KEYS,
    sender: Path = typer.Option(..., "--from", help="The sender's public key file.", show_default=False),
    study: Path = _STUDY,
    url: str | None = DATABASE,
    again: bool = typer.Option(False, "--again", help="Open the very same file once more, as after a crash."),
    limit: int = typer.Option(1 << 40, "--limit", help="The most bytes that the content may have."),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Open a sealed file; the content appears only when all of it is known to be whole, genuine and new.

    Exit code 3: refused (changed, forged, for another study, or opened before).
    """
    from abaton.governance import Denied, Looked, RefusalCode
    from abaton.governance.inbox import use_number
    from abaton.governance.keys import read_public
    from abaton.governance.sealed_envelope import open_file
    from abaton.study import load_study

    document, trusted = load_study(study), read_public(sender)
    opener = ring(keys, passphrase_file, passphrase_env)
    with database(url, make=True) as ledger:

        def accept(looked: Looked) -> None:
            if looked.header.study != document.study.id:
                raise Denied(RefusalCode.WRONG_STUDY, "it was sealed for another study", where=str(source))
            if looked.header.document != document.hash:
                raise Denied(
                    RefusalCode.WRONG_DOCUMENT, "it was made under another document", where=str(source)
                )
            use_number(ledger, looked, datetime.now(UTC), again=again)

        looked = open_file(source, target, opener, trusted.key, accept=accept, limit=limit)
    head = looked.header
    told = {"study": head.study, "sender": head.sender, "sequence": head.sequence, "digest": looked.digest}
    emit(told) if json else note(f"opened number {head.sequence} from {head.sender}")
