"""The engine contract test once more, on a real SuperLink: its learners behind nodes with keys, TLS and the gate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.engines.flower import contract
from tests.engines.flower.programs import running, until
from tests.engines.test_engine_contract import *  # noqa: F403 - every test of the contract
from tests.engines.test_engine_contract import Make

from abaton.engines.flower.server_processes import open_post

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def on_flower(tmp_path_factory) -> Iterator[Make]:
    """One federation for all tests: its start is what takes long."""
    folder = tmp_path_factory.mktemp("contract")
    with (
        running(folder, contract.SITES, "tests.engines.flower.contract:open_desk") as federation,
        open_post(federation.centre.folder) as post,
    ):
        until(lambda: len(post.nodes()) == len(contract.SITES))
        yield partial(contract.make, post, federation.centre.admitted())


@pytest.fixture
def make(on_flower) -> Make:
    return on_flower
