"""What the processes of a test federation run: the sites' learners, and the controllers of its runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from abaton.codecs import Key, parse
from abaton.control import (
    Asynchronous,
    ByValidation,
    CommunityModel,
    Rules,
    Synchronous,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.control.draw import round_key
from abaton.engines import Driver, Replayed
from abaton.engines.flower import Desk, FlowerEngine, Network, Post
from abaton.engines.flower.centre import read_admitted
from abaton.engines.flower.grid import place_of
from abaton.learning import Examples, Learner, SklearnModel, Update
from abaton.store import Journal, Store

SITES = ("a", "b", "c", "d")
STUDY = "the digest of a study"
FEATURES = 400
CODEC = parse("error_feedback | stc(sparsity=0.05)")
MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=FEATURES, classes=2)
CANARY = "Canary-4711"


class Unhurried(Learner):
    """A learner whose training takes a while if it has many epochs, so that it can be disturbed."""

    def train(self, task: str, version: int, start: np.ndarray, settings: TrainSettings, *rest) -> Update:
        time.sleep(3.0 if settings.epochs > 2 else 0.0)
        return super().train(task, version, start, settings, *rest)


def open_learner(site: str) -> Learner:
    """A site's learner; its data are drawn, not read."""
    draw = np.random.default_rng(SITES.index(site))
    truth = np.random.default_rng(99).normal(size=FEATURES)
    x = draw.normal(size=(160 + 40 * SITES.index(site), FEATURES)).astype(np.float32)
    y = (x @ truth > 0).astype(np.int64)
    return Unhurried(site, MODEL, Examples(x[40:], y[40:]), CODEC, 0, validation=Examples(x[:40], y[:40]))


def open_desk(config: Mapping[str, Any]) -> Desk:
    """What answers a node's messages."""
    return Desk(open_learner(str(config["site"])), place_of(config))


def rules(name: str) -> Rules:
    """Runs by name: short rounds, and an asynchronous run that takes long enough to be disturbed."""
    training = TrainSettings(epochs=2, batch_size=20)
    if name.startswith("rounds"):
        return Rules(4, 2, training=training, weighting=(ByValidation(),), pacing=Synchronous())
    slow = TrainSettings(epochs=3, batch_size=20)
    weighting = (ByValidation(evaluators=2),)
    return Rules(4, 28, training=slow, weighting=weighting, pacing=Asynchronous(attempts=5))


def community(name: str) -> CommunityModel:
    return community_model(rules(name), MODEL.layout, CODEC, MODEL.initial(0))


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, Key(round_key(0, version), learner))


def conduct(post: Post, about: str) -> None:
    """The controller of a run, begun or gone on with; called by Flower at the centre."""
    try:
        _conduct(post, json.loads(about))
    except BaseException as error:
        Path(json.loads(about)["store"], "failed").write_text(repr(error))
        raise


def _conduct(post: Post, told: dict[str, str]) -> None:
    name, folder = told["run"], Path(told["store"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "controller.pid").write_text(str(os.getpid()))
    network = Network(name, MODEL.layout.digest, STUDY, lambda: read_admitted(Path(told["centre"])))
    with Store(folder) as store:
        journal = Journal(store, name)
        engine = FlowerEngine(post, network, keep=journal.payloads.put, check=check)
        events = [from_row(*row) for row in journal.rows()]
        Driver(rules(name), community(name), Replayed(engine, events), journal).run()
