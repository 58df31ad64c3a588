"""A centre that really listens, and a site that talks to it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

import pytest
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, asking, drawing, person

from abaton.governance import Audit, Inbox, Outbox, Registry, Ring, SenderRole, Senders, metadata
from abaton.site import CentreClient, Web
from abaton.site.sources.fhir_server.retry import Clock, Patience
from abaton.store import Database

CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM"}\n'


@contextlib.contextmanager
def served(centre, listen=None) -> Iterator[str]:
    """The address of a centre's service, which runs in a thread."""
    from abaton.governance.intake import make_app
    from abaton.governance.intake.server import Listen, _Server, configure

    ready: queue.Queue[str] = queue.Queue()
    server = _Server(configure(make_app(centre), listen or Listen(port=0), centre.limits), ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=30)
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def inbox(registry, centre, site, tmp_path):
    Senders(registry.database).enter(site.public, SenderRole.SITE, NOW)
    return Inbox(tmp_path / "inbox", registry.database, centre.public, centre.signing)


@pytest.fixture
def house(inbox):
    """Makes a centre with limits of its own; its clock stands still."""
    from abaton.governance.intake import Centre, Limits

    def make(**limits):
        return Centre(inbox, Limits(**limits), now=lambda: NOW)

    return make


@pytest.fixture
def address(house):
    with served(house()) as found:
        yield found


def client_of(address, ring, centre, **more):
    clock = Clock(now=lambda: NOW.timestamp(), sleep=lambda seconds: None)
    part, options = (
        more.pop("part", 100),
        {"patience": Patience(timeout=20, retries=2), "clock": clock, **more},
    )
    web = Web(address, keeps_line=True, **options)
    _OPEN.append(web)
    return CentreClient(web, centre.public, ring.signing, part=part)


_OPEN: list[Web] = []


@pytest.fixture(autouse=True)
def _hang_up():
    yield
    while _OPEN:
        _OPEN.pop().close()


@pytest.fixture
def client(address, site, centre):
    return client_of(address, site, centre)


@pytest.fixture
def stranger() -> Ring:
    return Ring.new("site-b", drawing("stranger"), WHEN)


@pytest.fixture
def outbox(tmp_path):
    with Database(tmp_path / "site.db", metadata) as database:
        registry = Registry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        registry.enrol({person("ann"): None}, STUDY, DOCUMENT, NOW)
        yield Outbox(tmp_path / "outbox", database)


@pytest.fixture
def queued(outbox, site, centre):
    return outbox.put(asking("ann"), [CONTENT], site.signing, centre.public.sealing, NOW, drawing("content"))


def refusals(database) -> list[tuple[str, int]]:
    """The codes and statuses of the requests that the audit chain tells of as refused."""
    return [
        (entry["outcome"], entry["detail"]["status"])
        for entry in Audit(database).entries()
        if entry["action"] == "request-refused"
    ]
