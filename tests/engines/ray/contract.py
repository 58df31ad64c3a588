"""The contract test's learners, as they are on a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tests.engines import test_engine_contract as contract

from abaton.engines import Engine, RayEngine
from abaton.learners import Learner


class There(contract.Odd):
    """A learner of the contract test, on a worker."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        contract.TESTS = 0  # here every process may be killed
        super().__init__(*arguments, **more)


def make(learners: Mapping[str, Learner], keep: contract.Keep) -> AbstractContextManager[Engine]:
    """The engine on the cluster that this process is connected to."""
    assert os.getpid() == contract.TESTS
    contract.Odd.elsewhere = classmethod(lambda cls: There)  # type: ignore[method-assign]
    return RayEngine(learners, keep=keep, check=contract.check)
