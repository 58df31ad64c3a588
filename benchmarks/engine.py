"""What the virtual engine costs on top of the arithmetic of training.

The job: 100 learners, 10 a round, a small network, one epoch of batches of 32. The plain loop trains and averages the
same learners in the same order with the same model code, and does nothing else: no clock, no events, no journal, no
payloads, no digests, no files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from abaton.bench import Measure, at_most
from abaton.codecs import parse
from abaton.control import Rules, Synchronous, TrainSettings, community_model
from abaton.engines import Driver, VirtualEngine
from abaton.learning import Examples, Learner, Model, mlp
from abaton.store import Journal, Store

LEARNERS, PARTICIPANTS, ROUNDS, REPEATS = 100, 10, 40, 3
TRAINING = TrainSettings(epochs=1, batch_size=32, learning_rate=0.05)


def run() -> list[Measure]:
    """Rounds a second with the engine and without it, alternating, best of several."""
    model = mlp(features=64, classes=10, hidden=(32,))
    sites = _sites()
    plain, whole = [], []
    for _ in range(REPEATS):
        plain.append(_seconds(lambda: _plain(model, sites)))
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
            whole.append(_seconds(lambda: _engine(model, sites, store)))
    overhead = min(whole) / min(plain)
    return [
        Measure("plain loop that only trains", ROUNDS / min(plain), "rounds/s"),
        Measure("virtual engine with journal and store", ROUNDS / min(whole), "rounds/s"),
        at_most("cost of the engine", overhead, 1.25, "x the plain loop"),
    ]


def _sites() -> dict[str, Examples]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))
    sites = {}
    for i in range(LEARNERS):
        y = rng.integers(0, 10, 180)
        sites[f"learner{i:03}"] = Examples((centres[y] + rng.normal(size=(180, 64))).astype(np.float32), y)
    return sites


def _plain(model: Model, sites: dict[str, Examples]) -> None:
    names, vector = list(sites), model.initial(0)
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        chosen = [sites[names[i]] for i in rng.choice(LEARNERS, PARTICIPANTS, replace=False)]
        trained = [model.train(vector, data, TRAINING, rng).vector for data in chosen]
        vector = np.average(trained, axis=0, weights=[len(data) for data in chosen]).astype(np.float32)


def _engine(model: Model, sites: dict[str, Examples], store: Store) -> None:
    codec = parse("raw")
    rules = Rules(LEARNERS, ROUNDS, pacing=Synchronous(participants=PARTICIPANTS), training=TRAINING)
    learners = {name: Learner(name, model, data, codec, rules.seed) for name, data in sites.items()}
    journal = Journal(store, "bench")
    engine = VirtualEngine(learners, {}, keep=journal.payloads.put, seed=0)
    community = community_model(rules, model.layout, codec, model.initial(0))
    Driver(rules, community, engine, journal).run()


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
