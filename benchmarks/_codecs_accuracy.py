"""Test accuracy against bytes sent: the same federation and seed for each codec.

``python benchmarks/_codecs_accuracy.py PAGE.html [ROUNDS [SEEDS]]`` plots the curves of the first seed and prints, as
JSON, the accuracy difference of SSTC and STC for each of SEEDS seeds after ROUNDS rounds. It takes hours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least
from abaton.report import accuracy_curves, render_figures

sys.path.insert(0, str(Path(__file__).parent))
import _cnn

LEARNERS, ROUNDS, EPOCHS, SEED, LAST = 4, 10, 3, 1, 5
SSTC = "sstc(sparsity=0.01, kernels=0.125, coding=context)"
STC = "stc(sparsity=0.01, coding=context)"
PAIRS = {"": (STC, SSTC), " with error feedback": (f"error_feedback | {STC}", f"error_feedback | {SSTC}")}
FRACTIONS = tuple(
    f"error_feedback | {SSTC.replace('0.125', fraction)}" for fraction in ("0.05", "0.25", "0.4")
)
LINES = (
    "raw",
    *(line for pair in PAIRS.values() for line in pair),
    *FRACTIONS,  # the SSTC paper's Fig. 3c: other fractions of kernels
    "quicfl(bits=1)",
    "quicfl(bits=4)",
    "ecdq(bits=1)",
    "ecdq(bits=2)",
)
Curves = Mapping[str, Sequence[tuple[int, float]]]


def curves(lines: Sequence[str] = LINES, *, rounds: int = ROUNDS, seed: int = SEED) -> Curves:
    """Return all curves, computed on all processors."""
    one = partial(_cnn.curve, learners=LEARNERS, count=rounds, epochs=EPOCHS, seed=seed)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return dict(zip(lines, pool.map(one, lines), strict=True))


def accuracy(points: Sequence[tuple[int, float]]) -> float:
    """Return the mean accuracy of the last rounds in percent."""
    return 100 * float(np.mean([fraction for _, fraction in points[-LAST:]]))


def gaps(curves_by_codec: Curves) -> dict[str, float]:
    """Return the accuracy of SSTC minus that of STC in points, without and with error feedback."""
    return {
        how: accuracy(curves_by_codec[sstc]) - accuracy(curves_by_codec[stc])
        for how, (stc, sstc) in PAIRS.items()
        if {stc, sstc} <= curves_by_codec.keys()
    }


def run() -> list[BenchmarkResult]:
    """Measure mean accuracy of the last five rounds and bytes sent, for each codec."""
    if not _cnn.available():
        return []
    curves_by_codec, results = curves(), []
    for line, points in curves_by_codec.items():
        results.append(BenchmarkResult(f"accuracy after {ROUNDS} rounds, {line}", accuracy(points), "%"))
        results.append(
            BenchmarkResult(f"bytes sent, {line}", points[-1][0] / LEARNERS / ROUNDS, "bytes/update")
        )
    over = (
        at_least(f"accuracy, SSTC over STC{how}", gap, -0.5, "points")
        for how, gap in gaps(curves_by_codec).items()
    )
    return [*results, *over]


if __name__ == "__main__":
    page, *more = sys.argv[1:]
    count, seeds = (*map(int, more), *(ROUNDS, 1)[len(more) :])
    for number in range(1, seeds + 1):
        wanted = LINES if number == 1 else [line for pair in PAIRS.values() for line in pair]
        curves_by_codec = curves(wanted, rounds=count, seed=number)
        if number == 1:
            Path(page).write_text(
                render_figures("Codecs", [accuracy_curves(curves_by_codec)]), encoding="utf-8"
            )
        sys.stdout.write(json.dumps({"seed": number, "rounds": count, "gaps": gaps(curves_by_codec)}) + "\n")
