"""Processes of a test federation: a centre and its sites on loopback."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from abaton.engines.flower.server_processes import ServerAddress, ServerProcesses
from abaton.engines.flower.site_processes import SiteMembership, SiteProcesses
from abaton.engines.flower.supervisor import free_port
from abaton.engines.flower.tls import issue_certificate

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_SECONDS = 600.0


class Federation:
    """Processes of the centre and the sites, with TLS and a key for each node; exited ones are restarted."""

    def __init__(self, folder: Path, sites: Iterable[str], worker: str, study_hash: str = "") -> None:
        self.folder, self.reports = folder, []
        certificates = issue_certificate(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
        address = ServerAddress("127.0.0.1", free_port())
        self.centre = ServerProcesses(folder / "centre", address, certificates, self.reports.append)
        self.sites: dict[str, SiteProcesses] = {}
        self._worker, self._terms, self._authority = worker, study_hash, certificates.authority
        for site in sites:
            self.add(site)
        self.supervisors: list = []
        self._started, self._stopping = threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def add(self, site: str) -> SiteProcesses:
        """Add a site without starting it."""
        where = str(self.centre.address), self._authority, self._worker, self.folder / site, self._terms
        self.sites[site] = SiteProcesses(SiteMembership(site, *where), self.reports.append)
        return self.sites[site]

    def admit(self, site: str) -> int:
        self.sites[site].make_key()
        return self.centre.admit(self.sites[site].public_key(), site)

    def start(self) -> None:
        self.centre.start()
        for site in self.sites:
            self.admit(site)
        self._watcher.start()
        until(self._started.is_set)

    def _watch(self) -> None:
        """Start all processes in one thread, since they end with the thread that started them."""
        for processes_of_one in self.sites.values():
            processes_of_one.start()
        self._started.set()
        while not self._stopping.wait(0.1):
            for processes_of_one in (self.centre, *list(self.sites.values()), *self.supervisors):
                processes_of_one.watch()

    def stop(self) -> None:
        self._stopping.set()
        if self._watcher.ident:
            self._watcher.join()
        for processes_of_one in (*self.supervisors, *self.sites.values(), self.centre):
            processes_of_one.stop()


def until(condition: Callable[[], object], timeout: float = TIMEOUT_SECONDS) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes(*texts: str) -> list[int]:
    """Ids of the processes whose command contains all texts."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(text in command for text in texts):
            pids.append(int(path.parent.name))
    return pids


@contextmanager
def running(folder: Path, sites: Iterable[str], worker: str, study_hash: str = "") -> Iterator[Federation]:
    """Running federation; its processes import this checkout."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    federation = Federation(folder, sites, worker, study_hash)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
