"""``abaton vault``: re-identify one person with two signatures, and change the controller's keys."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note
from abaton.cli.key_access import DATABASE, JSON, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import PublicRing, Vault

app = typer.Typer(
    help="Re-identify one person with two signatures; change the controller's keys.", no_args_is_help=True
)

_OUT = typer.Option(..., "--out", "-o", help="The signed file to write.", show_default=False)
_VAULT = typer.Option(..., "--vault", help="The vault's rows: a file or a URL.", show_default=False)
_ROW_KEYS = typer.Option(
    ..., "--vault-keys", help="The vault's row keys: a file or a URL.", show_default=False
)


@app.command()
def request(
    study: str = typer.Argument(..., help="The study's identifier."),
    pseudonym: str = typer.Argument(..., help="The one pseudonym in question."),
    *,
    purpose: str = typer.Option(..., "--purpose", help="incidental-finding, safety, subject-request, …"),
    ticket: str = typer.Option(..., "--ticket", help="The number under which it was asked for."),
    days: int = typer.Option(1, "--days", min=0, help="How long the request holds, up to 7."),
    keys: Path = KEYS,
    out: Path = _OUT,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """The data controller asks who is behind one pseudonym; a second person must approve it."""
    from abaton.governance import VaultPurpose, Wish
    from abaton.governance import request as ask

    if purpose not in set(VaultPurpose):
        raise SettingsError(
            f"there is no purpose '{purpose}'", remedy=f"choose one of {', '.join(VaultPurpose)}"
        )
    wish = Wish(study, pseudonym, VaultPurpose(purpose), ticket)
    signer = ring(keys, passphrase_file, passphrase_env).signing
    _write(out, ask(signer, wish, datetime.now(UTC), timedelta(days=days)))


@app.command()
def approve(
    asked: Path = typer.Argument(..., metavar="REQUEST", help="The signed request."),
    *,
    keys: Path = KEYS,
    out: Path = _OUT,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """A second person approves exactly this request; what it asks for is shown first."""
    from abaton.governance import approve as sign

    wanted = _read(asked)
    note(jsons.dumps(wanted.get("body"), indent=2))
    signer = ring(keys, passphrase_file, passphrase_env).signing
    _write(out, sign(signer, wanted, datetime.now(UTC)))


@app.command()
def reidentify(
    asked: Path = typer.Argument(..., metavar="REQUEST", help="The signed request."),
    approved: Path = typer.Argument(..., metavar="APPROVAL", help="The signed approval."),
    *,
    keys: Path = KEYS,
    vault: str = _VAULT,
    vault_keys: str = _ROW_KEYS,
    url: str | None = DATABASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Print who is behind one pseudonym; it is in the audit chain before it is printed.

    Exit code 3: refused (not approved, expired, answered before, or the person has withdrawn).
    """
    from abaton.governance import Audit, Senders
    from abaton.governance import reidentify as answer

    opener = ring(keys, passphrase_file, passphrase_env)
    with database(url) as opened, _vault(vault, vault_keys, opener.public) as table:
        given = (_read(asked), _read(approved))
        who = answer(table, Audit(opened), Senders(opened), opener, *given, datetime.now(UTC))
    emit({"identity": who}) if json else typer.echo(who)


@app.command()
def rotate(
    *,
    keys: Path = KEYS,
    vault: str = _VAULT,
    vault_keys: str = _ROW_KEYS,
    url: str | None = DATABASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """After 'abaton keys rotate': seal every row key to the controller's newest key; it can be repeated."""
    from abaton.governance import Audit, Entry

    opener = ring(keys, passphrase_file, passphrase_env)
    with database(url) as opened, _vault(vault, vault_keys, opener.public) as table:
        count = table.rewrap(opener)
        entry = Entry("vault-rewrapped", actor=opener.signing.id, detail={"rows": count})
        Audit(opened).append(entry, datetime.now(UTC))
    emit({"rows": count}) if json else note(
        f"{count:,} row keys are sealed to {opener.public.sealing.id} now"
    )


@contextmanager
def _vault(url: str, keys_url: str, controller: PublicRing) -> Iterator[Vault]:
    import secrets

    from abaton.governance import Vault

    opened = Vault(url, keys_url, controller.sealing, secrets.token_bytes)
    try:
        yield opened
    finally:
        opened.close()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = jsons.loads(path.read_bytes())
    except (OSError, ValueError):
        raise SettingsError(
            "the signed file cannot be read", where=str(path), remedy="check the path"
        ) from None
    if not isinstance(found, dict):
        raise SettingsError("this is not a signed statement", where=str(path), remedy="check the path")
    return found


def _write(path: Path, statement: dict[str, Any]) -> None:
    from abaton.atomic_files import replacing

    try:
        with replacing(path) as begun:
            begun.write_text((jsons.dumps(statement, indent=2) + "\n"), "utf-8")
    except OSError as error:
        raise SettingsError(
            "the signed file was not written",
            where=str(path),
            remedy=error.strerror or "choose another place",
        ) from None
