"""What the processes of the network benchmark run: the sites' learners and our controller."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abaton.atomic_files import replacing
from abaton.codecs import Key, Pipeline, parse
from abaton.controller import Event, Joined, Rules, Synchronous, TrainSettings, community_model
from abaton.engines import Driver
from abaton.engines.flower import FlowerEngine, Network, Parcel, Post
from abaton.engines.flower.server_processes import read_admitted
from abaton.engines.flower.site_worker import Desk, Place, place_of
from abaton.learners import Examples, Learner, mlp
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
MODEL = mlp(features=FEATURES, classes=2, hidden=HIDDEN, task="classes")


def drawn(place: int, count: int) -> Examples:
    """Examples of a site, or of nobody."""
    truth = np.random.default_rng(99).normal(size=FEATURES)
    x = np.random.default_rng(place).normal(size=(count, FEATURES)).astype(np.float32)
    return Examples(x, (x @ truth > 0).astype(np.int64))


def codec_of(run: str) -> Pipeline:
    """A run is called after its codec."""
    return parse(CODECS[run.split(" ")[0]])


def learner(site: str, codec: Pipeline) -> Learner:
    """A site's learner."""
    return Learner(site, MODEL, drawn(SITES.index(site), 400), codec, 0, validation=drawn(7, 20))


class AnyRun:
    """Answers with the codec that the run is called after; a ping is answered at once."""

    def __init__(self, site: str, place: Place) -> None:
        self.site, self.place = site, place

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks."""
        if parcel.about.get("run") == PING:
            return Parcel("answer", {"site": self.site}, parcel.blobs)
        return Desk(learner(self.site, codec_of(parcel.about["run"])), self.place).answer(parcel)


def open_desk(config: Mapping[str, Any]) -> AnyRun:
    """What answers a site's messages."""
    return AnyRun(str(config["site"]), place_of(config))


def ping(post: Post, about: str) -> None:
    """A controller that does nothing but ask one node after the other, and say when it was answered."""
    report, count = Path(about), 0
    while True:
        for node in post.nodes():
            letter = post.send(node, Parcel("query", {"run": PING}), 600.0)
            answer = None
            while letter and answer is None:
                time.sleep(0.05)
                post.nodes()
                answer = post.collect([letter]).get(letter)
            if isinstance(answer, Parcel):
                count += 1
                with replacing(report, sync=False) as begun:
                    begun.write_text(json.dumps([os.getpid(), count, time.time()]))


class Marks:
    """Of each model: when it was there, what the sites had sent and received by then, and how good it is."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told, self._test = told, drawn(50, 1000)
        self.rows: list[tuple[float, int, int, float]] = []

    def add(self, vector: np.ndarray) -> dict[str, float]:
        """One more model."""
        from _hosts import counted  # beside this file

        accuracy = float((MODEL.score(vector, self._test).predictions.argmax(1) == self._test.y).mean())
        self.rows.append((time.monotonic(), *counted(self._told["spaces"]), accuracy))
        return {"accuracy": accuracy}

    def write(self) -> None:
        """Tell the benchmark, all at once."""
        with replacing(Path(self._told["report"])) as begun:
            begun.write_text(json.dumps(self.rows))


def conduct(post: Post, about: str) -> None:
    """Our controller, in a process of its own at the centre."""
    told = json.loads(about)
    codec, marks = codec_of(told["run"]), Marks(told)
    rules = Rules(len(SITES), told["rounds"], training=SETTINGS, pacing=Synchronous())

    def check(who: str, version: int, payload: bytes) -> None:
        codec.decode(payload, MODEL.layout, Key(round_key(0, version), who))

    def watch(_: object, event: Event) -> None:
        """The first mark is when the last site has joined: what was before is the start of processes."""
        if isinstance(event, Joined):
            marks.rows.clear()
            marks.add(MODEL.initial(0))

    with Store(Path(told["store"])) as store:
        journal = Journal(store, told["run"])
        network = Network(told["run"], MODEL.layout.digest, "", lambda: read_admitted(Path(told["centre"])))
        engine = FlowerEngine(post, network, keep=journal.payloads.put, check=check)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        Driver(rules, community, engine, journal, marks.add).run(watch)
    marks.write()
