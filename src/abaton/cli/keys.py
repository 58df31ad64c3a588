"""``abaton keys``, ``abaton seal`` and ``abaton open``."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli import membership
from abaton.cli.key_access import (
    DATABASE,
    JSON,
    KEYS,
    PASSPHRASE_ENV,
    PASSPHRASE_FILE,
    database,
    open_key_set,
    passphrase,
)
from abaton.cli.output import emit, note, table
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import PublicKeySet


app = typer.Typer(
    help="Create, rotate and register keys; invite, admit and revoke sites.", no_args_is_help=True
)
for command in (membership.invite, membership.admit, membership.revoke):
    app.command()(command)

_FILE = typer.Argument(..., metavar="FILE", help="Private key file", show_default=False)
_PUBLIC = typer.Option(None, "--public", help="Also write the public keys to this file")
_HYBRID = typer.Option(False, "--hybrid", help="Seal with X25519 and ML-KEM-768, against quantum computers")


@app.command()
def new(
    file: Path = _FILE,
    *,
    name: str = typer.Option(..., "--name", help="Name of the owner, such as the site"),
    public: Path | None = _PUBLIC,
    hybrid: bool = _HYBRID,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Create a key set; private keys are encrypted with a passphrase in a file that only you can read."""
    import secrets

    from abaton.governance import KeySet
    from abaton.governance.key_files import encrypt_key_set, write_key_set, write_public
    from abaton.governance.timestamps import to_timestamp

    key_set = KeySet.new(name, secrets.token_bytes, to_timestamp(datetime.now(UTC)), hybrid=hybrid)
    content = encrypt_key_set(
        key_set, passphrase(passphrase_file, passphrase_env, confirm=True), secrets.token_bytes
    )
    write_key_set(file, content)
    if public is not None:
        write_public(public, key_set.public)
    _show(key_set.public, json=json)


@app.command()
def show(
    file: Path = typer.Argument(..., metavar="FILE", help="Public or private key file", show_default=False),
    *,
    json: bool = JSON,
) -> None:
    """Show the fingerprints of keys for comparison with their owner; no passphrase is needed."""
    from abaton.governance.key_files import read_public

    _show(read_public(file), json=json)


