"""Rounds per second of one small federation under Abaton, a PyTorch loop, pfl-research and Flower's simulation.

The table job: 100 learners with 180 examples each, 10 per round, a 64-32-10 network, one epoch of batches of 32,
the same data, initial weights and settings for all (`peers/job.py`); each framework samples learners and shuffles
in its own way. Abaton's row is its parallel trainer: training, encoding, decoding and averaging. Start-up,
compilation and the first rounds are not timed. PyTorch has one thread everywhere: two slow such small models down.
Processor time shows the cost on a busy machine; Flower mostly waits, which processor time does not show.

The image job: the convolutional network of the SSTC paper, batches of 16, eight learners per round. Abaton's row is
again the parallel trainer; the PyTorch loops only train, without separate learners and messages: one on two
threads, one as two processes with one thread each. Samples per second, all on both cores.

Peers are not installed with Abaton: set ABATON_PEER_PFL and ABATON_PEER_FLOWER to interpreters that have them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least
from abaton.codecs import parse_codec
from abaton.controller import TrainSettings
from abaton.learners import Learner, ParallelTrainer, TrainingJob
from abaton.models import Examples, mlp, sstc_cnn
from abaton.training import round_key

PEERS = Path(__file__).parent / "peers"
ROUNDS, PEER_ROUNDS, FLOWER_ROUNDS, REPEATS = 300, 40, 20, 3
IMAGE_LEARNERS, IMAGE_EXAMPLES = 8, 160


def run() -> list[BenchmarkResult]:
    """Run both jobs, alternating; best of several."""
    return [*_tables(), *_images()]


def _tables() -> list[BenchmarkResult]:
    rates: dict[str, float] = {}
    cpu_rates: dict[str, float] = {}
    accuracies: dict[str, float] = {}

    def record(name: str, rounds: int, measured: dict[str, Any]) -> None:
        rates[name] = max(rates.get(name, 0.0), rounds / measured["seconds"])
        accuracies[name] = measured["accuracy"]
        if "cpu" in measured:
            cpu_rates[name] = max(cpu_rates.get(name, 0.0), rounds / measured["cpu"])

    for repeat in range(REPEATS):
        record("Abaton", ROUNDS, _abaton())
        record(
            "PyTorch loop", PEER_ROUNDS, _peer(sys.executable, "pytorch_loop.py", "table", str(PEER_ROUNDS))
        )
        if pfl := os.environ.get("ABATON_PEER_PFL"):
            record("pfl-research", PEER_ROUNDS, _peer(pfl, "pfl_research.py", str(PEER_ROUNDS)))
        if (flower := os.environ.get("ABATON_PEER_FLOWER")) and repeat < 2:
            record("Flower", FLOWER_ROUNDS, _peer(flower, "flower_simulation.py", str(FLOWER_ROUNDS)))
    rows = [BenchmarkResult(f"table job, {name}", rate, "rounds/s") for name, rate in rates.items()]
    rows += [
        BenchmarkResult(f"table job, {name}, held-out accuracy", accuracy, "")
        for name, accuracy in accuracies.items()
    ]
    for peer, limit in (("PyTorch loop", None), ("pfl-research", 15.0), ("Flower", 100.0)):
        rows.append(_against(peer, limit, rates))
    for peer in list(cpu_rates)[1:]:
        speedup = cpu_rates["Abaton"] / cpu_rates[peer]
        rows.append(BenchmarkResult(f"table job against {peer}, by processor time", speedup, "x"))
    return rows


def _against(peer: str, limit: float | None, rates: dict[str, float]) -> BenchmarkResult:
    if peer not in rates:
        variable = f"ABATON_PEER_{peer.partition('-')[0].upper()}"
        return BenchmarkResult(f"table job against {peer}: absent, set {variable}", float("nan"), "x")
    speedup = rates["Abaton"] / rates[peer]
    name = f"table job against {peer}"
    return BenchmarkResult(name, speedup, "x") if limit is None else at_least(name, speedup, limit, "x")


def _abaton() -> dict[str, Any]:
    job = _job()
    model, codec = mlp(features=job.FEATURES, classes=job.CLASSES, hidden=(job.HIDDEN,)), parse_codec("raw")
    learners = {
        f"learner{i:03}": Learner(f"learner{i:03}", model, Examples(*data), codec, job.SEED)
        for i, data in enumerate(job.sites()[: job.LEARNERS])
    }
    names, settings = list(learners), TrainSettings(batch_size=job.BATCH, learning_rate=job.RATE)
    first = np.concatenate([a.reshape(-1) for a in job.initial()])
    with ParallelTrainer(learners) as trainer:

        def federate(rounds: int) -> np.ndarray:
            vector = first
            for version, sampled in enumerate(job.sample_rounds(rounds)):
                jobs = [TrainingJob(names[i], f"{version}/{i}", version, vector, settings) for i in sampled]
                total = codec.accumulator(model.layout, round_key(job.SEED, version))
                for training_job, update in zip(jobs, trainer.train(jobs), strict=True):
                    total.add(update.payload, 1.0, training_job.learner)
                vector = vector + total.mean()
            return vector

        compared = federate(PEER_ROUNDS)  # warm-up, and the accuracy after as many rounds as the PyTorch loop
        start, busy = time.perf_counter(), time.process_time()
        federate(ROUNDS)
        seconds, cpu = time.perf_counter() - start, time.process_time() - busy
    accuracy = job.accuracy(list(model.layout.views(compared).values()))
    return {"seconds": seconds, "cpu": cpu, "accuracy": accuracy}


def _images() -> list[BenchmarkResult]:
    rng = np.random.default_rng(0)
    model, codec = sstc_cnn(), parse_codec("raw")
    data = Examples(
        rng.normal(size=(IMAGE_EXAMPLES, 1, 28, 28)).astype(np.float32), rng.integers(0, 62, IMAGE_EXAMPLES)
    )
    learners = {f"learner{i}": Learner(f"learner{i}", model, data, codec, 0) for i in range(IMAGE_LEARNERS)}
    settings = TrainSettings(batch_size=16, learning_rate=0.1)
    start = model.initial(0)
    samples_per_second, threads, processes = 0.0, 0.0, 0.0
    with ParallelTrainer(learners) as trainer:
        jobs = [TrainingJob(name, "warm", 0, start, settings) for name in learners]
        trainer.train(jobs)
        for _ in range(REPEATS):
            before = time.perf_counter()
            trainer.train(jobs)
            samples = IMAGE_LEARNERS * IMAGE_EXAMPLES
            samples_per_second = max(samples_per_second, samples / (time.perf_counter() - before))
            threads = max(threads, _pytorch_images(processes=1, threads=2))
            processes = max(processes, _pytorch_images(processes=2, threads=1))
    return [
        BenchmarkResult("image job, Abaton", samples_per_second, "samples/s"),
        BenchmarkResult("image job, PyTorch loop on two threads", threads, "samples/s"),
        BenchmarkResult("image job, PyTorch loop in two processes", processes, "samples/s"),
        at_least("image job against the PyTorch loop on two threads", samples_per_second / threads, 0.9, "x"),
        at_least(
            "image job against the PyTorch loop in two processes", samples_per_second / processes, 0.9, "x"
        ),
    ]


def _pytorch_images(*, processes: int, threads: int) -> float:
    learners = IMAGE_LEARNERS // processes
    arguments = [sys.executable, str(PEERS / "pytorch_loop.py"), "images", learners, IMAGE_EXAMPLES, threads]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([str(argument) for argument in arguments], **pipes) for _ in range(processes)]  # type: ignore[call-overload]
    for worker in workers:
        worker.stdout.readline()  # until all are ready
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    seconds = max(json.loads(worker.communicate()[0])["seconds"] for worker in workers)
    return float(IMAGE_LEARNERS * IMAGE_EXAMPLES / seconds)


def _peer(python: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run a peer's script with its interpreter and parse the last line of its output."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": home,
            "FLWR_HOME": home,
            "OMP_NUM_THREADS": "1",
        }
        completed = subprocess.run(
            [python, str(PEERS / script), *arguments],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            check=True,
        )
    measured: dict[str, Any] = json.loads(completed.stdout.strip().splitlines()[-1])
    return measured


def _job() -> Any:
    sys.path.insert(0, str(PEERS))
    try:
        import job
    finally:
        sys.path.remove(str(PEERS))
    return job
