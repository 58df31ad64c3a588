"""``abaton audit``: verify the chain, make checkpoints, export it."""

from __future__ import annotations

import json as jsons
from datetime import UTC, datetime
from pathlib import Path

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.key_access import DATABASE, JSON, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.errors import SettingsError

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
