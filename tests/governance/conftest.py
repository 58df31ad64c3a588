from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from abaton.governance import Ask, Audit, Entry, Registry, Ring, metadata
from abaton.governance.audit_log import append_in
from abaton.governance.consent_status import subject_lock, write_consent
from abaton.governance.identifiers import moment, tag
from abaton.store import Database

WHEN = "2026-03-01T12:00:00.000Z"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
STUDY, DOCUMENT, NEWER = "../heart/2026'x';--%00", "ab" * 32, "cd" * 32
TAG_KEY = bytes(range(32))
assert moment(WHEN) == NOW


def drawing(seed: str):
    """Random bytes that are the same in every run."""
    numbers = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(numbers)}".encode()).digest(size)

    return draw


def person(name: str) -> str:
    return tag(TAG_KEY, "subject", name)


@pytest.fixture(scope="session")
def centre() -> Ring:
    return Ring.new("centre", drawing("centre"), WHEN)


@pytest.fixture(scope="session")
def site() -> Ring:
    return Ring.new("site-a", drawing("site"), WHEN)


@pytest.fixture
def database(database_url):
    with Database(database_url, metadata) as opened:
        yield opened


@pytest.fixture
def audit(database):
    return Audit(database)


@pytest.fixture
def registry(database):
    """A registry in which the study is published and Ann has said yes."""
    made = Registry(database)
    made.publish(STUDY, DOCUMENT, NOW, ends=NOW + 100 * DAY, keep_until=NOW + 200 * DAY)
    made.enrol({person("ann"): NOW + 50 * DAY}, STUDY, DOCUMENT, NOW)
    return made


def say(registry: Registry, ask: Ask, consent: dict, when: datetime) -> None:
    """Write any consent into a registry, as one that came on some way."""

    def work(connection) -> None:
        write_consent(connection, ask, consent, when)
        append_in(connection, Entry("consent-said", about=ask.subject, study=ask.study), when)

    registry.database.write(work, lock=subject_lock(ask.subject))


def asking(name: str = "ann", **more) -> Ask:
    return Ask(person(name), STUDY, DOCUMENT, **more)
