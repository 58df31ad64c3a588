"""``abaton serve intake`` and ``abaton serve study``: the research centre takes records, or trains with sites.

``abaton serve study``: the research centre of a study on a network.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from abaton.cli.dashboard import (
    ACCESS,
    BEHIND_PROXY,
    CERTIFICATE,
    CERTIFICATE_KEY,
    HOST,
    port_option,
    read_access,
)
from abaton.cli.key_access import DATABASE, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, ring
from abaton.cli.output import emit, note
from abaton.cli.runs import StoreOption, opened_store
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.tls import Certificates
    from abaton.governance import Registry
    from abaton.http_server import App
    from abaton.store import RunRow
    from abaton.study_run import Wish


app = typer.Typer(
    help="The research centre: take consents and records, or train with sites on a network.",
    no_args_is_help=True,
)


@app.command()
def intake(
    *,
    keys: Path = KEYS,
    database_url: str | None = DATABASE,
    inbox: Path = typer.Option(Path("inbox"), "--inbox", help="The folder of received envelopes."),
    host: str = HOST,
    port: int = port_option(8720),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    behind_proxy: bool = BEHIND_PROXY,
    dashboard: bool = typer.Option(
        False, "--dashboard", help="Show the runs of the store, and governance in ranges, at /dashboard/."
    ),
    access: Path | None = ACCESS,
    citizen: bool = typer.Option(
        False, "--citizen", help="Serve the page on which people take part themselves, at /take-part/STUDY."
    ),
    store: Path | None = StoreOption,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Publish studies; take consents, sealed records, withdrawals and exits; answer with signed receipts.

    Prints the address on stdout when requests are taken. Without TLS it listens on this machine alone. With
    --dashboard, whoever --access names may watch runs at /dashboard/.
    """
    try:
        from abaton.governance.intake import Centre, Listen
        from abaton.governance.intake import serve as serving
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the service needs '{error.name}'", remedy="install it with: pip install 'abaton[serve]'"
        ) from None
    from abaton.governance import Inbox

    listen = Listen(host, port, certificate, certificate_key, behind_proxy)
    listen.check()
    centre = ring(keys, passphrase_file, passphrase_env)
    known = read_access(access)
    if dashboard:
        from abaton.dashboard import check_access

        check_access(listen, known)
    with database(database_url, make=True) as opened:
        box = Inbox(inbox, opened, centre.public, centre.signing)
        around = _with_page(box.registry, citizen=citizen)
        note(f"receipts are signed by {centre.signing.id}")
        if not dashboard:
            serving(Centre(box), listen, typer.echo, around)
            return
        from abaton.dashboard import Dashboard, beside

        with opened_store(store, make=True) as runs:
            pages = Dashboard(runs, opened, known, base="/dashboard", secure=listen.is_encrypted)
            serving(Centre(box), listen, typer.echo, lambda service: around(beside(service, pages)))


def _with_page(registry: Registry, *, citizen: bool) -> Callable[[App], App]:
    """What puts the citizen's page beside the intake, if it is wanted."""
    if not citizen:
        return lambda service: service
    from abaton.citizen.page_files import Page, reached_by
    from abaton.citizen.page_server import beside_intake

    page = Page.read()
    note(f"the citizen's page is build {page.build}")
    return partial(beside_intake, page=page, reached=partial(reached_by, registry))


@app.command()
def study(
    document: Path = typer.Argument(..., metavar="STUDY", help="The study document.", show_default=False),
    *,
    at_least: int = typer.Option(2, "--at-least", min=2, help="Begin when so many sites are there."),
    host: str = HOST,
    port: int = port_option(8443),
    reachable_as: str = typer.Option(
        "", "--reachable-as", help="What sites dial, if that is not --host (or not the host of --superlink)."
    ),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    authority: Path | None = typer.Option(
        None,
        "--authority",
        help="What signed the certificate (PEM); without the three, a private authority is made.",
    ),
    superlink: str | None = typer.Option(
        None, "--superlink", help="host:port of a SuperLink that runs already; one is started otherwise."
    ),
    seed: int = typer.Option(1990, "--seed", min=0, help="Decides every random number."),
    store: Path | None = StoreOption,
) -> None:
    """Serve one study to sites on a network, until its run has ended; started again, it goes on.

    abaton serve study study.toml --host 0.0.0.0 --reachable-as centre.example.org --at-least 3
    """
    from abaton.store import default_folder
    from abaton.study_run import Wish

    given = given_certificates(certificate, certificate_key, authority, superlink)
    place = store or default_folder()
    conduct(document, place, (host, port, reachable_as), given, Wish(at_least, seed), superlink=superlink)


class Programs(Protocol):
    """Programs that are kept running."""

    def start(self) -> None:
        """Start them."""

    def watch(self) -> None:
        """Start again what has ended."""

    def stop(self) -> None:
        """End them."""


def on_sigterm() -> None:
    """Let systemd's way to say stop be like Ctrl-C."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def keep(programs: Programs, look: Callable[[], None]) -> None:
    """Keep programs running, and look at them, until somebody says stop, by Ctrl-C or as systemd does."""
    on_sigterm()
    try:
        programs.start()
        while True:
            programs.watch()
            look()
            time.sleep(0.25)
    finally:
        programs.stop()


def given_certificates(
    certificate: Path | None, key: Path | None, authority: Path | None, superlink: str | None
) -> Certificates | None:
    """The certificates that were given; none if they are to be made."""
    from abaton.engines.flower.tls import Certificates

    if superlink is not None and authority is not None:
        return Certificates(authority, certificate or authority, key or authority)
    if certificate and key and authority:
        return Certificates(authority, certificate, key)
    if certificate or key or authority or superlink:
        raise SettingsError(
            "a certificate, its key and its authority belong together",
            where="network",
            remedy="give all three of --certificate, --certificate-key and --authority, or none; "
            "with --superlink, --authority",
        )
    return None


def conduct(
    study: Path,
    store: Path,
    where: tuple[str, int, str],
    given: Certificates | None,
    wish: Wish,
    *,
    superlink: str | None,
) -> RunRow:
    """Serve a study until its run has ended."""
    from abaton.engines.flower.server_processes import Address
    from abaton.study import load_study
    from abaton.study_run.server import Service, open_centre

    document = load_study(study, load=True)
    if superlink is not None:
        host, _, port = superlink.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingsError(
                f"'{superlink}' is no address", where="--superlink", remedy="write it as host:port"
            )
        address = Address(host, int(port), where[2])
    else:
        address = Address(*where)
    centre = open_centre(store, address, given, note, embedded=superlink is None)
    on_sigterm()
    row = Service(centre, store, document, wish, note).run()
    emit({"run": row.run, "status": row.status, "model": (row.result or {}).get("digest")})
    return row
