"""Kernels in vector instructions against their plain twins, on a processor with AVX2.

What is written by hand must pay: one and a half times as fast as the same loops written plainly and compiled by numba.
Compiled for a processor without AVX-512, also where this one has it. Seconds are those of the thread.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from abaton.benchmark import Measure, at_least

PAYS = 1.5
SIZE, BLOCK = 1 << 20, 1 << 16
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
}


def run() -> list[Measure]:
    """How many times as fast each of them is."""
    narrow = AVX2 if platform.machine() == "x86_64" else {}
    said = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env={**os.environ, **narrow},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [
        at_least(f"{name}, plain numba over ours (AVX2)", ratio, PAYS, "x")
        for name, ratio in json.loads(said)
    ]


def _ratio(ours: Callable[[], object], plain: Callable[[], object]) -> float:
    """How often the fastest of ours fits into the fastest of the plain; they take turns."""
    best = [float("inf"), float("inf")]
    for _ in range(20):
        for i, call in enumerate((ours, plain)):
            start = time.thread_time()
            call()
            best[i] = min(best[i], time.thread_time() - start)
    return best[1] / best[0]


def _measured() -> list[tuple[str, float]]:
    from abaton.codecs.quicfl import DEFAULT, codebooks, intervals_of
    from abaton.kernels import codebook_quantiser as wide
    from abaton.kernels import simd_fallback as plain
    from abaton.kernels.jit import kernel
    from abaton.kernels.rotation import keyed
    from abaton.kernels.simd import put_word
    from abaton.kernels.topk import gathered
    from abaton.kernels.walsh_hadamard import aligned, sign, transform

    @kernel
    def put_words(buffer: Any, step: int, words: Any) -> None:
        for i in range(words.size):
            put_word(buffer, i * step, words[i])

    one, keys, private = np.float32(1), keyed(1), keyed(2)
    x, y = aligned(SIZE), aligned(SIZE)
    x[:] = np.random.default_rng(0).normal(size=SIZE)
    y[:] = 0
    z, places, found = aligned(BLOCK), np.empty(SIZE + 64, np.uint32), np.empty(SIZE + 64, np.uint32)
    z[:] = 0
    bits, limit, whole = x.view(np.uint32), int(np.float32(2.57).view(np.uint32)), np.array([[0, SIZE]])
    buffer, some = np.empty(2 * BLOCK + 8, np.uint8), np.arange(BLOCK).astype(np.uint64)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "transform": (lambda: transform(z, 0, BLOCK, one), lambda: plain.transform(z, 0, BLOCK)),
        "signs": (
            lambda: sign(x, 0, y, 0, SIZE, 0, one, keys),
            lambda: plain.sign(x, y, SIZE, 0, one, keys),
        ),
        "gathering one in a hundred": (
            lambda: gathered(bits, whole, limit, places, found),
            lambda: plain.gather(bits, limit, places, found),
        ),
        "words to bytes": (lambda: put_words(buffer, 2, some), lambda: plain.put_words(buffer, 2, some)),
    }
    for b in (1, 2, 3, 4):
        books = codebooks(b, DEFAULT[b])
        low, width = (np.asarray(end, np.float32) for end in intervals_of(b, DEFAULT[b]))
        words, masks = np.empty(BLOCK * b // 32, np.uint32), np.empty(BLOCK // 64, np.uint64)
        table, count, edge, four = books.codewords, books.rows, books.edge, (*keys, *private)
        pairs[f"quantising, bits={b}"] = (
            lambda b=b, k=books, w=words, m=masks, n=count, e=edge, f=four: wide.write(
                x, BLOCK, w, 0, m, 0, k.intervals, n, e, one, b, k.cells, f
            ),
            lambda b=b, lo=low, wi=width, w=words, m=masks, e=edge, f=four: plain.write(
                x, BLOCK, w, 0, m, 0, lo, wi, e, one, b, f
            ),
        )
        pairs[f"adding codewords, bits={b}"] = (
            lambda b=b, w=words, t=table, n=count: wide.add(w, 0, y, 0, BLOCK, 0, t, n, b, keys),
            lambda b=b, w=words, t=table, n=count: plain.add(w, 0, y, 0, BLOCK, 0, t, n, b, keys),
        )
    return [(name, _ratio(*pair)) for name, pair in pairs.items()]


if __name__ == "__main__":
    print(json.dumps(_measured()))
