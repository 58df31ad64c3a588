"""Code of the processes of a test federation: the sites' learners, and the controllers of its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import (
    AsynchronousScheduler,
    CommunityModel,
    Strategy,
    SynchronousScheduler,
    TrainSettings,
    ValidationWeighting,
    community_model,
    event_from_row,
)
from abaton.engines import ReplayedEngine, RunLoop
from abaton.engines.flower import FlowerEngine, FlowerNetwork, Message, MessageTransport
from abaton.engines.flower.server_processes import read_admitted
from abaton.engines.flower.site_worker import SiteWorker, read_worker_settings
from abaton.learners import Learner
from abaton.models import Examples, SklearnModel
from abaton.store import Journal, Store
from abaton.training import round_key

SITES = ("a", "b", "c", "d")
STUDY_HASH = "the hash of the study"
FEATURES = 400
CODEC = parse_codec("error_feedback | stc(sparsity=0.05)")
MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=FEATURES, classes=2)
CANARY = "Canary-4711"


def open_learner(site: str) -> Learner:
    """A site's learner with random data."""
    draw = np.random.default_rng(SITES.index(site))
    truth = np.random.default_rng(99).normal(size=FEATURES)
    x = draw.normal(size=(160 + 40 * SITES.index(site), FEATURES)).astype(np.float32)
    y = (x @ truth > 0).astype(np.int64)
    return Learner(site, MODEL, Examples(x[40:], y[40:]), CODEC, 0, validation=Examples(x[:40], y[:40]))


class CorruptWorker(SiteWorker):
    """Worker that sends invalid training replies in runs with this name, one type after the other."""

    def reply(self, message: Message) -> Message:
        if message.message_type != "train" or not message.header["run"].startswith("corrupt"):
            return super().reply(message)
        count = Path(self.worker_settings.folder, "corrupt")
        attempt = int(count.read_text()) if count.exists() else 0
        count.parent.mkdir(parents=True, exist_ok=True)
        count.write_text(str(attempt + 1))
        valid = {
            "task_id": message.header["task_id"],
            "steps": 1,
            "examples": 1,
            "loss": 0.0,
            "counts": [],
            "cohort": "",
        }
        header, payload = [
            (valid, b"rubbish"),
            ({**valid, "loss": float("nan")}, b""),
            (valid, bytes(24 << 20)),
            ({"unknown": "field"}, b""),
        ][attempt % 4]
        return Message("reply", header, {"update": payload})


def open_worker(config: Mapping[str, Any]) -> SiteWorker:
    """Return the handler of a node's messages; 'e' has another study, 'f' another layout."""
    site, worker_settings = str(config["site"]), read_worker_settings(config)
    if site == "e":
        return SiteWorker(open_learner("a"), replace(worker_settings, study_hash="another hash"))
    if site == "f":
        other = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=FEATURES + 1, classes=2)
        x = np.zeros((4, FEATURES + 1), np.float32)
        return SiteWorker(Learner("f", other, Examples(x, np.array([0, 1, 0, 1])), CODEC, 0), worker_settings)
    return (
        CorruptWorker(open_learner(site), worker_settings)
        if site == "d"
        else SiteWorker(open_learner(site), worker_settings)
    )


def strategy(name: str) -> Strategy:
    """Strategies by run name: short rounds, and an asynchronous run with invalid replies."""
    training = TrainSettings(epochs=2, batch_size=20)
    if name.startswith("rounds"):
        return Strategy(
            4, 2, training=training, weighting=(ValidationWeighting(),), scheduler=SynchronousScheduler()
        )
    weighting = (ValidationWeighting(evaluators=1),)
    return Strategy(
        4, 9, training=training, weighting=weighting, scheduler=AsynchronousScheduler(max_attempts=5)
    )


def community(name: str) -> CommunityModel:
    return community_model(strategy(name), MODEL.layout, CODEC, MODEL.initial(0))


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, CodecKey(round_key(0, version), learner))


def run_controller(transport: MessageTransport, argument: str) -> None:
    """Run the controller of a new or resumed run in its own process."""
    try:
        _run_controller(transport, json.loads(argument))
    except BaseException as error:
        Path(json.loads(argument)["store"], "failed").write_text(repr(error))
        raise


def _run_controller(transport: MessageTransport, settings: dict[str, str]) -> None:
    name, folder = settings["run"], Path(settings["store"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "controller.pid").write_text(str(os.getpid()))
    network = FlowerNetwork(
        name, MODEL.layout.digest, STUDY_HASH, lambda: read_admitted(Path(settings["centre"]))
    )
    with Store(folder) as store:
        journal = Journal(store, name)
        engine = FlowerEngine(transport, network, store_payload=journal.payloads.put, check_payload=check)
        events = [event_from_row(*row) for row in journal.rows()]
        RunLoop(strategy(name), community(name), ReplayedEngine(engine, events), journal).run()
