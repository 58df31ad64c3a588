"""Sites whose files hold the same bytes are read once: most tests of federations are about what comes after reading.

A test that changes a site's file, be it a record or a consent, has other bytes, and its site is read for real.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abaton.federation import reading
from abaton.federation.rolls import StillIn
from abaton.site import Site, SiteFile

_READ: dict[object, reading.Reading] = {}
_reading = reading._reading


def _bytes_of(folder: Path) -> str:
    """What the files of a folder hold; a database's index in shared memory holds nothing of its own."""
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size and not path.name.endswith("-shm"):
            found.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _once(file: SiteFile, site: Site) -> reading.Reading:
    if isinstance(site.gate, StillIn):  # a run is gone on with
        return _reading(file, site)
    moment = None if abs(site.now - datetime.now(UTC)) < timedelta(minutes=1) else site.now
    asked = site.study.model_dump_json(exclude={"learning"})  # how it learns comes later
    key = asked, moment, file.document.model_dump_json(), _bytes_of(file.folder)
    if key not in _READ:
        _READ[key] = _reading(file, site)
    return replace(_READ[key], file=file)


@pytest.fixture(autouse=True)
def _reading_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_reading", _once)
