"""Uplink and downlink compression of the SSTC paper's network: bytes each way and accuracy.

Four learners, thirty rounds, three seeds, updates as `error_feedback | stc(sparsity=0.01)`; the same federations with
`downlink = "stc(sparsity=0.01)"`, under the virtual clock. The images are those of `_cnn`. It takes half an hour on two
processors.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least

sys.path.insert(0, str(Path(__file__).parent))
import _cnn
from _compressed_federation import LEARNERS, FederationCurve, run_federation

ROUNDS, LAST, SEEDS = 30, 5, (1, 2, 3)
UP = "error_feedback | stc(sparsity=0.01, coding=context)"
DOWN = "stc(sparsity=0.01, coding=context)"


def run() -> list[BenchmarkResult]:
    """Measure bytes of an update and of a model, and the accuracy difference to uplink compression only."""
    if not _cnn.available():
        return []
    raw_run = run_federation("raw", None, seed=SEEDS[0], rounds=1)
    raw_bytes = {"up": raw_run.up[0] / LEARNERS, "down": raw_run.down[0] / LEARNERS}
    results = [
        BenchmarkResult(f"uncompressed, {way}", size, "bytes/learner and round")
        for way, size in raw_bytes.items()
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = {
            (seed, down): pool.submit(run_federation, UP, down, seed=seed, rounds=ROUNDS)
            for seed in SEEDS
            for down in (None, DOWN)
        }
        curves = {key: future.result() for key, future in futures.items()}
    for seed in SEEDS:
        uplink_only, both = curves[seed, None], curves[seed, DOWN]
        results += _traffic(seed, both, raw_bytes)
        results += _accuracies(seed, uplink_only, both)
    return results


def _traffic(seed: int, both: FederationCurve, raw_bytes: dict[str, float]) -> list[BenchmarkResult]:
    """Return bytes per learner and round; the first model is sent in full and reported separately."""
    sent = {"up": both.up, "down, without the first model": both.down[1:], "down, all": both.down}
    results = []
    for way, rows in sent.items():
        size = float(np.mean(rows)) / LEARNERS
        results.append(BenchmarkResult(f"seed {seed}: bytes {way}", size, "bytes/learner and round"))
        least, full = (15 if way == "down, all" else 200), raw_bytes[way.split(",")[0]]
        results.append(at_least(f"seed {seed}: uncompressed over bytes {way}", full / size, least, "x"))
    return results


def _accuracies(seed: int, uplink_only: FederationCurve, both: FederationCurve) -> list[BenchmarkResult]:
    results = []
    for label, last in ((f"after {ROUNDS} rounds", 1), (f"mean of the last {LAST} of {ROUNDS} rounds", LAST)):
        one, two = (100 * float(np.mean(curve.accuracy[-last:])) for curve in (uplink_only, both))
        results.append(BenchmarkResult(f"seed {seed}: accuracy {label}, uplink only", one, "%"))
        results.append(BenchmarkResult(f"seed {seed}: accuracy {label}, both ways", two, "%"))
        results.append(
            at_least(f"seed {seed}: accuracy {label}, both ways over uplink only", two - one, -1.0, "points")
        )
    return results
