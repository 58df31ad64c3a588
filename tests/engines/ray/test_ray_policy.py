"""What a site's policy refuses, once more with the work done on a real Ray: the site's say stays at the site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_site_policy import *  # noqa: F403 - every test of policies
from tests.engines.test_site_policy import CODEC, Make

from abaton.codecs import parse
from abaton.engines import Engine, RayEngine, Remake
from abaton.learning import Examples, Learner

pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def remade(about: Mapping[str, Any], train: Examples, validation: Examples | None) -> Learner:
    """A learner on a worker, which knows nothing of its site's policy."""
    from tests.engines.test_engine_contract import MODEL

    return Learner(about["name"], MODEL, train, parse(CODEC), 0, validation=validation)


@pytest.fixture
def make() -> Make:
    def ray(learners: Mapping[str, Learner], keep: Callable[[bytes], str], folder: Path) -> Engine:
        remake = Remake(
            "tests.engines.ray.test_ray_policy:remade", {name: {"name": name} for name in learners}
        )
        return RayEngine(learners, remake, keep=keep, check=lambda *_: None, states=folder)

    return ray
