"""Processes of the network benchmark: the sites' learners and the controller."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abaton.atomic_files import atomic_write
from abaton.codecs import CodecKey, CodecPipeline, parse_codec
from abaton.controller import (
    Event,
    LearnerJoined,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    community_model,
)
from abaton.engines import RunLoop
from abaton.engines.flower import FlowerEngine, FlowerNetwork, Message, MessageTransport
from abaton.engines.flower.server_processes import read_admitted
from abaton.engines.flower.site_worker import SiteWorker, WorkerSettings, read_worker_settings
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.models import Examples, mlp
from abaton.store import Journal, Store
from abaton.training import round_key

SITES = ("north", "south")
PING = "ping"
FEATURES, HIDDEN = 60, (512, 400)
CODECS = {
    "raw": "raw",
    "quicfl": "quicfl(bits=2)",
    "ecdq": "ecdq(bits=1)",
    "sstc": "error_feedback | sstc(sparsity=0.05, kernels=0.125, coding=context)",
}
ROUNDS, ACCURACY = 4, 0.8
SETTINGS = TrainSettings(epochs=1, batch_size=20, learning_rate=0.02, momentum=0.5)
MODEL = mlp(features=FEATURES, classes=2, hidden=HIDDEN, task="classification")


def sampled_examples(index: int, count: int) -> Examples:
    """Return examples of a site."""
    truth = np.random.default_rng(99).normal(size=FEATURES)
    x = np.random.default_rng(index).normal(size=(count, FEATURES)).astype(np.float32)
    return Examples(x, (x @ truth > 0).astype(np.int64))


def codec_of(run: str) -> CodecPipeline:
    """Return the codec of a run; the run is named after it."""
    return parse_codec(CODECS[run.split(" ")[0]])


def make_learner(site: str, codec: CodecPipeline) -> Learner:
    """Return a site's learner."""
    return Learner(
        site, MODEL, sampled_examples(SITES.index(site), 400), codec, 0, validation=sampled_examples(7, 20)
    )


class RunHandler:
    """Handler that uses the codec of the run's name and replies to a ping at once."""

    def __init__(self, site: str, worker_settings: WorkerSettings) -> None:
        self.site, self.worker_settings = site, worker_settings

    def reply(self, message: Message) -> Message:
        """Handle a message."""
        if message.header.get("run") == PING:
            return Message("reply", {"site": self.site}, message.attachments)
        worker = SiteWorker(make_learner(self.site, codec_of(message.header["run"])), self.worker_settings)
        return worker.reply(message)


def make_site_worker(config: Mapping[str, Any]) -> RunHandler:
    """Return the handler of a site's messages."""
    return RunHandler(str(config["site"]), read_worker_settings(config))


def ping(transport: MessageTransport, argument: str) -> None:
    """Run a controller that sends requests to one node after the other and reports the reply times."""
    report, count = Path(argument), 0
    while True:
        for node in transport.nodes():
            message_id = transport.send(node, Message("query", {"run": PING}), 600.0)
            reply = None
            while message_id and reply is None:
                time.sleep(0.05)
                transport.nodes()
                reply = transport.collect([message_id]).get(message_id)
            if isinstance(reply, Message):
                count += 1
                with atomic_write(report, sync=False) as temporary_path:
                    temporary_path.write_text(json.dumps([os.getpid(), count, time.time()]))


class VersionMarks:
    """For each version: time, bytes that the sites had sent and received, and accuracy."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings, self._test = settings, sampled_examples(50, 1000)
        self.rows: list[tuple[float, int, int, float]] = []

    def add(self, vector: Vector) -> dict[str, float]:
        """Add one version."""
        from _hosts import counted  # beside this file

        accuracy = float((MODEL.score(vector, self._test).predictions.argmax(1) == self._test.y).mean())
        self.rows.append((time.monotonic(), *counted(self._settings["spaces"]), accuracy))
        return {"accuracy": accuracy}

    def write(self) -> None:
        """Write the report atomically."""
        with atomic_write(Path(self._settings["report"])) as temporary_path:
            temporary_path.write_text(json.dumps(self.rows))


def run_controller(transport: MessageTransport, argument: str) -> None:
    """Run the controller in its own process at the centre."""
    settings = json.loads(argument)
    codec, marks = codec_of(settings["run"]), VersionMarks(settings)
    strategy = Strategy(len(SITES), settings["rounds"], training=SETTINGS, scheduler=SynchronousScheduler())

    def check(learner: str, version: int, payload: bytes) -> None:
        codec.decode(payload, MODEL.layout, CodecKey(round_key(0, version), learner))

    def watch(_: object, event: Event) -> None:
        """Set the first mark when the last site has joined, so that process start is not measured."""
        if isinstance(event, LearnerJoined):
            marks.rows.clear()
            marks.add(MODEL.initial(0))

    with Store(Path(settings["store"])) as store:
        journal = Journal(store, settings["run"])
        network = FlowerNetwork(
            settings["run"], MODEL.layout.digest, "", lambda: read_admitted(Path(settings["centre"]))
        )
        engine = FlowerEngine(transport, network, store_payload=journal.payloads.put, check_payload=check)
        community = community_model(strategy, MODEL.layout, codec, MODEL.initial(0))
        RunLoop(strategy, community, engine, journal, marks.add).run(watch)
    marks.write()
