"""``abaton retention`` and ``abaton withdrawals``: what must go, and what is still on its way out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import typer

from abaton.cli.output import emit, table
from abaton.cli.secrets import DATABASE, JSON, database
from abaton.errors import SettingsError


def retention(
    *,
    url: str | None = DATABASE,
    inbox: Path | None = typer.Option(None, "--inbox", help="The folder of received envelopes."),
    outbox: Path | None = typer.Option(
        None, "--outbox", help="The folder of envelopes that wait to be sent."
    ),
    vault: str | None = typer.Option(None, "--vault", help="The vault's rows: a file or a URL."),
    vault_keys: str | None = typer.Option(
        None, "--vault-keys", help="The vault's row keys: a file or a URL."
    ),
    controller: Path | None = typer.Option(
        None, "--controller", help="The data controller's public key file."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only tell what would go."),
    json: bool = JSON,
) -> None:
    """Close studies that have ended and delete everything of those whose time of keeping is over.

    Meant to run every night; doing it again finds nothing left to do.
    """
    import secrets

    from abaton.governance import Holdings, Outbox, Vault, due, enforce
    from abaton.governance.keyfiles import read_public

    if (vault is None) != (vault_keys is None) or (vault is None) != (controller is None):
        raise SettingsError(
            "a vault is named by half", remedy="give --vault, --vault-keys and --controller together"
        )
    when = datetime.now(UTC)
    with database(url) as opened:
        table_of = None
        if vault is not None and vault_keys is not None and controller is not None:
            table_of = Vault(vault, vault_keys, read_public(controller).sealing, secrets.token_bytes)
        waiting = None if outbox is None else Outbox(outbox, opened)
        holdings = Holdings(opened, inbox, waiting, table_of)
        found = due(holdings, when) if dry_run else enforce(holdings, when)
        if table_of is not None:
            table_of.close()
    rows = [(item.what, item.study or None, item.count) for item in found]
    if json:
        listed = [{"what": item.what, "study": item.study, "count": item.count} for item in found]
        emit({"at": when.isoformat(timespec="seconds"), "dry_run": dry_run, "due": listed})
    else:
        title = "would be deleted or closed" if dry_run else "deleted or closed"
        table(title, ["what", "study", "count"], rows)


def withdrawals(*, url: str | None = DATABASE, json: bool = JSON) -> None:
    """List the withdrawals that are not complete: at which step, waiting for what, since when."""
    from abaton.governance.withdrawal import pending

    with database(url) as opened:
        cases = pending(opened)
    names = ("study", "subject", "step", "waits for", "since")
    rows = [(c.study, c.subject, c.step.value, c.waits_for or None, c.since) for c in cases]
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table(
        "pending withdrawals", names, rows
    )
