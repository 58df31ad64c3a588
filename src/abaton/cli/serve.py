"""``abaton serve``: the research centre's intake."""

from __future__ import annotations

from pathlib import Path

import typer

from abaton.cli.output import note
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
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Publish studies; take consents, sealed records, withdrawals and exits; answer with signed receipts.

    Prints the address on stdout when requests are taken. Without TLS it listens on this machine alone.
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
    with database(governance) as opened:
        box = Inbox(inbox, opened, centre.public, centre.signing)
        note(f"receipts are signed by {centre.signing.id}")
        serving(Centre(box), listen, typer.echo)
