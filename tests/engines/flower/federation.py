"""What the processes of a test federation run: the sites' learners, and the controllers of its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from abaton.codecs import Key, parse
from abaton.controller import (
    Asynchronous,
    ByValidation,
    CommunityModel,
    Rules,
    Synchronous,
    TrainSettings,
    community_model,
    from_row,
)
from abaton.engines import Driver, Replayed
from abaton.engines.flower import FlowerEngine, Network, Parcel, Post
from abaton.engines.flower.server_processes import read_admitted
from abaton.engines.flower.site_worker import Desk, place_of
from abaton.learners import Examples, Learner, SklearnModel
from abaton.store import Journal, Store
from abaton.training import round_key

SITES = ("a", "b", "c", "d")
TERMS = "the digest of what was agreed"
FEATURES = 400
CODEC = parse("error_feedback | stc(sparsity=0.05)")
MODEL = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=FEATURES, classes=2)
CANARY = "Canary-4711"


def open_learner(site: str) -> Learner:
    """A site's learner; its data are drawn, not read."""
    draw = np.random.default_rng(SITES.index(site))
    truth = np.random.default_rng(99).normal(size=FEATURES)
    x = draw.normal(size=(160 + 40 * SITES.index(site), FEATURES)).astype(np.float32)
    y = (x @ truth > 0).astype(np.int64)
    return Learner(site, MODEL, Examples(x[40:], y[40:]), CODEC, 0, validation=Examples(x[:40], y[:40]))


class Spoilt(Desk):
    """A desk whose trainings are answered with rubbish in the runs that are called so: one kind after the other."""

    def answer(self, parcel: Parcel) -> Parcel:
        if parcel.kind != "train" or not parcel.about["run"].startswith("spoilt"):
            return super().answer(parcel)
        count = Path(self.place.folder, "spoilt")
        number = int(count.read_text()) if count.exists() else 0
        count.parent.mkdir(parents=True, exist_ok=True)
        count.write_text(str(number + 1))
        honest = {
            "key": parcel.about["key"],
            "steps": 1,
            "examples": 1,
            "loss": 0.0,
            "score": [],
            "cohort": "",
        }
        about, payload = [
            (honest, b"rubbish"),
            ({**honest, "loss": float("nan")}, b""),
            (honest, bytes(24 << 20)),
            ({"nothing": "of it"}, b""),
        ][number % 4]
        return Parcel("answer", about, {"update": payload})


def open_desk(config: Mapping[str, Any]) -> Desk:
    """What answers a node's messages; 'e' agreed to other terms, 'f' has another layout."""
    site, place = str(config["site"]), place_of(config)
    if site == "e":
        return Desk(open_learner("a"), replace(place, terms="another digest"))
    if site == "f":
        other = SklearnModel(lambda: SGDClassifier(loss="log_loss"), features=FEATURES + 1, classes=2)
        x = np.zeros((4, FEATURES + 1), np.float32)
        return Desk(Learner("f", other, Examples(x, np.array([0, 1, 0, 1])), CODEC, 0), place)
    return Spoilt(open_learner(site), place) if site == "d" else Desk(open_learner(site), place)


def rules(name: str) -> Rules:
    """Runs by name: short rounds, and an asynchronous run that somebody spoils."""
    training = TrainSettings(epochs=2, batch_size=20)
    if name.startswith("rounds"):
        return Rules(4, 2, training=training, weighting=(ByValidation(),), pacing=Synchronous())
    weighting = (ByValidation(evaluators=1),)
    return Rules(4, 9, training=training, weighting=weighting, pacing=Asynchronous(attempts=5))


def community(name: str) -> CommunityModel:
    return community_model(rules(name), MODEL.layout, CODEC, MODEL.initial(0))


def check(learner: str, version: int, payload: bytes) -> None:
    CODEC.decode(payload, MODEL.layout, Key(round_key(0, version), learner))


def conduct(post: Post, about: str) -> None:
    """The controller of a run, begun or resumed, in a process of its own."""
    try:
        _conduct(post, json.loads(about))
    except BaseException as error:
        Path(json.loads(about)["store"], "failed").write_text(repr(error))
        raise


def _conduct(post: Post, told: dict[str, str]) -> None:
    name, folder = told["run"], Path(told["store"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "controller.pid").write_text(str(os.getpid()))
    network = Network(name, MODEL.layout.digest, TERMS, lambda: read_admitted(Path(told["centre"])))
    with Store(folder) as store:
        journal = Journal(store, name)
        engine = FlowerEngine(post, network, keep=journal.payloads.put, check=check)
        events = [from_row(*row) for row in journal.rows()]
        Driver(rules(name), community(name), Replayed(engine, events), journal).run()
