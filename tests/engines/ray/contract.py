"""The contract test's learners, as workers on a cluster make them again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tests.engines import test_engine_contract as contract

from abaton.engines import Engine, RayEngine, Remake
from abaton.learning import Examples, Learner

MAKER = "tests.engines.ray.contract:remade"


def remade(about: Mapping[str, Any], train: Examples, validation: Examples | None) -> Learner:
    """A learner of the contract test, on a worker."""
    contract.TESTS = 0  # here every process may be killed
    return contract.Odd(about["name"], contract.MODEL, train, contract.CODEC, 0, validation=validation)


def make(learners: Mapping[str, Learner], keep: contract.Keep) -> AbstractContextManager[Engine]:
    """The engine on the cluster that this process is connected to."""
    remake = Remake(MAKER, {name: {"name": name} for name in learners})
    assert os.getpid() == contract.TESTS
    return RayEngine(learners, remake, keep=keep, check=contract.check)
