"""A listening centre and a site that connects to it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

import pytest
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, pseudonym, query_for, random_source

from abaton.governance import (
    AuditLog,
    ConsentRegistry,
    Inbox,
    KeySet,
    Outbox,
    SenderRegistry,
    SenderRole,
    metadata,
)
from abaton.site import CentreClient, FhirHttpClient
from abaton.site.sources.fhir_server.retry import RetryClock, RetryPolicy
from abaton.store import Database

CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM"}\n'


@contextlib.contextmanager
def served(centre, listen=None) -> Iterator[str]:
    """Yield the address of a centre's service that runs in a thread."""
    from abaton.governance.intake import make_app
    from abaton.governance.intake.server import ListenSettings, _Server, configure

    ready: queue.Queue[str] = queue.Queue()
    server = _Server(configure(make_app(centre), listen or ListenSettings(port=0), centre.limits), ready.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=30)
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def inbox(registry, centre, site, tmp_path):
    SenderRegistry(registry.database).register(site.public, SenderRole.SITE, NOW)
    return Inbox(tmp_path / "inbox", registry.database, centre.public, centre.signing_key)


@pytest.fixture
def make_centre(inbox):
    """Return a factory of centres with given limits and a fixed clock."""
    from abaton.governance.intake import IntakeLimits, IntakeService

    def make(**limits):
        return IntakeService(inbox, IntakeLimits(**limits), now=lambda: NOW)

    return make


@pytest.fixture
def address(make_centre):
    with served(make_centre()) as url:
        yield url


def client_of(address, key_set, centre, **more):
    clock = RetryClock(now=lambda: NOW.timestamp(), sleep=lambda seconds: None)
    chunk_bytes, options = (
        more.pop("chunk_bytes", 100),
        {"retry_policy": RetryPolicy(timeout=20, retries=2), "clock": clock, **more},
    )
    http_client = FhirHttpClient(address, keep_alive=True, **options)
    _OPEN.append(http_client)
    return CentreClient(http_client, centre.public, key_set.signing_key, chunk_bytes=chunk_bytes)


_OPEN: list[FhirHttpClient] = []


@pytest.fixture(autouse=True)
def _close_clients():
    yield
    while _OPEN:
        _OPEN.pop().close()


@pytest.fixture
def client(address, site, centre):
    return client_of(address, site, centre)


@pytest.fixture
def stranger() -> KeySet:
    return KeySet.new("site-b", random_source("stranger"), WHEN)


@pytest.fixture
def outbox(tmp_path):
    with Database(tmp_path / "site.db", metadata) as database:
        registry = ConsentRegistry(database)
        registry.publish(STUDY, DOCUMENT, NOW, ends=None, keep_until=None)
        registry.enrol({pseudonym("ann"): None}, STUDY, DOCUMENT, NOW)
        yield Outbox(tmp_path / "outbox", database)


@pytest.fixture
def queued(outbox, site, centre):
    return outbox.put(
        query_for("ann"),
        [CONTENT],
        site.signing_key,
        centre.public.sealing_key,
        NOW,
        random_source("content"),
    )


def refusals(database) -> list[tuple[str, int]]:
    """Return codes and statuses of the refused requests in the audit log."""
    return [
        (entry["outcome"], entry["detail"]["status"])
        for entry in AuditLog(database).entries()
        if entry["action"] == "request-refused"
    ]
