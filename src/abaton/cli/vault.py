"""``abaton vault``: re-identification with two signatures, and key rotation."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.key_access import (
    DATABASE,
    JSON,
    KEYS,
    PASSPHRASE_ENV,
    PASSPHRASE_FILE,
    database,
    open_key_set,
)
from abaton.cli.output import emit, note
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import PublicKeySet, Vault

app = typer.Typer(
    help="Re-identify a subject with two signatures; rotate the data controller's key.", no_args_is_help=True
)

_OUT = typer.Option(..., "--out", "-o", help="Write the signed statement to this file", show_default=False)
_VAULT = typer.Option(..., "--vault", help="Rows of the vault: a file or a URL", show_default=False)
_ROW_KEYS = typer.Option(
    ..., "--vault-keys", help="Row keys of the vault: a file or a URL", show_default=False
)


@app.command()
def request(
    study: str = typer.Argument(..., help="Id of the study"),
    pseudonym: str = typer.Argument(..., help="Pseudonym of the subject"),
    *,
    purpose: str = typer.Option(
        ..., "--purpose", help="Purpose: incidental-finding, safety, subject-request, …"
    ),
    ticket: str = typer.Option(..., "--ticket", help="Number of the ticket"),
    days: int = typer.Option(1, "--days", min=0, help="Days until the request expires, up to 7"),
    keys: Path = KEYS,
    out: Path = _OUT,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Sign a request to re-identify one pseudonym as the data controller; an approver must sign, too."""
    from abaton.governance.reidentification import ReidentificationRequest, VaultPurpose
    from abaton.governance.reidentification import request as sign_request

    if purpose not in set(VaultPurpose):
        raise SettingsError(f"unknown purpose '{purpose}'", remedy=f"use {', '.join(VaultPurpose)}")
    reidentification_request = ReidentificationRequest(study, pseudonym, VaultPurpose(purpose), ticket)
    signer = open_key_set(keys, passphrase_file, passphrase_env).signing_key
    _write(out, sign_request(signer, reidentification_request, datetime.now(UTC), timedelta(days=days)))


@app.command()
def approve(
    request_file: Path = typer.Argument(..., metavar="REQUEST", help="Signed request"),
    *,
    keys: Path = KEYS,
    out: Path = _OUT,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Sign an approval of a request after printing it."""
    from abaton.governance.reidentification import approve as sign

    signed_request = _read(request_file)
    note(jsons.dumps(signed_request.get("body"), indent=2))
    signer = open_key_set(keys, passphrase_file, passphrase_env).signing_key
    _write(out, sign(signer, signed_request, datetime.now(UTC)))


@app.command()
def reidentify(
    request_file: Path = typer.Argument(..., metavar="REQUEST", help="Signed request"),
    approval_file: Path = typer.Argument(..., metavar="APPROVAL", help="Signed approval"),
    *,
    keys: Path = KEYS,
    vault: str = _VAULT,
    vault_keys: str = _ROW_KEYS,
    url: str | None = DATABASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Print the identity of one pseudonym after recording it in the audit log.

    Exit code 3: refused (not approved, expired, already answered, or the subject has withdrawn).
    """
    from abaton.governance import AuditLog, SenderRegistry
    from abaton.governance.reidentification import reidentify as answer_request

    opener = open_key_set(keys, passphrase_file, passphrase_env)
    with database(url) as opened, _vault(vault, vault_keys, opener.public) as table:
        statements = (_read(request_file), _read(approval_file))
        identity = answer_request(
            table, AuditLog(opened), SenderRegistry(opened), opener, *statements, datetime.now(UTC)
        )
    emit({"identity": identity}) if json else typer.echo(identity)


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
    """Re-encrypt all row keys for the data controller's latest key, after 'abaton keys rotate'."""
    from abaton.governance import AuditEntry, AuditLog

    opener = open_key_set(keys, passphrase_file, passphrase_env)
    with database(url) as opened, _vault(vault, vault_keys, opener.public) as table:
        count = table.rewrap(opener)
        entry = AuditEntry("vault-rewrapped", actor=opener.signing_key.id, detail={"rows": count})
        AuditLog(opened).append(entry, datetime.now(UTC))
    emit({"rows": count}) if json else note(
        f"{count:,} row keys re-encrypted for {opener.public.sealing_key.id}"
    )


@contextmanager
def _vault(url: str, keys_url: str, data_controller: PublicKeySet) -> Iterator[Vault]:
    import secrets

    from abaton.governance import Vault

    opened = Vault(url, keys_url, data_controller.sealing_key, secrets.token_bytes)
    try:
        yield opened
    finally:
        opened.close()


def _read(path: Path) -> dict[str, Any]:
    try:
        statement = jsons.loads(path.read_bytes())
    except (OSError, ValueError):
        raise SettingsError(
            "the signed file cannot be read", where=str(path), remedy="check the path"
        ) from None
    if not isinstance(statement, dict):
        raise SettingsError("the file is not a signed statement", where=str(path), remedy="check the path")
    return statement


def _write(path: Path, statement: dict[str, Any]) -> None:
    from abaton.atomic_files import atomic_write

    try:
        with atomic_write(path) as temporary_path:
            temporary_path.write_text((jsons.dumps(statement, indent=2) + "\n"), "utf-8")
    except OSError as error:
        raise SettingsError(
            "the signed file was not written",
            where=str(path),
            remedy=error.strerror or "choose another path",
        ) from None
