"""``abaton retention``, ``abaton withdrawals`` and ``abaton audit``."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

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
from abaton.cli.output import emit, note, table
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import RetentionTargets


def retention(
    *,
    url: str | None = DATABASE,
    site: Path | None = typer.Option(
        None,
        "--site",
        help="Configuration of a site, which names all its data; replaces the other options",
    ),
    inbox: Path | None = typer.Option(None, "--inbox", help="Folder of received envelopes"),
    outbox: Path | None = typer.Option(None, "--outbox", help="Folder of envelopes to be sent"),
    vault: str | None = typer.Option(None, "--vault", help="Rows of the vault: a file or a URL"),
    vault_keys: str | None = typer.Option(
        None, "--vault-keys", help="Row keys of the vault: a file or a URL"
    ),
    data_controller_key: Path | None = typer.Option(
        None, "--data-controller-key", help="Public key file of the data controller"
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would be deleted; delete nothing"),
    at: datetime | None = typer.Option(
        None, "--at", help="Print what would be deleted on a later day (with --dry-run)"
    ),
    json: bool = JSON,
) -> None:
    """Close finished studies and delete data whose retention period has ended.

    Run it every night, at sites and at the centre.
    """
    from abaton.governance import due_items, enforce

    if at is not None and not dry_run:
        raise SettingsError(
            "--at is given without --dry-run", remedy="add --dry-run; only data due today is deleted"
        )
    timestamp = at.replace(tzinfo=UTC) if at else datetime.now(UTC)
    with _retention_targets(url, site, inbox, outbox, (vault, vault_keys, data_controller_key)) as targets:
        items = due_items(targets, timestamp) if dry_run else enforce(targets, timestamp)
    rows = [(item.item, item.study or None, item.count) for item in items]
    if json:
        listed = [{"item": item.item, "study": item.study, "count": item.count} for item in items]
        emit({"at": timestamp.isoformat(timespec="seconds"), "dry_run": dry_run, "due": listed})
    else:
        title = "would be deleted or closed" if dry_run else "deleted or closed"
        table(title, ["item", "study", "count"], rows)


@contextmanager
def _retention_targets(
    url: str | None,
    site: Path | None,
    inbox: Path | None,
    outbox: Path | None,
    vault: tuple[str | None, str | None, Path | None],
) -> Iterator[RetentionTargets]:
    """Yield the data for `abaton retention`: of a site's configuration, or of the options."""
    import secrets

    from abaton.governance import Outbox, RetentionTargets, Vault
    from abaton.governance.key_files import read_public
    from abaton.site import load_site, retention_targets

    if site is not None:
        if any(option is not None for option in (url, inbox, outbox, *vault)):
            raise SettingsError(
                "--site is combined with other sources", remedy="use --site alone, or the other options"
            )
        with retention_targets(load_site(site)) as targets:
            yield targets
        return
    rows, keys, controller = vault
    if len({rows is None, keys is None, controller is None}) > 1:
        raise SettingsError(
            "the options of the vault are incomplete",
            remedy="use --vault, --vault-keys and --data-controller-key together",
        )
    with database(url) as opened:
        outbox_queue = None if outbox is None else Outbox(outbox, opened)
        if rows is None or keys is None or controller is None:
            yield RetentionTargets(opened, inbox, outbox_queue)
            return
        with closing(
            Vault(rows, keys, read_public(controller).sealing_key, secrets.token_bytes)
        ) as opened_vault:
            yield RetentionTargets(opened, inbox, outbox_queue, opened_vault)


def withdrawals(*, url: str | None = DATABASE, json: bool = JSON) -> None:
    """List incomplete withdrawals with their step, what they wait for, and the date."""
    from abaton.governance.withdrawal import pending

    with database(url) as opened:
        cases = pending(opened)
    names = ("study", "subject", "step", "pending_on", "opened_at")
    rows = [
        (case.study, case.subject, case.step.value, case.pending_on or None, case.opened_at) for case in cases
    ]
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table(
        "pending withdrawals", names, rows
    )


app = typer.Typer(help="Verify and export the audit log; sign checkpoints.", no_args_is_help=True)


@app.command()
def verify(
    *,
    url: str | None = DATABASE,
    checkpoint: list[Path] = typer.Option([], "--checkpoint", help="Checkpoint kept by another party"),
    signer: Path | None = typer.Option(None, "--signer", help="Public keys of the signer of the checkpoints"),
    json: bool = JSON,
) -> None:
    """Verify the audit log: find removed, changed and moved entries, truncation and replacement.

    Truncation at the end and replacement are found only with a checkpoint. Exit code 1: the log is invalid.
    """
    from abaton.governance import AuditLog, verifier
    from abaton.governance import verify as faults_of
    from abaton.governance.key_files import read_public

    if checkpoint and signer is None:
        raise SettingsError(
            "--signer is missing", remedy="add --signer PUBLIC-KEYS of the signer of the checkpoints"
        )
    keys = list(read_public(signer).keys) if signer else []
    checkpoints = [_read(path) for path in checkpoint]
    with database(url) as opened:
        faults = faults_of(AuditLog(opened).rows(), checkpoints, verifier(keys))
    if json:
        emit(
            {
                "ok": not faults,
                "faults": [{"sequence": fault.sequence, "problem": fault.problem} for fault in faults],
            }
        )
    elif faults:
        table(
            "the audit log is invalid",
            ["sequence", "problem"],
            [(fault.sequence, fault.problem) for fault in faults],
        )
    else:
        note("the audit log is valid" + ("" if checkpoints else "; verified without a checkpoint"))
    if faults:
        raise typer.Exit(1)


@app.command()
def checkpoint(
    *,
    keys: Path = KEYS,
    out: Path = typer.Option(
        ..., "--out", "-o", help="Write the checkpoint to this file, to be kept by another party"
    ),
    url: str | None = DATABASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Sign the length and the last hash of the audit log; a kept checkpoint reveals later changes."""
    from abaton.atomic_files import atomic_write
    from abaton.governance import AuditLog

    signer = open_key_set(keys, passphrase_file, passphrase_env).signing_key
    with database(url) as opened:
        statement = AuditLog(opened).checkpoint(signer, datetime.now(UTC))
    try:
        with atomic_write(out) as temporary_path:
            temporary_path.write_text((jsons.dumps(statement, indent=2) + "\n"), "utf-8")
    except OSError as error:
        raise SettingsError(
            "the checkpoint was not written", where=str(out), remedy=error.strerror or "choose another path"
        ) from None


@app.command()
def export(
    *,
    url: str | None = DATABASE,
    observer: str = typer.Option("abaton", "--observer", help="Name of the service of the audit log"),
) -> None:
    """Print the audit log as FHIR AuditEvent resources, one per line."""
    from abaton.governance import AuditLog
    from abaton.governance.audit_log import audit_event

    with database(url) as opened:
        for entry in AuditLog(opened).entries():
            typer.echo(jsons.dumps(audit_event(entry, observer), separators=(",", ":")))


def _read(path: Path) -> dict[str, object]:
    try:
        statement = jsons.loads(path.read_bytes())
    except (OSError, ValueError):
        raise SettingsError(
            "the checkpoint cannot be read", where=str(path), remedy="check the path"
        ) from None
    if not isinstance(statement, dict):
        raise SettingsError("this is not a checkpoint", where=str(path), remedy="check the path")
    return statement
