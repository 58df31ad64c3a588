"""``abaton dashboard``: watch runs, compare them, and see governance in numbers."""

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

app = typer.Typer(
    help="Watch runs, compare them, and see governance in numbers.", invoke_without_command=True
)

ACCESS = typer.Option(
    None, "--access", help="Who may use the dashboard: made by 'abaton dashboard token'.", show_default=False
)
HOST = typer.Option("127.0.0.1", "--host", help="The address to listen at.")
CERTIFICATE = typer.Option(None, "--certificate", help="The TLS certificate chain (PEM).")
CERTIFICATE_KEY = typer.Option(
    None, "--certificate-key", help="The private key of the TLS certificate (PEM)."
)
BEHIND_PROXY = typer.Option(
    False, "--behind-proxy", help="A proxy on a trusted network ends TLS before this service."
)


def port_option(port: int) -> Any:
    """The port to listen at, with its default."""
    return typer.Option(port, "--port", min=0, max=65535, help="The port; 0 takes a free one.")


@app.callback()
def dashboard(
    context: typer.Context,
    *,
    store: Path | None = StoreOption,
    database_url: str | None = typer.Option(
        None,
        "--database",
        envvar="ABATON_GOVERNANCE",
        help="The governance database, to be shown in ranges: a file or postgresql+psycopg://…",
    ),
    access: Path | None = ACCESS,
    host: str = HOST,
    port: int = port_option(8730),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    behind_proxy: bool = BEHIND_PROXY,
) -> None:
    """Show the runs of a store in a browser, live while they go on.

    Prints the address on stdout when it can be opened. Listens on this machine alone, where everybody may look, unless
    --access says who may use it. Any other address is refused without --access.
    """
    if context.invoked_subcommand is not None:
        return
    _check_extra()
    from abaton.dashboard import Dashboard, check_access, serve_dashboard
    from abaton.governance.intake import Listen

    listen = Listen(host, port, certificate, certificate_key, behind_proxy)
    known = read_access(access)
    check_access(listen, known)
    listen.check()
    os.nice(5)  # a run on the same machine goes first
    with opened_store(store) as opened:
        if database_url is None:
            serve_dashboard(Dashboard(opened, None, known), listen, typer.echo)
            return
        from abaton.cli.key_access import database

        with database(database_url) as ledger:
            serve_dashboard(Dashboard(opened, ledger, known), listen, typer.echo)


@app.command()
def token(
    name: str = typer.Argument(help="Whose token it is."),
    *,
    role: str = typer.Option("viewer", help="viewer, operator, controller (data controller) or proxy."),
    access: Path = typer.Option(..., "--access", help="The access file; made if there is none."),
    days: int = typer.Option(0, min=0, help="After so many days it runs out; 0 for never."),
    json: bool = JsonOption,
) -> None:
    """Make a token and print it, once: the file keeps its fingerprint alone.

    A viewer looks. An operator also frees the space of runs. A data controller also checks the audit chain. A proxy
    says in a header who asks; the file's [users] gives them roles.
    """
    _check_extra()
    from datetime import UTC, datetime, timedelta

    from abaton.dashboard import ViewerRole, add_token

    if role not in list(ViewerRole):
        raise SettingsError(
            f"there is no role '{role}'", where="--role", remedy=f"use {', '.join(ViewerRole)}"
        )
    until = datetime.now(UTC) + timedelta(days=days) if days else None
    made = add_token(access, name, ViewerRole(role), until)
    emit({"name": name, "role": role, "token": made}) if json else typer.echo(made)
    note(f"the token of {name} ({role}) is shown this once; its fingerprint is in {access}")


def read_access(path: Path | None) -> AccessFile | None:
    """Who may use the dashboard, if a file says so."""
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
            f"the dashboard needs '{error.name}'", remedy="install it with: pip install 'abaton[serve]'"
        ) from None
    del fastapi, uvicorn
