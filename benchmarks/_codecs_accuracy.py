"""Test accuracy against bytes sent: the same federation, the same seed, one codec after the other."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from abaton.bench import Measure, at_least

sys.path.insert(0, str(Path(__file__).parent))
import _cnn

LEARNERS, ROUNDS, EPOCHS, SEED = 4, 10, 3, 1
SSTC = "sstc(sparsity=0.01, kernels=0.125, coding=context)"
STC = "stc(sparsity=0.01, coding=context)"
LINES = (
    "raw",
    STC,
    SSTC,
    f"error_feedback | {STC}",
    f"error_feedback | {SSTC}",
    "quicfl(bits=1)",
    "quicfl(bits=4)",
    "ecdq(bits=1)",
    "ecdq(bits=2)",
)


def curves() -> dict[str, list[tuple[int, float]]]:
    """All curves, as many at a time as there are processors."""
    one = partial(_cnn.curve, learners=LEARNERS, count=ROUNDS, epochs=EPOCHS, seed=SEED)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return dict(zip(LINES, pool.map(one, LINES), strict=True))


def run() -> list[Measure]:
    """Best accuracy of the last five rounds, and bytes sent, for each codec."""
    if not _cnn.available():
        return []
    found = curves()
    best = {line: max(accuracy for _, accuracy in points[-5:]) for line, points in found.items()}
    measures = []
    for line, points in found.items():
        measures.append(Measure(f"accuracy after {ROUNDS} rounds, {line}", 100 * best[line], "%"))
        measures.append(Measure(f"bytes sent, {line}", points[-1][0] / LEARNERS / ROUNDS, "bytes/update"))
    gap = 100 * (best[SSTC] - best[STC])
    return [*measures, at_least("accuracy, SSTC over STC", gap, -0.5, "points")]
