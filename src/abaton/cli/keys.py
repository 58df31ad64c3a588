"""``abaton keys``: make, show, rotate and register keys; invite, admit and revoke sites on a network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli import inviting
from abaton.cli.output import emit, note, table
from abaton.cli.key_access import DATABASE, JSON, PASSPHRASE_ENV, PASSPHRASE_FILE, database, passphrase

if TYPE_CHECKING:
    from abaton.governance import PublicRing

app = typer.Typer(
    help="Make, show, rotate and register keys; invite, admit and revoke sites.", no_args_is_help=True
)
for command in (inviting.invite, inviting.admit, inviting.revoke):
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
    from abaton.governance.keys import lock, write_public, write_ring
    from abaton.governance.identifiers import stamp

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

    from abaton.governance.keys import lock, read_public, read_ring, write_public, write_ring
    from abaton.governance.identifiers import stamp

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
