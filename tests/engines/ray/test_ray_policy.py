"""Tests of site policies on a real Ray cluster: the policy stays at the site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.engines.test_site_policy import *  # noqa: F403 - every test of policies
from tests.engines.test_site_policy import MakeEngine

from abaton.engines import Engine, RayEngine
from abaton.learners import Learner

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def make() -> MakeEngine:
    def ray(learners: Mapping[str, Learner], store_payload: Callable[[bytes], str], folder: Path) -> Engine:
        return RayEngine(
            learners, store_payload=store_payload, check_payload=lambda *_: None, state_dir=folder
        )

    return ray
