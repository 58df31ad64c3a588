"""The contract test on a real network: Flower starts it at the centre, and its learners are at the sites.

Three sites play all of its learners: a run's name says who plays whom.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines import test_engine_contract as contract

from abaton.engines import Engine
from abaton.engines.flower import Desk, FlowerEngine, Network, Parcel, Place, Post
from abaton.engines.flower.centre import read_admitted
from abaton.engines.flower.grid import place_of
from abaton.learning import Learner

SITES = ("0", "1", "2")


class Players:
    """Answers as the learner whose place a site has in a run."""

    def __init__(self, number: int, place: Place) -> None:
        self.number, self.place = number, place

    def answer(self, parcel: Parcel) -> Parcel:
        names = parcel.about["run"].split(" ")[1:]
        learner = contract.learners(*names)[names[self.number]]
        return Desk(learner, self.place).answer(parcel)


def open_desk(config: Mapping[str, Any]) -> Players:
    """What answers a node's messages."""
    contract.TESTS = 0  # here every process may be killed
    return Players(int(config["site"]), place_of(config))


class OnFlower:
    """Tells the contract test to use the network for its engine 'flower'."""

    def __init__(self, post: Post, centre: Path, progress: Path) -> None:
        self.post, self.centre, self.progress = post, centre, progress

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down each result when it is there: all of them together take minutes."""
        if report.when == "call" or report.failed:
            with self.progress.open("a") as file:
                file.write(f"{report.outcome} {report.nodeid} {report.duration:.1f}\n{report.longreprtext}\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.module.ENGINES["flower"] = self.make
        runs = items[0].module.RUNS
        runs.update({name: replace(rules, rounds=rules.rounds // 2) for name, rules in runs.items()})

    @contextmanager
    def make(self, learners: Mapping[str, Learner], keep: contract.Keep) -> Iterator[Engine]:
        """An engine whose run only as many sites take part in as a test asks for learners."""
        names = tuple(learners)
        admitted = {
            node: (names[int(site)], role)
            for node, (site, role) in read_admitted(self.centre).items()
            if int(site) < len(names)
        }
        run = " ".join((secrets.token_hex(8), *names))
        network = Network(run, contract.MODEL.layout.digest, admitted=lambda: admitted)
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
