from __future__ import annotations

import hashlib
import itertools

import pytest

from abaton.governance.rings import Ring

WHEN = "2026-03-01T12:00:00Z"


def drawing(seed: str):
    """Random bytes that are the same in every run."""
    numbers = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(numbers)}".encode()).digest(size)

    return draw


@pytest.fixture(scope="session")
def centre() -> Ring:
    return Ring.new("centre", drawing("centre"), WHEN)


@pytest.fixture(scope="session")
def site() -> Ring:
    return Ring.new("site-a", drawing("site"), WHEN)