@app.command()
def rotate(
    file: Path = _FILE,
    *,
    public: Path | None = _PUBLIC,
    hybrid: bool = _HYBRID,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Replace the keys of a key set; old sealing keys are kept to open earlier envelopes.

    The change is signed by the old and the new signing key, so owners of the old public keys can verify it.
    """
    import secrets

    from abaton.governance.key_files import (
        encrypt_key_set,
        read_key_set,
        read_public,
        write_key_set,
        write_public,
    )
    from abaton.governance.timestamps import to_timestamp

    read_public(file)
    phrase = passphrase(passphrase_file, passphrase_env)
    key_set = read_key_set(file, phrase).rotate(
        secrets.token_bytes, to_timestamp(datetime.now(UTC)), hybrid=hybrid
    )
    write_key_set(file, encrypt_key_set(key_set, phrase, secrets.token_bytes), replace=True)
    if public is not None:
        write_public(public, key_set.public, replace=True)
    _show(key_set.public, json=json)


@app.command("export-signer")
def export_signer(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Write to this file, with the same passphrase"),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Write a key file with the signing key only, for a server that signs receipts."""
    import secrets

    from abaton.governance.key_files import encrypt_key_set, read_key_set, read_public, write_key_set

    read_public(file)
    phrase = passphrase(passphrase_file, passphrase_env)
    write_key_set(
        out, encrypt_key_set(read_key_set(file, phrase).signing_only(), phrase, secrets.token_bytes)
    )


@app.command()
def export(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Write the public keys to this file"),
) -> None:
    """Write the public keys of a key file."""
    from abaton.governance.key_files import read_public, write_public

    write_public(out, read_public(file), replace=True)


@app.command()
def register(
    file: Path = typer.Argument(..., metavar="FILE", help="Public key file", show_default=False),
    *,
    role: str = typer.Option(..., "--role", help="Role: site, centre, data_controller, approver or witness"),
    url: str | None = DATABASE,
) -> None:
    """Register the public keys of a sender; compare the fingerprints with their owner first."""
    from abaton.errors import SettingsError
    from abaton.governance import SenderRegistry, SenderRole
    from abaton.governance.key_files import read_public

    roles = [
        member.value for member in SenderRole if member is not SenderRole.CITIZEN
    ]  # citizens enrol themselves
    if role not in roles:
        raise SettingsError(f"unknown role '{role}'", remedy=f"use {', '.join(roles)}")
    with database(url, create=True) as opened:
        SenderRegistry(opened).register(read_public(file), SenderRole(role), datetime.now(UTC))


@app.command()
def unregister(
    name: str = typer.Argument(..., help="Name of the sender"), *, url: str | None = DATABASE
) -> None:
    """Unregister a sender; statements signed from now on are refused."""
    from abaton.errors import SettingsError
    from abaton.governance import SenderRegistry

    with database(url) as opened:
        if SenderRegistry(opened).find(name) is None:
            raise SettingsError(
                f"no sender is registered as '{name}'", remedy="list them with 'abaton keys list'"
            )
        SenderRegistry(opened).unregister(name, datetime.now(UTC))


@app.command("list")
def list_senders(*, url: str | None = DATABASE, json: bool = JSON) -> None:
    """List the registered senders."""
    from abaton.governance import SenderRegistry

    with database(url) as opened:
        rows = [
            (
                sender.name,
                sender.role.value,
                sender.key_set.signing_key.id,
                sender.registered_at,
                sender.valid_until,
            )
            for sender in SenderRegistry(opened).all()
        ]
    names = ("name", "role", "signing_key", "registered_at", "valid_until")
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table(
        "registered senders", names, rows
    )


def _show(public: PublicKeySet, *, json: bool) -> None:
    rows = [(key.kind.value, key.id, key.since, key.until or None) for key in public.keys]
    if json:
        emit({"name": public.name, "keys": [{**key.row(), "id": key.id} for key in public.keys]})
    else:
        table(f"keys of {public.name}", ["type", "fingerprint", "created", "replaced"], rows)
        note(f"signing key: {public.signing_key.id}\nsealing key: {public.sealing_key.id}")


_STUDY = typer.Option(..., "--study", help="Study document of the records", show_default=False)


def seal(
    source: Path = typer.Argument(
        ..., metavar="IN", help="File to seal; .json and .ndjson are canonicalised"
    ),
    target: Path = typer.Argument(..., metavar="OUT", help="Sealed file"),
    *,
    keys: Path = KEYS,
    to: Path = typer.Option(..., "--to", help="Public key file of the recipient", show_default=False),
    study: Path = _STUDY,
    subject_pseudonym: str = typer.Option(
        "", "--subject-pseudonym", help="Registry pseudonym of the subject, if there is only one"
    ),
    sequence: int | None = typer.Option(
        None, "--sequence", help="Unused sequence number (default: from the time)"
    ),
    no_canonicalise: bool = typer.Option(False, "--no-canonicalise", help="Seal the bytes unchanged"),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Seal a file for a recipient: compress, encrypt and sign it, bound to the study document.

    The sealed file is written completely or not at all, in bounded memory.
    """
    import secrets

    from abaton.governance.envelope_format import EnvelopeHeader
    from abaton.governance.key_files import read_public
    from abaton.governance.sealed_envelope import canonical_lines, pieces_of, seal_file
    from abaton.governance.timestamps import to_timestamp
    from abaton.study import load_study

    if not source.is_file():
        raise SettingsError("the file cannot be read", where=str(source), remedy="check the path")
    document, recipient = load_study(study), read_public(to).sealing_key
    sender = open_key_set(keys, passphrase_file, passphrase_env).signing_key
    number = time.time_ns() // 1_000_000 if sequence is None else sequence
    timestamp = to_timestamp(datetime.now(UTC))
    header = EnvelopeHeader(
        document.study.id, document.hash, sender.id, recipient.id, number, subject_pseudonym, timestamp
    )
    is_canonical = not no_canonicalise and source.suffix in {".json", ".ndjson"}
    content = canonical_lines(source) if is_canonical else pieces_of(source)
    size = seal_file(content, target, header, sender, recipient, secrets.token_bytes(32))
    summary = {"study": header.study, "sequence": number, "recipient": recipient.id, "bytes": size}
    emit(summary) if json else note(f"sealed {size:,} bytes for {recipient.id}, sequence {number}")


def open_sealed(
    source: Path = typer.Argument(..., metavar="IN", help="Sealed file"),
    target: Path = typer.Argument(..., metavar="OUT", help="Write the content to this file"),
    *,
    keys: Path = KEYS,
    sender: Path = typer.Option(..., "--from", help="Public key file of the sender", show_default=False),
    study: Path = _STUDY,
    url: str | None = DATABASE,
    allow_reopen: bool = typer.Option(
        False, "--allow-reopen", help="Open the same file again, for example after a crash"
    ),
    limit: int = typer.Option(1 << 40, "--limit", min=1, help="Maximum size of the content in bytes"),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Open a sealed file; the content is written only if it is complete, authentic and new.

    Exit code 3: refused (changed, forged, of another study, or already opened).
    """
    from abaton.governance import EnvelopeInfo
    from abaton.governance.inbox import record_sequence
    from abaton.governance.key_files import read_public
    from abaton.governance.refusals import DeniedError, RefusalCode
    from abaton.governance.sealed_envelope import open_file
    from abaton.study import load_study

    document, trusted = load_study(study), read_public(sender)
    opener = open_key_set(keys, passphrase_file, passphrase_env)
    with database(url, create=True) as governance:

        def accept(info: EnvelopeInfo) -> None:
            if info.header.study != document.study.id:
                raise DeniedError(
                    RefusalCode.WRONG_STUDY, "the envelope belongs to another study", where=str(source)
                )
            if info.header.document != document.hash:
                raise DeniedError(
                    RefusalCode.WRONG_DOCUMENT,
                    "the envelope belongs to another version of the study document",
                    where=str(source),
                )
            record_sequence(governance, info, datetime.now(UTC), allow_reopen=allow_reopen)

        info = open_file(source, target, opener, trusted.key, accept=accept, limit=limit)
    header = info.header
    summary = {
        "study": header.study,
        "sender": header.sender,
        "sequence": header.sequence,
        "digest": info.digest,
    }
    emit(summary) if json else note(f"opened sequence {header.sequence} from {header.sender}")
