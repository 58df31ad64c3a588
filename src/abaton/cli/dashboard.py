"""``abaton dashboard`` and ``abaton dashboard token``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note
from abaton.cli.runs import JsonOption, StoreOption, opened_store
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.dashboard import AccessFile

app = typer.Typer(help="Watch and compare runs in a browser.", invoke_without_command=True)

ACCESS = typer.Option(
    None, "--access", help="Access file, created by 'abaton dashboard token'", show_default=False
)
HOST = typer.Option("127.0.0.1", "--host", help="Address to listen on")
CERTIFICATE = typer.Option(None, "--certificate", help="TLS certificate chain (PEM)")
CERTIFICATE_KEY = typer.Option(None, "--certificate-key", help="Private key of the TLS certificate (PEM)")
BEHIND_PROXY = typer.Option(
    False, "--behind-proxy", help="Accept plain HTTP of a proxy that terminates TLS on a trusted network"
)


def port_option(port: int) -> Any:
    """Return the `--port` option of `abaton dashboard` and `abaton serve` with its default."""
    return typer.Option(port, "--port", min=0, max=65535, help="Port; 0 selects a free one")


@app.callback()
def dashboard(
    context: typer.Context,
    *,
    store: Path | None = StoreOption,
    database_url: str | None = typer.Option(
        None,
        "--database",
        envvar="ABATON_GOVERNANCE",
        help="Also show this governance database: a file or postgresql+psycopg://…",
    ),
    access: Path | None = ACCESS,
    host: str = HOST,
    port: int = port_option(8730),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    behind_proxy: bool = BEHIND_PROXY,
) -> None:
    """Serve the runs of a store as web pages with live updates.

    Prints the address on stdout when requests are accepted. Without --access it listens on this machine only, where all
    users may view.
    """
    if context.invoked_subcommand is not None:
        return
    _check_extra()
    from abaton.dashboard import DashboardState, check_access, serve_dashboard
    from abaton.governance.intake import ListenSettings

    listen = ListenSettings(host, port, certificate, certificate_key, behind_proxy)
    access_file = read_access(access)
    check_access(listen, access_file)
    listen.check()
    os.nice(5)  # runs on the same machine have priority
    with opened_store(store) as opened:
        if database_url is None:
            serve_dashboard(DashboardState(opened, None, access_file), listen, typer.echo)
            return
        from abaton.cli.key_access import database

        with database(database_url) as governance:
            serve_dashboard(DashboardState(opened, governance, access_file), listen, typer.echo)


@app.command()
def token(
    name: str = typer.Argument(help="Name of the user"),
    *,
    role: str = typer.Option("viewer", help="Role: viewer, operator, data_controller or proxy"),
    access: Path = typer.Option(..., "--access", help="Access file; created if missing"),
    days: int = typer.Option(0, min=0, help="Days until the token expires; 0 for never"),
    json: bool = JsonOption,
) -> None:
    """Create an access token and print it once; the file stores its digest only.

    Viewers view. Operators also prune runs. Data controllers also verify the audit log. A proxy names the user in a
    header; [users] of the file assigns roles.
    """
    _check_extra()
    from datetime import UTC, datetime, timedelta

    from abaton.dashboard import ViewerRole, add_token

    if role not in list(ViewerRole):
        raise SettingsError(f"unknown role '{role}'", where="--role", remedy=f"use {', '.join(ViewerRole)}")
    until = datetime.now(UTC) + timedelta(days=days) if days else None
    access_token = add_token(access, name, ViewerRole(role), until)
    emit({"name": name, "role": role, "token": access_token}) if json else typer.echo(access_token)
    note(f"the token of {name} ({role}) is not shown again; its digest is in {access}")


def read_access(path: Path | None) -> AccessFile | None:
    """Read the access file given to `abaton dashboard`, if there is one."""
    if path is None:
        return None
    from abaton.dashboard import load_access

    return load_access(path)


def _check_extra() -> None:
    try:
        import fastapi
        import uvicorn
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the package '{error.name}' is not installed", remedy="pip install 'abaton[serve]'"
        ) from None
    del fastapi, uvicorn
