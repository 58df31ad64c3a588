"""Overhead of the virtual engine over the arithmetic of training.

The job: 100 learners, 10 per round, a small network, one epoch of batches of 32. The bare loop trains and averages
the same learners with the same compiled model code, without clock, events, journal, payloads, digests and files.
The PyTorch loop is the usual one: a module, an optimiser, `state_dict`.

Costs are processor time of all threads, because other programs disturb it least. The engine takes 0.1 ms per update,
for an event, a payload with checksum and digest, rows of the journal and a share of the model file. No function takes
more than a tenth of that, so the target is what was measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from abaton.benchmark import BenchmarkResult, at_most
from abaton.codecs import parse_codec
from abaton.controller import Strategy, SynchronousScheduler, TrainSettings, community_model
from abaton.engines import RunLoop, VirtualEngine
from abaton.learners import Learner
from abaton.models import Examples, Model, mlp, train_model
from abaton.store import Journal, Store

LEARNERS, PARTICIPANTS, ROUNDS, REPEATS = 100, 10, 40, 5
TRAINING = TrainSettings(epochs=1, batch_size=32, learning_rate=0.05)


def run() -> list[BenchmarkResult]:
    """Measure rounds per second with and without the engine, alternating; best of several."""
    model = mlp(features=64, classes=10, hidden=(32,))
    sites = _sites()
    bare, loop, engine = [], [], []
    for _ in range(REPEATS):
        bare.append(_seconds(lambda: _bare(model, sites)))
        loop.append(_seconds(lambda: _loop(sites)))
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
            engine.append(_seconds(lambda: _engine(model, sites, store)))
    (bare_seconds, bare_cost), (engine_seconds, engine_cost) = (
        map(min, zip(*bare, strict=True)),
        map(min, zip(*engine, strict=True)),
    )
    loop_seconds = min(loop)[0]
    return [
        BenchmarkResult(
            "bare loop: compiled training and averaging, nothing else", ROUNDS / bare_seconds, "rounds/s"
        ),
        BenchmarkResult("PyTorch loop", ROUNDS / loop_seconds, "rounds/s"),
        BenchmarkResult("virtual engine with journal and store", ROUNDS / engine_seconds, "rounds/s"),
        at_most("cost of the engine", engine_cost / bare_cost, 3.0, "x the bare loop"),
        BenchmarkResult(
            "cost of the engine",
            1e3 * (engine_cost - bare_cost) / ROUNDS / PARTICIPANTS,
            "ms per update",
        ),
        at_most("the engine", engine_seconds / loop_seconds, 1.0, "x a PyTorch loop"),
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
        sampled = [sites[names[i]] for i in rng.choice(LEARNERS, PARTICIPANTS, replace=False)]
        trained = [train_model(model, vector, data, TRAINING, rng).vector for data in sampled]
        vector = np.average(trained, axis=0, weights=[len(data) for data in sampled]).astype(np.float32)


def _loop(sites: dict[str, Examples]) -> None:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    names, rng = list(sites), np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    state = {name: values.clone() for name, values in net.state_dict().items()}
    for _ in range(ROUNDS):
        sampled = [sites[names[i]] for i in rng.choice(LEARNERS, PARTICIPANTS, replace=False)]
        trained = []
        for data in sampled:
            net.load_state_dict(state)
            optimiser = torch.optim.SGD(net.parameters(), lr=TRAINING.learning_rate)
            x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
            for rows in torch.split(torch.from_numpy(rng.permutation(len(data))), TRAINING.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            trained.append({name: values.clone() for name, values in net.state_dict().items()})
        state = {name: sum(t[name] for t in trained) / PARTICIPANTS for name in state}


def _engine(model: Model, sites: dict[str, Examples], store: Store) -> None:
    codec = parse_codec("raw")
    strategy = Strategy(
        LEARNERS, ROUNDS, scheduler=SynchronousScheduler(participants=PARTICIPANTS), training=TRAINING
    )
    learners = {name: Learner(name, model, data, codec, strategy.seed) for name, data in sites.items()}
    journal = Journal(store, "bench")
    engine = VirtualEngine(learners, {}, store_payload=journal.payloads.put, seed=0)
    community = community_model(strategy, model.layout, codec, model.initial(0))
    RunLoop(strategy, community, engine, journal).run()


def _seconds(call: Callable[[], None]) -> tuple[float, float]:
    """Return elapsed and processor seconds of a call."""
    start, start_cost = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - start_cost
