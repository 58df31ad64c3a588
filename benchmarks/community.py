"""What a commit costs: the cached mix of the newest models, against copying its bytes and against the pass it replaces.

The cached commit touches 32 bytes a parameter: it reads the sum, the old and the new model, and writes the sum, the
kept model and the mix. It is compared with `np.copyto` of as many bytes (16 read, 16 written), and with the full pass
over all models, `weights @ stacked` by BLAS on an arena that already holds every model as a row: the fastest there is.
"""

from __future__ import annotations

import numpy as np

from abaton.bench import Measure, at_most, best_seconds
from abaton.codecs import parse
from abaton.control.community import Newest
from abaton.vectors import Layout, Role, Tensor

PARAMETERS = 1_690_046  # the SSTC paper's network
SMALL = 600_000  # a thousand of these models are 2.4 GB


def run() -> list[Measure]:
    """Commit time against the number of learners, against a copy, and against the full pass."""
    few, many = _commit(SMALL, 1), _commit(SMALL, 1000)
    alone, ten, hundred = (_commit(PARAMETERS, n) for n in (1, 10, 100))
    copy = _copy(PARAMETERS)
    passes = {n: _full_pass(PARAMETERS, n) for n in (2, 5, 10, 30, 100)}
    break_even = next((n for n, seconds in passes.items() if seconds > ten), 1000)
    return [
        at_most("commit with 1000 learners against 1, 600 thousand parameters", many / few, 1.2, "x"),
        at_most("commit with 100 learners against 1, 1.69 million parameters", hundred / alone, 1.2, "x"),
        at_most(
            "cached commit, 1.69 million parameters", ten / copy, 2.5, "x np.copyto of the bytes it touches"
        ),
        Measure("cached commit, 1.69 million parameters", 1e3 * ten, "ms"),
        *(
            Measure(f"full pass by BLAS over {n} models in an arena", 1e3 * s, "ms")
            for n, s in passes.items()
        ),
        Measure("full pass over 100 models against the cached commit", passes[100] / ten, "x"),
        Measure("number of learners, of those tried, from which the cache pays", break_even, "learners"),
        Measure("memory of the cache besides the newest models", 12.0, "bytes a parameter"),
    ]


def _layout(size: int) -> Layout:
    return Layout([Tensor("weight", (size,), Role.DENSE)])


def _commit(size: int, learners: int) -> float:
    rng = np.random.default_rng(0)
    layout = _layout(size)
    mix = Newest(layout, parse("raw"), layout.zeros())
    models = rng.normal(size=(2, size)).astype(np.float32)
    for i in range(learners):
        mix.replace(f"learner{i}", models[i % 2], 1.0 + i % 7)
    turn = [0]

    def commit() -> None:
        turn[0] += 1
        mix.replace(f"learner{turn[0] % learners}", models[turn[0] % 2], 1.0 + turn[0] % 7)
        mix.publish()

    return best_seconds(commit, repeats=40)


def _copy(size: int) -> float:
    source, target = np.ones(4 * size, np.float32), np.empty(4 * size, np.float32)
    return best_seconds(lambda: np.copyto(target, source), repeats=40)


def _full_pass(size: int, learners: int) -> float:
    arena = np.ones((learners, size), np.float32)
    weights, mixed = np.ones(learners, np.float32) / learners, np.empty(size, np.float32)
    return best_seconds(lambda: np.matmul(weights, arena, out=mixed), repeats=15)
