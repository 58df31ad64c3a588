"""Shared fixtures: the lab's four synthetic hospitals with consents."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cached_files import _cached_ingest  # noqa: F401

from abaton.lab.demo import Demonstration, make_demo, open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """Write the four hospitals once; tests that change them copy them."""
    folder = tmp_path_factory.mktemp("hospitals") / "all"
    make_demo(folder, 3, 0.25, rounds=16, cohort=FOUR_HOSPITALS)
    return folder


@pytest.fixture
def four(written, tmp_path) -> Demonstration:
    """Return the four hospitals in a folder of the test."""
    shutil.copytree(written, tmp_path / "hospitals")
    return open_demo(tmp_path / "hospitals", cohort=FOUR_HOSPITALS)
