"""The contract test's learners at the sites of a real network.

Three sites stand in for all of its learners; the run's name lists the learner of each site.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.engines import test_engine_contract as contract

from abaton.engines import Engine
from abaton.engines.flower import FlowerEngine, FlowerNetwork, Message, MessageTransport
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings, read_worker_settings
from abaton.learners import Learner

SITES = ("0", "1", "2")


class RolePlayingWorker:
    """Worker that replies as the learner that the run assigns to its site."""

    def __init__(self, index: int, worker_settings: WorkerSettings) -> None:
        self.index, self.worker_settings = index, worker_settings

    def reply(self, message: Message) -> Message:
        names = message.header["run"].split(" ")[1:]
        learner = contract.learners(*names)[names[self.index]]
        return SiteWorker(learner, self.worker_settings).reply(message)


def open_worker(config: Mapping[str, Any]) -> RolePlayingWorker:
    """Return the handler of a node's messages."""
    contract.TESTS = 0  # here every process may be killed
    return RolePlayingWorker(int(config["site"]), read_worker_settings(config))


@contextmanager
def make(
    transport: MessageTransport,
    nodes: Mapping[int, str],
    learners: Mapping[str, Learner],
    store_payload: contract.StorePayload,
) -> Iterator[Engine]:
    """Engine with as many sites as a test needs learners."""
    names = tuple(learners)
    admitted = {node: names[int(site)] for node, site in nodes.items() if int(site) < len(names)}
    run = " ".join((secrets.token_hex(8), *names))
    network = FlowerNetwork(run, contract.MODEL.layout.digest, admitted=lambda: admitted)
    yield FlowerEngine(
        FilteredTransport(transport, admitted),
        network,
        store_payload=store_payload,
        check_payload=contract.check,
    )


class FilteredTransport:
    """Transport on which only some nodes are listed."""

    def __init__(self, transport: MessageTransport, admitted: Mapping[int, object]) -> None:
        self.send, self.collect, self.silence = transport.send, transport.collect, transport.silence
        self._transport, self._admitted = transport, admitted

    def nodes(self) -> list[int]:
        return [node for node in self._transport.nodes() if node in self._admitted]
