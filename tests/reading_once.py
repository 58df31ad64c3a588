"""Copies of one site are read once: most tests of federations are about what comes after reading.

A test that changes a site's file, be it a record or a consent, has another one, and its site is read for real.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abaton.federation import reading
from abaton.federation.rolls import StillIn
from abaton.site import Site, SiteFile

_READ: dict[object, reading.Reading] = {}
_reading = reading._reading


def _files_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Every file that is not empty, by its size and when it was written: a copy has both from what it is a copy of.

    No file is opened: whoever opens and closes an SQLite database's file lets go of the locks that SQLite holds on it.
    """
    found = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(
        (str(path.relative_to(folder)), about.st_size, about.st_mtime_ns)
        for path, about in found
        if about.st_size and not path.name.endswith("-shm")  # shared memory, which holds nothing of its own
    )


def _once(file: SiteFile, site: Site) -> reading.Reading:
    if isinstance(site.gate, StillIn):  # a run is gone on with
        return _reading(file, site)
    moment = None if abs(site.now - datetime.now(UTC)) < timedelta(minutes=1) else site.now
    asked = site.study.model_dump_json(exclude={"learning"})  # how it learns comes later
    key = asked, moment, file.document.model_dump_json(), _files_of(file.folder)
    if key not in _READ:
        _READ[key] = _reading(file, site)
    return replace(_READ[key], file=file)


@pytest.fixture(autouse=True)
def _reading_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_reading", _once)
