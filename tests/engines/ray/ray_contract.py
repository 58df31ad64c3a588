"""The contract test's learners on a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tests.engines import test_engine_contract as contract

from abaton.engines import Engine, RayEngine
from abaton.learners import Learner


class RemoteLearner(contract.MisbehavingLearner):
    """Learner of the contract test on a worker."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        contract.TESTS = 0  # here every process may be killed
        super().__init__(*arguments, **options)


def make(
    learners: Mapping[str, Learner], store_payload: contract.StorePayload
) -> AbstractContextManager[Engine]:
    """Engine on the cluster that this process is connected to."""
    assert os.getpid() == contract.TESTS
    contract.MisbehavingLearner.remote_class = classmethod(lambda cls: RemoteLearner)  # type: ignore[method-assign]
    return RayEngine(learners, store_payload=store_payload, check_payload=contract.check)
