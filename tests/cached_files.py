"""Cache of ingested sites by the bytes of their files: most tests of study runs check later steps.

A test that changes a file of a site, such as a record or a consent, ingests the site again.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from abaton.site import LoadedSiteConfig, SitePipeline
from abaton.study_run import ingest
from abaton.study_run.consent_roster import RemainingConsentGate

_INGESTS: dict[object, ingest.SiteIngest] = {}
_ingest_site, _build_table = ingest._ingest_site, ingest._build_table


def _bytes_of(folder: Path) -> str:
    """Return checksums of the files of a folder, computed by another process.

    Opening and closing the file of an SQLite database in this process would release its locks.
    """
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    names = [str(path.relative_to(folder)) for path in files if not path.name.endswith("-shm")]
    return subprocess.run(["cksum", *names], cwd=folder, check=True, capture_output=True, text=True).stdout


class _IngestCache:
    """Replaces the functions of `abaton.study_run.ingest` that ingest one site."""

    def __init__(self) -> None:
        self._bytes = ""

    def ingest_site(self, study, file, now, on_progress, gate) -> ingest.SiteIngest:
        """Read the bytes before the site is opened, because opening changes its database."""
        self._bytes = _bytes_of(file.folder)
        return _ingest_site(study, file, now, on_progress, gate)

    def build_table(self, file: LoadedSiteConfig, site: SitePipeline) -> ingest.SiteIngest:
        """Return the cached ingest of the same site, study and time."""
        if isinstance(site.gate, RemainingConsentGate):  # a resumed run
            return _build_table(file, site)
        timestamp = None if abs(site.now - datetime.now(UTC)) < timedelta(minutes=1) else site.now
        study_json = site.study.model_dump_json(exclude={"learning"})  # the ingest does not depend on it
        key = study_json, timestamp, file.config.model_dump_json(), self._bytes
        if key not in _INGESTS:
            _INGESTS[key] = _build_table(file, site)
        return replace(_INGESTS[key], file=file)


@pytest.fixture(autouse=True)
def _cached_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _IngestCache()
    monkeypatch.setattr(ingest, "_ingest_site", cache.ingest_site)
    monkeypatch.setattr(ingest, "_build_table", cache.build_table)
