"""Cost of a commit: the cached aggregate of the newest models, against copying its bytes and against the full pass.

The cached commit touches 32 bytes per parameter: it reads the sum, the old and the new model, and writes the sum,
the stored model and the community model. It is compared with `np.copyto` of as many bytes (16 read, 16 written),
and with the full pass over all models, `weights @ stacked` by BLAS on an array that already holds every model as a
row.

With one learner its stored model stays in the processor cache; with many it comes from memory. The commit therefore
depends on the number of learners where the sum fits in the cache (600 thousand parameters: 19 MB). A thousand
models of 1.69 million parameters need 6.8 GB: with less than 10 GB free fewer learners are measured, and the row
gives their number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from abaton.benchmark import BenchmarkResult, at_most, best_seconds
from abaton.codecs import parse_codec
from abaton.controller import ModelCache
from abaton.controller.aggregation import LatestMeanModel
from abaton.layout import Layout, Tensor, TensorRole
from abaton.store import ScratchModelFile

PARAMETERS = 1_690_046  # the SSTC paper's network
SMALL = 600_000
LEARNERS = (1, 2, 3, 4, 5, 6, 8, 10, 30, 100)
SPILLED = 200


def run() -> list[BenchmarkResult]:
    """Measure commit time by number of learners, against a copy and against the full pass."""
    max_learners = _max_learners(PARAMETERS)
    copy = _copy(PARAMETERS)
    single, ten, hundred, many = _commits(PARAMETERS, (1, 10, 100, max_learners))
    small, small_many = _commits(SMALL, (1, 1000))
    passes = {n: _full_pass(PARAMETERS, n) for n in (*LEARNERS, max_learners)}
    break_even = 1 + max((n for n, seconds in passes.items() if seconds <= ten), default=0)
    return [
        at_most(
            f"commit with {max_learners} learners against 1, 1.69 million parameters", many / single, 1.2, "x"
        ),
        at_most("commit with 100 learners against 1, 1.69 million parameters", hundred / single, 1.2, "x"),
        at_most("commit with 1000 learners against 1, 600 thousand parameters", small_many / small, 1.2, "x"),
        at_most(
            "cached commit, 10 learners, 1.69 million parameters",
            ten / copy,
            2.5,
            "x np.copyto of the bytes it touches",
        ),
        at_most(
            f"cached commit, {max_learners} learners, 1.69 million parameters",
            many / copy,
            2.5,
            "x np.copyto of the bytes it touches",
        ),
        BenchmarkResult("cached commit, 10 learners, 1.69 million parameters", 1e3 * ten, "ms"),
        BenchmarkResult(f"cached commit, {max_learners} learners, 1.69 million parameters", 1e3 * many, "ms"),
        *_spilled(PARAMETERS),
        *(
            BenchmarkResult(f"full pass by BLAS over {n} models in one array", 1e3 * s, "ms")
            for n, s in passes.items()
        ),
        BenchmarkResult("full pass over 100 models against the cached commit", passes[100] / ten, "x"),
        BenchmarkResult(
            f"full pass over {max_learners} models against the cached commit",
            passes[max_learners] / many,
            "x",
        ),
        BenchmarkResult("number of learners from which the cache is faster", break_even, "learners"),
        BenchmarkResult("memory of the cache without the newest models", 12.0, "bytes per parameter"),
        BenchmarkResult("memory of the newest models", 4.0, "bytes per parameter and learner"),
        BenchmarkResult(f"memory of {max_learners} newest models", 4e-9 * max_learners * PARAMETERS, "GB"),
    ]


def _max_learners(size: int) -> int:
    """Return a thousand learners, or as many as fit in half of the free memory."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1000 if free > 1.4 * 4000 * size else max(101, free // 2 // (4 * size))


def _layout(size: int) -> Layout:
    return Layout([Tensor("weight", (size,), TensorRole.DENSE)])


def _commits(size: int, counts: Sequence[int]) -> list[float]:
    """Return the best commit time for each number of learners, measured in turns."""
    commits = [_commit(size, count) for count in counts]
    best = [float("inf")] * len(counts)
    for _ in range(8):
        for i, commit in enumerate(commits):
            best[i] = min(best[i], best_seconds(commit, repeats=12))
    return best


def _commit(size: int, learners: int, cache: ModelCache | None = None) -> Callable[[], None]:
    """Return a function that commits for all learners in shuffled order, so that stored models leave the cache."""
    layout = _layout(size)
    aggregate = LatestMeanModel(layout, parse_codec("raw"), layout.zeros(), model_cache=cache)
    models = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    for i in range(learners):
        aggregate.replace(f"learner{i}", models[i % 2], 1.0 + i % 7)
    turn = [0]

    def commit() -> None:
        turn[0] += 1
        aggregate.replace(f"learner{turn[0] * 7919 % learners}", models[turn[0] % 2], 1.0 + turn[0] % 7)
        aggregate.publish()

    return commit


def _spilled(size: int) -> list[BenchmarkResult]:
    (in_memory,) = _commits(size, [SPILLED])
    with tempfile.TemporaryDirectory() as folder, ScratchModelFile(Path(folder), size) as file:
        in_file = best_seconds(_commit(size, SPILLED, ModelCache(size, 0, file)), repeats=96)
    return [
        BenchmarkResult(
            f"commit with {SPILLED} newest models in a file instead of memory", 1e3 * in_file, "ms"
        ),
        BenchmarkResult(
            "commit with the newest models in a file", in_file / in_memory, "x a commit in memory"
        ),
        BenchmarkResult("memory of the newest models when they are in a file", 4e-6 * size, "MB, one buffer"),
    ]


def _copy(size: int) -> float:
    source, target = np.ones(4 * size, np.float32), np.empty(4 * size, np.float32)
    return best_seconds(lambda: np.copyto(target, source), repeats=60)


def _full_pass(size: int, learners: int) -> float:
    stacked = np.ones((learners, size), np.float32)
    weights, mean = np.ones(learners, np.float32) / learners, np.empty(size, np.float32)
    repeats = 20 if learners <= 100 else 3
    return best_seconds(lambda: np.matmul(weights, stacked, out=mean), repeats=repeats)
