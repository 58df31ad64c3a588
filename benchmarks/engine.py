"""What the virtual engine costs on top of the arithmetic of training.

The job: 100 learners, 10 a round, a small network, one epoch of batches of 32. The bare loop trains and averages the
same learners with the same compiled model code, and does nothing else: no clock, no events, no journal, no payloads,
no digests, no files. The plain PyTorch loop is what a researcher writes: a module, an optimiser, `state_dict`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from abaton.benchmark import Measure, at_most
from abaton.codecs import parse
from abaton.controller import Rules, Synchronous, TrainSettings, community_model
from abaton.engines import Driver, VirtualEngine
from abaton.learners import Examples, Learner, Model, mlp, train_model
from abaton.store import Journal, Store

LEARNERS, PARTICIPANTS, ROUNDS, REPEATS = 100, 10, 40, 5
TRAINING = TrainSettings(epochs=1, batch_size=32, learning_rate=0.05)


def run() -> list[Measure]:
    """Rounds a second with the engine and without it, alternating, best of several."""
    model = mlp(features=64, classes=10, hidden=(32,))
    sites = _sites()
    bare, plain, whole = [], [], []
    for _ in range(REPEATS):
        bare.append(_seconds(lambda: _bare(model, sites)))
        plain.append(_seconds(lambda: _plain(sites)))
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
            whole.append(_seconds(lambda: _engine(model, sites, store)))
    return [
        Measure("bare loop: compiled training and averaging, nothing else", ROUNDS / min(bare), "rounds/s"),
        Measure("plain PyTorch loop", ROUNDS / min(plain), "rounds/s"),
        Measure("virtual engine with journal and store", ROUNDS / min(whole), "rounds/s"),
        at_most("cost of the engine", min(whole) / min(bare), 2.5, "x the bare loop"),
        Measure("cost of the engine", 1e3 * (min(whole) - min(bare)) / ROUNDS / PARTICIPANTS, "ms an update"),
        at_most("the whole engine", min(whole) / min(plain), 1.0, "x a plain PyTorch loop"),
    ]


def _sites() -> dict[str, Examples]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))
    sites = {}
    for i in range(LEARNERS):
        y = rng.integers(0, 10, 180)
        sites[f"learner{i:03}"] = Examples((centres[y] + rng.normal(size=(180, 64))).astype(np.float32), y)
    return sites


def _bare(model: Model, sites: dict[str, Examples]) -> None:
    names, vector = list(sites), model.initial(0)
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        chosen = [sites[names[i]] for i in rng.choice(LEARNERS, PARTICIPANTS, replace=False)]
        trained = [train_model(model, vector, data, TRAINING, rng).vector for data in chosen]
        vector = np.average(trained, axis=0, weights=[len(data) for data in chosen]).astype(np.float32)


def _plain(sites: dict[str, Examples]) -> None:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    names, rng = list(sites), np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    state = {name: values.clone() for name, values in net.state_dict().items()}
    for _ in range(ROUNDS):
        chosen = [sites[names[i]] for i in rng.choice(LEARNERS, PARTICIPANTS, replace=False)]
        trained = []
        for data in chosen:
            net.load_state_dict(state)
            optimiser = torch.optim.SGD(net.parameters(), lr=TRAINING.learning_rate)
            x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
            for rows in torch.split(torch.from_numpy(rng.permutation(len(data))), TRAINING.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimiser.step()
            trained.append({name: values.clone() for name, values in net.state_dict().items()})
        state = {name: sum(t[name] for t in trained) / PARTICIPANTS for name in state}


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
