"""Engine contract on a real SuperLink: learners behind nodes with keys, TLS and the proxy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.engines.flower import flower_contract as contract
from tests.engines.flower.flower_processes import running, until
from tests.engines.test_engine_contract import *  # noqa: F403 - every test of the contract
from tests.engines.test_engine_contract import MakeEngine

from abaton.engines.flower.server_processes import open_transport

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def on_flower(tmp_path_factory) -> Iterator[MakeEngine]:
    """One federation for all tests, since its start is slow."""
    folder = tmp_path_factory.mktemp("contract")
    with (
        running(folder, contract.SITES, "tests.engines.flower.flower_contract:open_worker") as federation,
        open_transport(federation.centre.folder) as transport,
    ):
        until(lambda: len(transport.nodes()) == len(contract.SITES))
        yield partial(contract.make, transport, federation.centre.admitted_nodes())


@pytest.fixture
def make(on_flower) -> MakeEngine:
    return on_flower
