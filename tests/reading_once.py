"""Sites whose files hold the same bytes are read once: most tests of federations are about what comes after reading.

A test that changes a site's file, be it a record or a consent, has other bytes, and its site is read for real.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abaton.study_run import ingest
from abaton.study_run.consent_roster import StillIn
from abaton.site import Site, SiteFile

_READ: dict[object, ingest.Reading] = {}
_read, _reading = ingest._read, ingest._reading


def _bytes_of(folder: Path) -> str:
    """What the files of a folder hold, as another process sees it.

    Whoever opens and closes the file of an SQLite database lets go of the locks that this process has on it.
    """
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    names = [str(path.relative_to(folder)) for path in found if not path.name.endswith("-shm")]
    return subprocess.run(["cksum", *names], cwd=folder, check=True, capture_output=True, text=True).stdout


class _Once:
    """Reads a site as `abaton.study_run.ingest` does, if it has not read the same one before."""

    def __init__(self) -> None:
        self._bytes = ""

    def begin(self, study, file, now, step, gate) -> ingest.Reading:
        """Look at the files before the site is opened: that alone changes its database's."""
        self._bytes = _bytes_of(file.folder)
        return _read(study, file, now, step, gate)

    def go_on(self, file: SiteFile, site: Site) -> ingest.Reading:
        """What was read before, once the site has agreed to the study."""
        if isinstance(site.gate, StillIn):  # a run is gone on with
            return _reading(file, site)
        moment = None if abs(site.now - datetime.now(UTC)) < timedelta(minutes=1) else site.now
        asked = site.study.model_dump_json(exclude={"learning"})  # how it learns comes later
        key = asked, moment, file.document.model_dump_json(), self._bytes
        if key not in _READ:
            _READ[key] = _reading(file, site)
        return replace(_READ[key], file=file)


@pytest.fixture(autouse=True)
def _reading_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = _Once()
    monkeypatch.setattr(ingest, "_read", once.begin)
    monkeypatch.setattr(ingest, "_reading", once.go_on)
