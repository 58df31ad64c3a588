"""One Ray of this machine for all tests here: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    from abaton.engines.ray import connect, disconnect

    assert connect()
    yield
    disconnect()
