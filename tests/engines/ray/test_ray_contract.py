"""The engine contract test once more, with its learners as tasks on a real Ray."""

from __future__ import annotations

import pytest
from tests.engines.ray import ray_contract as contract
from tests.engines.test_engine_contract import *  # noqa: F403 - every test of the contract

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def make():
    return contract.make
