"""``abaton serve``: the research centre's intake."""

from __future__ import annotations

from pathlib import Path

import typer

from abaton.cli.dashboard import ACCESS, read_access
from abaton.cli.output import note
from abaton.cli.runs import StoreOption, opened_store
from abaton.cli.secrets import PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.errors import SettingsError


def serve(
    *,
    governance: str | None = typer.Option(
        None,
        "--governance",
        help="The governance database: a file or postgresql+psycopg://… [env: ABATON_GOVERNANCE]",
    ),
    keys: Path = typer.Option(
        ..., "--keys", help="The centre's private key file; it signs receipts.", show_default=False
    ),
    inbox: Path = typer.Option(Path("inbox"), "--inbox", help="The folder of received envelopes."),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen at."),
    port: int = typer.Option(8720, "--port", min=0, max=65535, help="The port; 0 takes a free one."),
    certificate: Path | None = typer.Option(None, "--certificate", help="The TLS certificate chain (PEM)."),
    key: Path | None = typer.Option(None, "--key", help="The private key of the certificate (PEM)."),
    behind_proxy: bool = typer.Option(
        False, "--behind-proxy", help="A proxy on a trusted network ends TLS before this service."
    ),
    dashboard: bool = typer.Option(
        False, "--dashboard", help="Show the runs of the store, and governance in ranges, at /dashboard/."
    ),
    access: Path | None = ACCESS,
    store: Path | None = StoreOption,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Publish studies; take consents, sealed records, withdrawals and exits; answer with signed receipts.

    Prints the address on stdout when requests are taken. Without TLS it listens on this machine alone. With
    --dashboard, whoever --access names may watch runs at /dashboard/.
    """
    try:
        from abaton.governance.service import Centre, Listen
        from abaton.governance.service import serve as serving
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the service needs '{error.name}'", remedy="install it with: pip install 'abaton[serve]'"
        ) from None
    from abaton.governance import Inbox

    listen = Listen(host, port, certificate, key, behind_proxy)
    listen.check()
    centre = ring(keys, passphrase_file, passphrase_env)
    known = read_access(access)
    if dashboard:
        from abaton.dashboard import check_access

        check_access(listen, known)
    with database(governance) as opened:
        box = Inbox(inbox, opened, centre.public, centre.signing)
        note(f"receipts are signed by {centre.signing.id}")
        if not dashboard:
            serving(Centre(box), listen, typer.echo)
            return
        from abaton.dashboard import Dashboard, beside

        with opened_store(store) as runs:
            pages = Dashboard(runs, opened, known, base="/dashboard")
            serving(Centre(box), listen, typer.echo, lambda service: beside(service, pages))
