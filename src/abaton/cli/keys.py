"""``abaton keys``: make, show, rotate and register keys; invite, admit and revoke sites on a network.

``abaton seal`` and ``abaton open``: records that only one recipient can read, from a sender who is known.
"""

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
    passphrase,
    ring,
)
from abaton.cli.output import emit, note, table
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import PublicRing


app = typer.Typer(
    help="Make, show, rotate and register keys; invite, admit and revoke sites.", no_args_is_help=True
)
for command in (membership.invite, membership.admit, membership.revoke):
    app.command()(command)

_FILE = typer.Argument(..., metavar="FILE", help="The private key file.", show_default=False)
_PUBLIC = typer.Option(None, "--public", help="Also write the public keys here, to be given to others.")
_HYBRID = typer.Option(
    False, "--hybrid", help="Seal with X25519 and ML-KEM-768, against future quantum computers."
)


@app.command()
def new(
    file: Path = _FILE,
    *,
    name: str = typer.Option(..., "--name", help="Whose keys they are, such as the site's name."),
    public: Path | None = _PUBLIC,
    hybrid: bool = _HYBRID,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Make new keys; the private ones are encrypted with a passphrase and readable by you alone (mode 0600)."""
    import secrets

    from abaton.governance import Ring
    from abaton.governance.identifiers import stamp
    from abaton.governance.keys import lock, write_public, write_ring

    made = Ring.new(name, secrets.token_bytes, stamp(datetime.now(UTC)), hybrid=hybrid)
    content = lock(made, passphrase(passphrase_file, passphrase_env, confirm=True), secrets.token_bytes)
    write_ring(file, content)
    if public is not None:
        write_public(public, made.public)
    _show(made.public, json=json)


@app.command()
def show(
    file: Path = typer.Argument(
        ..., metavar="FILE", help="A public or private key file.", show_default=False
    ),
    *,
    json: bool = JSON,
) -> None:
    """Show the fingerprints of keys, to be compared with those that their owner reads out; needs no passphrase."""
    from abaton.governance.keys import read_public

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
    """Make new keys follow the old ones; old sealing keys stay, only to open what was sealed to them.

    The change is signed by the old and the new signing key, so whoever knows the old keys can check the new ones.
    """
    import secrets

    from abaton.governance.identifiers import stamp
    from abaton.governance.keys import lock, read_public, read_ring, write_public, write_ring

    read_public(file)
    phrase = passphrase(passphrase_file, passphrase_env)
    made = read_ring(file, phrase).rotated(secrets.token_bytes, stamp(datetime.now(UTC)), hybrid=hybrid)
    write_ring(file, lock(made, phrase, secrets.token_bytes), replace=True)
    if public is not None:
        write_public(public, made.public, replace=True)
    _show(made.public, json=json)


@app.command()
def signer(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="The key file to write; the same passphrase opens it."),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Write a key file that can sign and open nothing: for the machine on the network, which signs receipts."""
    import secrets

    from abaton.governance.keys import lock, read_public, read_ring, write_ring

    read_public(file)
    phrase = passphrase(passphrase_file, passphrase_env)
    write_ring(out, lock(read_ring(file, phrase).signing_only(), phrase, secrets.token_bytes))


@app.command()
def export(
    file: Path = _FILE,
    *,
    out: Path = typer.Option(..., "--out", "-o", help="The public key file to write."),
) -> None:
    """Write the public keys of a key file, to be given to others."""
    from abaton.governance.keys import read_public, write_public

    write_public(out, read_public(file), replace=True)


@app.command()
def enter(
    file: Path = typer.Argument(..., metavar="FILE", help="A public key file.", show_default=False),
    *,
    role: str = typer.Option(..., "--role", help="site, centre, controller, approver or witness."),
    url: str | None = DATABASE,
) -> None:
    """Enter somebody's public keys in the register; compare the fingerprints with their owner first."""
    from abaton.errors import SettingsError
    from abaton.governance import SenderRole, Senders
    from abaton.governance.keys import read_public

    known = [each.value for each in SenderRole if each is not SenderRole.PERSON]  # people enrol themselves
    if role not in known:
        raise SettingsError(f"there is no role '{role}'", remedy=f"choose one of {', '.join(known)}")
    with database(url, make=True) as opened:
        Senders(opened).enter(read_public(file), SenderRole(role), datetime.now(UTC))


@app.command()
def dismiss(
    name: str = typer.Argument(..., help="Whose keys no longer count."), *, url: str | None = DATABASE
) -> None:
    """From now on nothing that somebody signs is taken."""
    from abaton.errors import SettingsError
    from abaton.governance import Senders

    with database(url) as opened:
        if Senders(opened).find(name) is None:
            raise SettingsError(
                f"nobody is registered as '{name}'", remedy="list them with 'abaton keys known'"
            )
        Senders(opened).dismiss(name, datetime.now(UTC))


@app.command()
def known(*, url: str | None = DATABASE, json: bool = JSON) -> None:
    """List everybody whose keys are registered."""
    from abaton.governance import Senders

    with database(url) as opened:
        rows = [
            (s.name, s.role.value, s.ring.signing.id, s.since, s.until) for s in Senders(opened).everybody()
        ]
    names = ("name", "role", "signing key", "since", "dismissed")
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table(
        "registered keys", names, rows
    )


def _show(public: PublicRing, *, json: bool) -> None:
    rows = [(key.kind.value, key.id, key.since, key.until or None) for key in public.keys]
    if json:
        emit({"name": public.name, "keys": [{**key.row(), "id": key.id} for key in public.keys]})
    else:
        table(f"keys of {public.name}", ["kind", "fingerprint", "since", "replaced"], rows)
        note(f"to sign: {public.signing.id}\nto be sealed to: {public.sealing.id}")


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
    from abaton.governance.identifiers import stamp
    from abaton.governance.keys import read_public
    from abaton.governance.sealed_envelope import canonical_lines, pieces_of, seal_file
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
