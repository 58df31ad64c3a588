"""Test accuracy against bytes sent: the same federation, the same seed, one codec after the other.

``python benchmarks/_codecs_accuracy.py PAGE.html [ROUNDS [SEEDS]]`` draws the curves of the first seed as a page and
prints, as JSON, how far SSTC is from STC for each of SEEDS seeds after ROUNDS rounds; that takes hours.
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

from abaton.benchmark import Measure, at_least
from abaton.report import accuracy_curves, figures_page

sys.path.insert(0, str(Path(__file__).parent))
import _cnn

LEARNERS, ROUNDS, EPOCHS, SEED, LAST = 4, 10, 3, 1, 5
SSTC = "sstc(sparsity=0.01, kernels=0.125, coding=context)"
STC = "stc(sparsity=0.01, coding=context)"
PAIRS = {"": (STC, SSTC), " with error feedback": (f"error_feedback | {STC}", f"error_feedback | {SSTC}")}
FRACTIONS = tuple(f"error_feedback | {SSTC.replace('0.125', share)}" for share in ("0.05", "0.25", "0.4"))
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
    """All curves, as many at a time as there are processors."""
    one = partial(_cnn.curve, learners=LEARNERS, count=rounds, epochs=EPOCHS, seed=seed)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return dict(zip(lines, pool.map(one, lines), strict=True))


def accuracy(points: Sequence[tuple[int, float]]) -> float:
    """The mean of the last rounds in percent: one round more or less must not matter."""
    return 100 * float(np.mean([share for _, share in points[-LAST:]]))


def gaps(found: Curves) -> dict[str, float]:
    """How many points SSTC is above STC, without and with error feedback."""
    return {
        how: accuracy(found[sstc]) - accuracy(found[stc])
        for how, (stc, sstc) in PAIRS.items()
        if {stc, sstc} <= found.keys()
    }


def run() -> list[Measure]:
    """Mean accuracy of the last five rounds, and bytes sent, for each codec."""
    if not _cnn.available():
        return []
    found, measures = curves(), []
    for line, points in found.items():
        measures.append(Measure(f"accuracy after {ROUNDS} rounds, {line}", accuracy(points), "%"))
        measures.append(Measure(f"bytes sent, {line}", points[-1][0] / LEARNERS / ROUNDS, "bytes/update"))
    over = (
        at_least(f"accuracy, SSTC over STC{how}", gap, -0.5, "points") for how, gap in gaps(found).items()
    )
    return [*measures, *over]


if __name__ == "__main__":
    page, *more = sys.argv[1:]
    count, seeds = (*map(int, more), *(ROUNDS, 1)[len(more) :])
    for number in range(1, seeds + 1):
        wanted = LINES if number == 1 else [line for pair in PAIRS.values() for line in pair]
        made = curves(wanted, rounds=count, seed=number)
        if number == 1:
            Path(page).write_text(figures_page("Codecs", [accuracy_curves(made)]), encoding="utf-8")
        sys.stdout.write(json.dumps({"seed": number, "rounds": count, "gaps": gaps(made)}) + "\n")
