"""``abaton serve study``: the research centre of a study on a network."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from abaton.cli.output import emit, note
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.tls import Certificates
    from abaton.study_run import Wish
    from abaton.store import RunRow


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
    from abaton.study_run.server import Service, open_centre
    from abaton.study import load_study

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
