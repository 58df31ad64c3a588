"""``abaton retention`` and ``abaton withdrawals``: what must go, and what is still on its way out.

``abaton audit``: verify the chain, make checkpoints, export it.
"""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.key_access import DATABASE, JSON, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.cli.output import emit, note, table
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import Holdings


def retention(
    *,
    url: str | None = DATABASE,
    site: Path | None = typer.Option(
        None,
        "--site",
        help="A site's document, which names all that the site keeps; then nothing else is named.",
    ),
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
    at: datetime | None = typer.Option(
        None, "--at", help="Tell what would go on a later day (with --dry-run)."
    ),
    json: bool = JSON,
) -> None:
    """Close studies that have ended and delete everything of those whose time of keeping is over.

    Meant to run every night, at sites and at the centre; doing it again finds nothing left to do.
    """
    from abaton.governance import due, enforce

    if at is not None and not dry_run:
        raise SettingsError("only what is due today is deleted", remedy="give --dry-run with --at")
    when = at.replace(tzinfo=UTC) if at else datetime.now(UTC)
    with _holdings(url, site, inbox, outbox, (vault, vault_keys, controller)) as holdings:
        found = due(holdings, when) if dry_run else enforce(holdings, when)
    rows = [(item.what, item.study or None, item.count) for item in found]
    if json:
        listed = [{"what": item.what, "study": item.study, "count": item.count} for item in found]
        emit({"at": when.isoformat(timespec="seconds"), "dry_run": dry_run, "due": listed})
    else:
        title = "would be deleted or closed" if dry_run else "deleted or closed"
        table(title, ["what", "study", "count"], rows)


@contextmanager
def _holdings(
    url: str | None,
    site: Path | None,
    inbox: Path | None,
    outbox: Path | None,
    vault: tuple[str | None, str | None, Path | None],
) -> Iterator[Holdings]:
    """What is to be looked at: all that a site's document names, or what is named one by one."""
    import secrets

    from abaton.governance import Holdings, Outbox, Vault
    from abaton.governance.keys import read_public
    from abaton.site import load_site, site_holdings

    if site is not None:
        if any(each is not None for each in (url, inbox, outbox, *vault)):
            raise SettingsError(
                "a site's document names all that the site keeps", remedy="give --site alone, or the parts"
            )
        with site_holdings(load_site(site)) as holdings:
            yield holdings
        return
    rows, keys, controller = vault
    if len({rows is None, keys is None, controller is None}) > 1:
        raise SettingsError(
            "a vault is only half named", remedy="give --vault, --vault-keys and --controller together"
        )
    with database(url) as opened:
        waiting = None if outbox is None else Outbox(outbox, opened)
        if rows is None or keys is None or controller is None:
            yield Holdings(opened, inbox, waiting)
            return
        with closing(Vault(rows, keys, read_public(controller).sealing, secrets.token_bytes)) as of_people:
            yield Holdings(opened, inbox, waiting, of_people)


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


app = typer.Typer(help="Verify the audit chain, make checkpoints, export it.", no_args_is_help=True)


@app.command()
def verify(
    *,
    url: str | None = DATABASE,
    checkpoint: list[Path] = typer.Option([], "--checkpoint", help="A checkpoint that somebody else kept."),
    signer: Path | None = typer.Option(
        None, "--signer", help="The public keys of who signed the checkpoints."
    ),
    json: bool = JSON,
) -> None:
    """Find every entry that was removed, changed or moved, and a chain that was cut off or written anew.

    Without a checkpoint, a chain that was cut off at its end or written anew cannot be told from a sound one.
    Exit code 1: something is wrong.
    """
    from abaton.governance import Audit, verifier
    from abaton.governance import verify as faults_of
    from abaton.governance.keys import read_public

    if checkpoint and signer is None:
        raise SettingsError("who signed the checkpoints is not said", remedy="add --signer PUBLIC-KEYS")
    keys = list(read_public(signer).keys) if signer else []
    kept = [_read(path) for path in checkpoint]
    with database(url) as opened:
        faults = faults_of(Audit(opened).rows(), kept, verifier(keys))
    if json:
        emit({"ok": not faults, "faults": [{"entry": f.sequence, "what": f.what} for f in faults]})
    elif faults:
        table("the audit chain is not sound", ["entry", "what"], [(f.sequence, f.what) for f in faults])
    else:
        note("the audit chain is sound" + ("" if kept else "; checked without a checkpoint"))
    if faults:
        raise typer.Exit(1)


@app.command()
def checkpoint(
    *,
    keys: Path = KEYS,
    out: Path = typer.Option(..., "--out", "-o", help="The file to give to somebody else to keep."),
    url: str | None = DATABASE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Sign how long the chain is and how it ends; whoever keeps this notices any change before it."""
    from abaton.atomic_files import replacing
    from abaton.governance import Audit

    signer = ring(keys, passphrase_file, passphrase_env).signing
    with database(url) as opened:
        made = Audit(opened).checkpoint(signer, datetime.now(UTC))
    try:
        with replacing(out) as begun:
            begun.write_text((jsons.dumps(made, indent=2) + "\n"), "utf-8")
    except OSError as error:
        raise SettingsError(
            "the checkpoint was not written", where=str(out), remedy=error.strerror or "choose another place"
        ) from None


@app.command()
def export(
    *,
    url: str | None = DATABASE,
    observer: str = typer.Option("abaton", "--observer", help="The name of the service whose chain it is."),
) -> None:
    """Print the chain as FHIR AuditEvent resources, one on each line."""
    from abaton.governance import Audit
    from abaton.governance.audit_log import audit_event

    with database(url) as opened:
        for entry in Audit(opened).entries():
            typer.echo(jsons.dumps(audit_event(entry, observer), separators=(",", ":")))


def _read(path: Path) -> dict[str, object]:
    try:
        found = jsons.loads(path.read_bytes())
    except (OSError, ValueError):
        raise SettingsError(
            "the checkpoint cannot be read", where=str(path), remedy="check the path"
        ) from None
    if not isinstance(found, dict):
        raise SettingsError("this is not a checkpoint", where=str(path), remedy="check the path")
    return found
