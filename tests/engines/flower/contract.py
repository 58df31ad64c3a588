"""The contract test's learners at the sites of a real network.

Three sites play all of its learners: a run's name says who plays whom.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.engines import test_engine_contract as contract

from abaton.engines import Engine
from abaton.engines.flower import FlowerEngine, Network, Parcel, Post
from abaton.engines.flower.site_worker import Desk, Place, place_of
from abaton.learners import Learner

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


@contextmanager
def make(
    post: Post, nodes: Mapping[int, str], learners: Mapping[str, Learner], keep: contract.Keep
) -> Iterator[Engine]:
    """An engine whose run only as many sites take part in as a test asks for learners."""
    names = tuple(learners)
    admitted = {node: names[int(site)] for node, site in nodes.items() if int(site) < len(names)}
    run = " ".join((secrets.token_hex(8), *names))
    network = Network(run, contract.MODEL.layout.digest, admitted=lambda: admitted)
    yield FlowerEngine(Quiet(post, admitted), network, keep=keep, check=contract.check)


class Quiet:
    """A post on which only some nodes are seen."""

    def __init__(self, post: Post, admitted: Mapping[int, object]) -> None:
        self.send, self.collect, self.silence = post.send, post.collect, post.silence
        self._post, self._admitted = post, admitted

    def nodes(self) -> list[int]:
        return [node for node in self._post.nodes() if node in self._admitted]
