"""A small federation that the tests share: the lab's four hospitals, with consents."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.reading_once import _reading_once  # noqa: F401

from abaton.lab.demo import Demonstration, demonstration, opened


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """The four hospitals, written once; tests that change them copy them."""
    folder = tmp_path_factory.mktemp("hospitals") / "all"
    demonstration(folder, 3, 0.25, rounds=16)
    return folder


@pytest.fixture
def four(written, tmp_path) -> Demonstration:
    """The four hospitals in a folder of the test's own."""
    shutil.copytree(written, tmp_path / "hospitals")
    return opened(tmp_path / "hospitals")
