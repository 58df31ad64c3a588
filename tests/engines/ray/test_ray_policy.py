"""What a site's policy refuses, once more with the work done on a real Ray: the site's say stays at the site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.engines.test_site_policy import *  # noqa: F403 - every test of policies
from tests.engines.test_site_policy import Make

from abaton.engines import Engine, RayEngine
from abaton.learners import Learner

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def make() -> Make:
    def ray(learners: Mapping[str, Learner], keep: Callable[[bytes], str], folder: Path) -> Engine:
        return RayEngine(learners, keep=keep, check=lambda *_: None, states=folder)

    return ray
