"""Study documents shared by the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from abaton.study import Study, study_from_toml

FULL = Path(__file__).parent / "full.toml"


@pytest.fixture(scope="session")
def full_text() -> str:
    """Return a study document that uses every key."""
    return FULL.read_text("utf-8")


@pytest.fixture(scope="session")
def full(full_text: str) -> Study:
    return study_from_toml(full_text)
