"""The way down as well as up: bytes each way and accuracy of the SSTC paper's network, with and without a downlink.

Four learners, thirty rounds, three seeds, updates as `error_feedback | stc(sparsity=0.01)`; the same federations once
more with `downlink = "stc(sparsity=0.01)"`, under the virtual clock. The pictures are those of `_cnn`. It takes
half an hour of two processors.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from abaton.benchmark import Measure, at_least

sys.path.insert(0, str(Path(__file__).parent))
import _cnn
from _two_ways import LEARNERS, Course, course

ROUNDS, LAST, SEEDS = 30, 5, (1, 2, 3)
UP = "error_feedback | stc(sparsity=0.01, coding=context)"
DOWN = "stc(sparsity=0.01, coding=context)"


def run() -> list[Measure]:
    """Bytes of an update and of a model, each way, and how far the accuracy is from uplink only."""
    if not _cnn.available():
        return []
    plain = course("raw", None, seed=SEEDS[0], rounds=1)
    whole = {"up": plain.up[0] / LEARNERS, "down": plain.down[0] / LEARNERS}
    made = [Measure(f"uncompressed, {way}", size, "bytes/learner and round") for way, size in whole.items()]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        asked = {
            (seed, down): pool.submit(course, UP, down, seed=seed, rounds=ROUNDS)
            for seed in SEEDS
            for down in (None, DOWN)
        }
        found = {key: future.result() for key, future in asked.items()}
    for seed in SEEDS:
        only, both = found[seed, None], found[seed, DOWN]
        made += _traffic(seed, both, whole)
        made += _accuracies(seed, only, both)
    return made


def _traffic(seed: int, both: Course, whole: dict[str, float]) -> list[Measure]:
    """Bytes a learner and round; the first model goes down whole, and is told apart."""
    sent = {"up": both.up, "down, the first model left out": both.down[1:], "down, all": both.down}
    made = []
    for way, rows in sent.items():
        size = float(np.mean(rows)) / LEARNERS
        made.append(Measure(f"seed {seed}: bytes {way}", size, "bytes/learner and round"))
        least, full = (15 if way == "down, all" else 200), whole[way.split(",")[0]]
        made.append(at_least(f"seed {seed}: uncompressed over bytes {way}", full / size, least, "x"))
    return made


def _accuracies(seed: int, only: Course, both: Course) -> list[Measure]:
    made = []
    for words, last in ((f"after {ROUNDS} rounds", 1), (f"mean of the last {LAST} of {ROUNDS} rounds", LAST)):
        one, two = (100 * float(np.mean(each.accuracy[-last:])) for each in (only, both))
        made.append(Measure(f"seed {seed}: accuracy {words}, uplink only", one, "%"))
        made.append(Measure(f"seed {seed}: accuracy {words}, both ways", two, "%"))
        made.append(
            at_least(f"seed {seed}: accuracy {words}, both ways over uplink only", two - one, -1.0, "points")
        )
    return made
