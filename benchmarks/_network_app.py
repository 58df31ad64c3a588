"""What the processes of the network benchmark run: the sites' learners, our controller, and Flower's own FedAvg."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from abaton.codecs import Key, Pipeline, parse
from abaton.control import Rules, Synchronous, TrainSettings, community_model
from abaton.control.draw import round_key
from abaton.engines import Driver
from abaton.engines.flower import Desk, FlowerEngine, Network, Parcel, Place, Post
from abaton.engines.flower.centre import read_admitted
from abaton.engines.flower.grid import place_of
from abaton.learning import Examples, Learner, mlp, train_model
from abaton.store import Journal, Store

SITES = ("north", "south")
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
    """Answers with the codec that the run is called after."""

    def __init__(self, site: str, place: Place) -> None:
        self.site, self.place = site, place

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks."""
        return Desk(learner(self.site, codec_of(parcel.about["run"])), self.place).answer(parcel)


def open_desk(config: Mapping[str, Any]) -> AnyRun:
    """What answers a node's messages."""
    return AnyRun(str(config["site"]), place_of(config))


def conduct(post: Post, about: str) -> None:
    """Our controller; Flower calls it at the centre."""
    told = json.loads(about)
    run, folder = told["run"], Path(told["store"])
    codec, test = codec_of(run), drawn(50, 1000)
    rules = Rules(len(SITES), told["rounds"], training=SETTINGS, pacing=Synchronous())

    def check(who: str, version: int, payload: bytes) -> None:
        codec.decode(payload, MODEL.layout, Key(round_key(0, version), who))

    def observe(vector: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((MODEL.score(vector, test).predictions.argmax(1) == test.y).mean())}

    with Store(folder) as store:
        journal = Journal(store, run)
        network = Network(run, MODEL.layout.digest, "", lambda: read_admitted(Path(told["centre"])))
        engine = FlowerEngine(post, network, keep=journal.payloads.put, check=check)
        community = community_model(rules, MODEL.layout, codec, MODEL.initial(0))
        began: list[float] = []
        Driver(rules, community, engine, journal, observe).run(lambda state, event: began.append(event.at))
        # The clock counts from when the last site joined: what was before is the start of processes.
        start = began[len(SITES) - 1]
        versions = [(m.at - start, m.metrics["accuracy"]) for m in store.models(run)]
    (folder / f"{run}.json").write_text(json.dumps(versions))


def serve_fedavg(grid: Any, context: Any) -> None:
    """Flower's own FedAvg, the same model on the same nodes."""
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    rounds, nodes = int(context.run_config["rounds"]), 2 * len(SITES)
    start = ArrayRecord([MODEL.initial(0)])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.2)
    began = time.monotonic()
    strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
    Path(context.run_config["report"]).write_text(json.dumps((time.monotonic() - began) / rounds))


def train_fedavg(message: Any, context: Any) -> Any:
    """A training as Flower's FedAvg asks for it, by the same learner."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    (vector,) = message.content["arrays"].to_numpy_ndarrays()
    data, start = drawn(0, 400), np.ascontiguousarray(vector, np.float32)
    trained = train_model(MODEL, start, data, SETTINGS, np.random.default_rng(0))
    metrics = MetricRecord({"num-examples": len(data), "loss": trained.loss})
    made = RecordDict({"arrays": ArrayRecord([trained.vector]), "metrics": metrics})
    return Message(made, reply_to=message)
