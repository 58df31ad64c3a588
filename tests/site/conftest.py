"""Sites that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from abaton.site import Site, load_site, open_site
from abaton.study import Study

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)

TEXT = """
[site]
id = "pisa"
name = "Hospital"
[records]
kind = "ndjson"
paths = ["records"]
[consent]
ground = "vote 7/2026"
[keys]
study = "study.key"
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A site's folder with its key."""
    key = tmp_path / "study.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    (tmp_path / "site.toml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def opened(house: Path) -> Callable[..., Site]:
    """Opens the site in the folder, with more text in its document."""

    def make(study: Study, more: str = "", **options: object) -> Site:
        (house / "site.toml").write_text(TEXT + more)
        return open_site(load_site(house / "site.toml"), study, NOW, **options)

    return make
