"""``abaton serve``: the research centre, which takes records and consents, or trains with sites on a network."""

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
    engine: str = typer.Option(
        "intake", "--engine", help="intake (takes records and consents) or flower (trains with sites)."
    ),
    governance: str | None = typer.Option(
        None,
        "--governance",
        help="The governance database: a file or postgresql+psycopg://… [env: ABATON_GOVERNANCE]",
    ),
    keys: Path | None = typer.Option(
        None, "--keys", help="The centre's private key file; it signs receipts.", show_default=False
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
    study: Path | None = typer.Option(None, "--study", help="flower: the study document."),
    name: str = typer.Option(
        "", "--name", help="flower: what sites dial, if that is not --host (or not the host of --superlink)."
    ),
    authority: Path | None = typer.Option(
        None,
        "--authority",
        help="flower: what signed the certificate (PEM); without the three, a private authority is made.",
    ),
    superlink: str | None = typer.Option(
        None,
        "--superlink",
        help="flower: host:port of a SuperLink that runs already; one is started otherwise.",
    ),
    sites: int = typer.Option(2, "--sites", min=2, help="flower: begin when so many sites are there."),
    seed: int = typer.Option(1990, "--seed", min=0, help="flower: decides every random number."),
) -> None:
    """Publish studies; take consents, sealed records, withdrawals and exits; answer with signed receipts.

    Prints the address on stdout when requests are taken. Without TLS it listens on this machine alone. With
    --dashboard, whoever --access names may watch runs at /dashboard/.

    With --engine flower: serve one study to sites on a network, until its run has ended; started again, it goes on.

    abaton serve --engine flower --study study.toml --host 0.0.0.0 --name centre.example.org --port 8443 --sites 3
    """
    if engine == "flower":
        from abaton.cli.serving import conduct, given_certificates
        from abaton.federation.network import Wish
        from abaton.store import default_folder

        if study is None:
            raise SettingsError("there is no study to serve", where="serve", remedy="give --study study.toml")
        given = given_certificates(certificate, key, authority, superlink)
        conduct(
            study,
            store or default_folder(),
            (host, port, name),
            given,
            Wish(sites, seed),
            superlink=superlink,
        )
        return
    if engine != "intake":
        raise SettingsError(f"there is no engine '{engine}'", where="--engine", remedy="use intake or flower")
    if keys is None:
        raise SettingsError("receipts need a key", where="serve", remedy="give --keys")
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
