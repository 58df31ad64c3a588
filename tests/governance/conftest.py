from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from abaton.governance import AuditEntry, AuditLog, ConsentQuery, ConsentRegistry, KeySet, metadata
from abaton.governance.audit_log import append_in
from abaton.governance.consent_status import subject_lock, write_consent
from abaton.governance.identifiers import registry_pseudonym
from abaton.governance.timestamps import parse_timestamp
from abaton.store import Database

WHEN = "2026-03-01T12:00:00.000Z"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
STUDY, DOCUMENT, NEWER = "../heart/2026'x';--%00", "ab" * 32, "cd" * 32
REGISTRY_KEY = bytes(range(32))
assert parse_timestamp(WHEN) == NOW


def random_source(seed: str):
    """Return a source of random bytes that are the same in every run."""
    numbers = itertools.count()

    def random_bytes(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(numbers)}".encode()).digest(size)

    return random_bytes


def pseudonym(name: str) -> str:
    return registry_pseudonym(REGISTRY_KEY, "subject", name)


@pytest.fixture(scope="session")
def centre() -> KeySet:
    return KeySet.new("centre", random_source("centre"), WHEN)


@pytest.fixture(scope="session")
def site() -> KeySet:
    return KeySet.new("site-a", random_source("site"), WHEN)


@pytest.fixture
def database(database_url):
    with Database(database_url, metadata) as opened:
        yield opened


@pytest.fixture
def audit(database):
    return AuditLog(database)


@pytest.fixture
def registry(database):
    """Return a registry in which the study is published and Ann has consented."""
    consent_registry = ConsentRegistry(database)
    consent_registry.publish(STUDY, DOCUMENT, NOW, ends=NOW + 100 * DAY, keep_until=NOW + 200 * DAY)
    consent_registry.enrol({pseudonym("ann"): NOW + 50 * DAY}, STUDY, DOCUMENT, NOW)
    return consent_registry


def store_consent(registry: ConsentRegistry, query: ConsentQuery, consent: dict, when: datetime) -> None:
    """Store any consent in a registry, as if imported."""

    def work(connection) -> None:
        write_consent(connection, query, consent, when)
        append_in(connection, AuditEntry("consent-stored", subject=query.subject, study=query.study), when)

    registry.database.write(work, lock=subject_lock(query.subject))


def query_for(name: str = "ann", **more) -> ConsentQuery:
    return ConsentQuery(pseudonym(name), STUDY, DOCUMENT, **more)
