"""The contract test on a real network: Flower starts it at the centre, and its learners are at the sites."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.engines import test_engine_contract as contract

from abaton.engines import Engine
from abaton.engines.flower import Desk, FlowerEngine, Network, Post
from abaton.engines.flower.centre import read_admitted
from abaton.engines.flower.grid import place_of
from abaton.learning import Learner

PLACES = {"a": 0, "b": 1, "c": 2, "slow": 0, "leaver": 1, "broken": 1}
"""Each site of the contract test, and its place among the learners there: the place decides its data."""


def open_learner(site: str) -> Learner:
    """The learner that the contract test would make at this place."""
    contract.TESTS = 0  # here every process may be killed
    names = [f"nobody {i}" for i in range(PLACES[site])]
    return contract.learners(*names, site)[site]


def open_desk(config: Mapping[str, Any]) -> Desk:
    """What answers a node's messages."""
    return Desk(open_learner(str(config["site"])), place_of(config))


class OnFlower:
    """Tells the contract test to use the network for its engine 'flower'."""

    def __init__(self, post: Post, centre: Path, progress: Path) -> None:
        self.post, self.centre, self.progress = post, centre, progress

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down each result when it is there: all of them together take many minutes."""
        if report.when == "call" or report.failed:
            with self.progress.open("a") as file:
                file.write(f"{report.outcome} {report.nodeid} {report.duration:.1f}\n{report.longreprtext}\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.module.ENGINES["flower"] = self.make

    @contextmanager
    def make(self, learners: Mapping[str, Learner], keep: contract.Keep) -> Iterator[Engine]:
        """An engine whose run only those sites take part in that a test asks for."""
        admitted = {n: seat for n, seat in read_admitted(self.centre).items() if seat[0] in learners}
        network = Network(secrets.token_hex(8), contract.MODEL.layout.digest, admitted=lambda: admitted)
        yield FlowerEngine(Quiet(self.post, admitted), network, keep=keep, check=contract.check)


class Quiet:
    """A post on which only some nodes are seen."""

    def __init__(self, post: Post, admitted: Mapping[int, object]) -> None:
        self.send, self.collect, self._post, self._admitted = post.send, post.collect, post, admitted

    def nodes(self) -> list[int]:
        return [node for node in self._post.nodes() if node in self._admitted]


def conduct(post: Post, about: str) -> None:
    """Run the contract test; called by Flower at the centre, where what is printed goes to Flower's log."""
    told = json.loads(about)
    report = Path(told["report"])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        "1"  # Flower's process holds packages that pytest cannot look into
    )
    words = ["-k", "flower", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", f"--junitxml={report}"]
    plugin = OnFlower(post, Path(told["centre"]), report.with_suffix(".txt"))
    with report.with_suffix(".log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            pytest.main([contract.__file__, *words], plugins=[plugin])
        finally:
            report.with_suffix(".done").touch()
