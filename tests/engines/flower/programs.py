"""A test federation's programs: a centre and its sites on loopback, each a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from abaton.engines.flower.centre import Address, Centre
from abaton.engines.flower.certificates import issue, node_key
from abaton.engines.flower.nodes import ROLES, Membership, Nodes, free_port

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 1500.0


class Federation:
    """The centre's and the sites' programs, with TLS and a key for each node."""

    def __init__(self, folder: Path, sites: Iterable[str], desk: str, terms: str = "") -> None:
        self.folder, self.said = folder, []
        own = issue(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
        address = Address("127.0.0.1", free_port())
        self.centre = Centre(folder / "centre", address, own, self.said.append)
        self.sites = {
            site: Nodes(
                Membership(site, str(address), own.authority, desk, folder / site, terms), self.said.append
            )
            for site in sites
        }

    def start(self) -> None:
        self.centre.start()
        for site, nodes in self.sites.items():
            for role in ROLES:
                _, public = node_key(nodes.key(role))
                self.centre.admit(public, site, role)
            nodes.start()

    def stop(self) -> None:
        for nodes in self.sites.values():
            nodes.stop()
        self.centre.stop()

    def tend(self, until: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Keep everything running until something is so."""
        end = time.monotonic() + patience
        while not until():
            assert time.monotonic() < end, self.said
            self.centre.watch()
            for nodes in self.sites.values():
                nodes.watch()
            time.sleep(0.5)


def until(so: Callable[[], object], patience: float = 180.0) -> None:
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
