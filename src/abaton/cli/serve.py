"""``abaton serve intake`` and ``abaton serve study``: services of the research centre."""

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
from abaton.cli.key_access import DATABASE, KEYS, PASSPHRASE_ENV, PASSPHRASE_FILE, database, open_key_set
from abaton.cli.output import emit, note
from abaton.cli.runs import StoreOption, opened_store
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.tls import CertificateAuthority
    from abaton.governance import ConsentRegistry
    from abaton.http_server import App
    from abaton.store import RunRow
    from abaton.study_run import NetworkRunOptions


app = typer.Typer(
    help="Run the research centre: receive records, or train over a network.",
    no_args_is_help=True,
)


@app.command()
def intake(
    *,
    keys: Path = KEYS,
    database_url: str | None = DATABASE,
    inbox: Path = typer.Option(Path("inbox"), "--inbox", help="Folder of received envelopes"),
    host: str = HOST,
    port: int = port_option(8720),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    behind_proxy: bool = BEHIND_PROXY,
    dashboard: bool = typer.Option(False, "--dashboard", help="Serve the dashboard at /dashboard/"),
    access: Path | None = ACCESS,
    citizen: bool = typer.Option(False, "--citizen", help="Serve the citizen page at /take-part/STUDY"),
    store: Path | None = StoreOption,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Serve published studies; receive consents, sealed records and withdrawals; reply with signed receipts.

    Prints the address on stdout when requests are accepted. Without TLS it listens on this machine only. The dashboard
    requires --access except on this machine.
    """
    try:
        from abaton.governance.intake import IntakeService, ListenSettings
        from abaton.governance.intake import serve as serving
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the package '{error.name}' is not installed", remedy="pip install 'abaton[serve]'"
        ) from None
    from abaton.governance import Inbox

    listen = ListenSettings(host, port, certificate, certificate_key, behind_proxy)
    listen.check()
    centre = open_key_set(keys, passphrase_file, passphrase_env)
    access_file = read_access(access)
    if dashboard:
        from abaton.dashboard import check_access

        check_access(listen, access_file)
    with database(database_url, create=True) as opened:
        inbox_service = Inbox(inbox, opened, centre.public, centre.signing_key)
        wrap_app = _with_page(inbox_service.registry, citizen=citizen)
        note(f"receipts are signed by {centre.signing_key.id}")
        if not dashboard:
            serving(IntakeService(inbox_service), listen, typer.echo, wrap_app)
            return
        from abaton.dashboard import DashboardState, mount_beside

        with opened_store(store, create=True) as runs:
            pages = DashboardState(runs, opened, access_file, base="/dashboard", secure=listen.is_encrypted)
            serving(
                IntakeService(inbox_service),
                listen,
                typer.echo,
                lambda service: wrap_app(mount_beside(service, pages)),
            )


def _with_page(registry: ConsentRegistry, *, citizen: bool) -> Callable[[App], App]:
    """Return a function that adds the citizen page to `abaton serve intake`, if requested."""
    if not citizen:
        return lambda service: service
    from abaton.citizen.page_files import PageFile, allowed_origins
    from abaton.citizen.page_server import beside_intake

    page = PageFile.read()
    note(f"citizen page: build {page.build}")
    return partial(beside_intake, page=page, connect_origins=partial(allowed_origins, registry))


@app.command()
def study(
    document: Path = typer.Argument(..., metavar="STUDY", help="Study document", show_default=False),
    *,
    min_sites: int = typer.Option(
        2, "--min-sites", min=2, help="Start training when this many sites are connected"
    ),
    host: str = HOST,
    port: int = port_option(8443),
    public_address: str = typer.Option(
        "",
        "--public-address",
        help="Host name for sites, if it differs from --host or the host of --superlink",
    ),
    certificate: Path | None = CERTIFICATE,
    certificate_key: Path | None = CERTIFICATE_KEY,
    authority: Path | None = typer.Option(
        None,
        "--authority",
        help="Certificate authority (PEM); without the three files a private authority is created",
    ),
    superlink: str | None = typer.Option(
        None, "--superlink", help="host:port of a running SuperLink (default: start one)"
    ),
    seed: int = typer.Option(1990, "--seed", min=0, help="Seed of all random numbers"),
    store: Path | None = StoreOption,
) -> None:
    """Serve a study to sites over a network until its run is finished; a restart resumes the run.

    abaton serve study study.toml --host 0.0.0.0 --public-address centre.example.org --min-sites 3
    """
    from abaton.store import default_folder
    from abaton.study_run import NetworkRunOptions

    certificates = certificates_from_options(certificate, certificate_key, authority, superlink)
    store_folder = store or default_folder()
    serve_study(
        document,
        store_folder,
        (host, port, public_address),
        certificates,
        NetworkRunOptions(min_sites, seed),
        superlink=superlink,
    )


class ManagedProcesses(Protocol):
    """Processes that are kept running."""

    def start(self) -> None:
        """Start the processes that a command-line service keeps running."""

    def watch(self) -> None:
        """Restart processes of a command-line service that have exited."""

    def stop(self) -> None:
        """Stop the processes of a command-line service."""


def on_sigterm() -> None:
    """Treat SIGTERM of systemd like Ctrl-C in a command-line service."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def run_processes(processes: ManagedProcesses, on_tick: Callable[[], None]) -> None:
    """Run processes as a command-line service until Ctrl-C or SIGTERM; call `on_tick` four times a second."""
    on_sigterm()
    try:
        processes.start()
        while True:
            processes.watch()
            on_tick()
            time.sleep(0.25)
    finally:
        processes.stop()


def certificates_from_options(
    certificate: Path | None, key: Path | None, authority: Path | None, superlink: str | None
) -> CertificateAuthority | None:
    """Return the certificates of the options of `abaton serve study`; `None` if they are to be created."""
    from abaton.engines.flower.tls import CertificateAuthority

    if superlink is not None and authority is not None:
        return CertificateAuthority(authority, certificate or authority, key or authority)
    if certificate and key and authority:
        return CertificateAuthority(authority, certificate, key)
    if certificate or key or authority or superlink:
        raise SettingsError(
            "the certificate options are incomplete",
            where="network",
            remedy="use --certificate, --certificate-key and --authority together, or none; "
            "with --superlink, use --authority",
        )
    return None


def serve_study(
    study: Path,
    store: Path,
    listen: tuple[str, int, str],
    certificates: CertificateAuthority | None,
    options: NetworkRunOptions,
    *,
    superlink: str | None,
) -> RunRow:
    """Serve a study to sites until its run is finished (`abaton serve study`)."""
    from abaton.engines.flower.server_processes import ServerAddress
    from abaton.study import load_study
    from abaton.study_run.server import StudyServer, open_centre

    document = load_study(study, load=True)
    if superlink is not None:
        host, _, port = superlink.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingsError(
                f"'{superlink}' is not an address", where="--superlink", remedy="use host:port"
            )
        address = ServerAddress(host, int(port), listen[2])
    else:
        address = ServerAddress(*listen)
    centre = open_centre(store, address, certificates, note, embedded=superlink is None)
    on_sigterm()
    row = StudyServer(centre, store, document, options, note).run()
    emit({"run": row.run, "status": row.status, "digest": (row.result or {}).get("digest")})
    return row
