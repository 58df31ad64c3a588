"""A test federation's programs: a centre and its sites on loopback, each a process of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from abaton.engines.flower.server_processes import Address, Centre
from abaton.engines.flower.tls import issue
from abaton.engines.flower.site_processes import Membership, SitePrograms
from abaton.engines.flower.supervisor import free_port

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 600.0


class Federation:
    """The centre's and the sites' programs, with TLS and a key for each node; what ends is started again."""

    def __init__(self, folder: Path, sites: Iterable[str], desk: str, terms: str = "") -> None:
        self.folder, self.said = folder, []
        own = issue(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
        address = Address("127.0.0.1", free_port())
        self.centre = Centre(folder / "centre", address, own, self.said.append)
        self.sites: dict[str, SitePrograms] = {}
        self._desk, self._terms, self._authority = desk, terms, own.authority
        for site in sites:
            self.add(site)
        self.kept: list = []
        self._started, self._ended = threading.Event(), threading.Event()
        self._tending = threading.Thread(target=self._tend)

    def add(self, site: str) -> SitePrograms:
        """One more site, which is not started yet."""
        where = str(self.centre.address), self._authority, self._desk, self.folder / site, self._terms
        self.sites[site] = SitePrograms(Membership(site, *where), self.said.append)
        return self.sites[site]

    def admit(self, site: str) -> int:
        self.sites[site].make_key()
        return self.centre.admit(self.sites[site].public_key(), site)

    def start(self) -> None:
        self.centre.start()
        for site in self.sites:
            self.admit(site)
        self._tending.start()
        until(self._started.is_set)

    def _tend(self) -> None:
        """Everything is started by one thread: programs end with whoever started them."""
        for programs in self.sites.values():
            programs.start()
        self._started.set()
        while not self._ended.wait(0.1):
            for programs in (self.centre, *list(self.sites.values()), *self.kept):
                programs.watch()

    def stop(self) -> None:
        self._ended.set()
        if self._tending.ident:
            self._tending.join()
        for programs in (*self.kept, *self.sites.values(), self.centre):
            programs.stop()


def until(so: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not so():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes(*words: str) -> list[int]:
    """The processes that have all these words in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(path.parent.name))
    return found


@contextmanager
def running(folder: Path, sites: Iterable[str], desk: str, terms: str = "") -> Iterator[Federation]:
    """A federation from its start to its end; its programs find this checkout."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    made = Federation(folder, sites, desk, terms)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
