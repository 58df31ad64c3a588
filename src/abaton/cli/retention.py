"""``abaton retention`` and ``abaton withdrawals``: what must go, and what is still on its way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, table
from abaton.cli.key_access import DATABASE, JSON, database
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
