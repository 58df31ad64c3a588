"""SIMD kernels against their scalar fallbacks, on a processor with AVX2.

A hand-written kernel must be at least 1.5 times as fast as the scalar loop compiled by Numba. Both are compiled without
AVX-512. Times are seconds of the thread.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least

MIN_SPEEDUP = 1.5
SIZE, BLOCK = 1 << 20, 1 << 16
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
}


def run() -> list[BenchmarkResult]:
    """Measure the speed-up of each kernel."""
    avx2_environment = AVX2 if platform.machine() == "x86_64" else {}
    completed = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env={**os.environ, **avx2_environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [
        at_least(f"{name}, scalar time over SIMD time (AVX2)", ratio, MIN_SPEEDUP, "x")
        for name, ratio in json.loads(completed)
    ]


def _ratio(simd: Callable[[], object], scalar: Callable[[], object]) -> float:
    """Return the best scalar time divided by the best SIMD time; calls alternate."""
    best = [float("inf"), float("inf")]
    for _ in range(20):
        for i, call in enumerate((simd, scalar)):
            start = time.thread_time()
            call()
            best[i] = min(best[i], time.thread_time() - start)
    return best[1] / best[0]


def _measured() -> list[tuple[str, float]]:
    from abaton.codecs.quicfl import DEFAULT_SHARED_BITS, codebooks, message_intervals
    from abaton.kernels import codebook_quantiser, simd_fallback, trellis_fallback, trellis_search
    from abaton.kernels.jit import kernel
    from abaton.kernels.rotation import derive_key
    from abaton.kernels.simd import put_word
    from abaton.kernels.topk import gather
    from abaton.kernels.walsh_hadamard import aligned, sign, transform

    @kernel
    def put_words(buffer: Any, step: int, random_words: Any) -> None:
        for i in range(random_words.size):
            put_word(buffer, i * step, random_words[i])

    one, keys, private = np.float32(1), derive_key(1), derive_key(2)
    x, y = aligned(SIZE), aligned(SIZE)
    x[:] = np.random.default_rng(0).normal(size=SIZE)
    y[:] = 0
    z, indices, candidates = aligned(BLOCK), np.empty(SIZE + 64, np.uint32), np.empty(SIZE + 64, np.uint32)
    z[:] = 0
    bits, limit, segments = x.view(np.uint32), int(np.float32(2.57).view(np.uint32)), np.array([[0, SIZE]])
    buffer, fields = np.empty(2 * BLOCK + 8, np.uint8), np.arange(BLOCK).astype(np.uint64)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "transform": (lambda: transform(z, 0, BLOCK, one), lambda: simd_fallback.transform(z, 0, BLOCK)),
        "signs": (
            lambda: sign(x, 0, y, 0, SIZE, 0, one, keys),
            lambda: simd_fallback.sign(x, y, SIZE, 0, one, keys),
        ),
        "gathering one in a hundred": (
            lambda: gather(bits, segments, limit, indices, candidates),
            lambda: simd_fallback.gather(bits, limit, indices, candidates),
        ),
        "words to bytes": (
            lambda: put_words(buffer, 2, fields),
            lambda: simd_fallback.put_words(buffer, 2, fields),
        ),
    }
    steps = BLOCK // trellis_search.LANES
    for state_count, search in trellis_search.SEARCHES.items():
        residues, path = aligned(BLOCK // 2).view(np.int16), np.empty(BLOCK, np.uint8)
        residues[:] = np.random.default_rng(0).integers(0, 256, BLOCK)
        metrics = aligned(3 * trellis_search.LANES * state_count // 2).view(np.int16)
        decisions, cosets = aligned(steps * state_count).view(np.uint32), trellis_search.cosets(state_count)
        pairs[f"trellis search, {state_count} states"] = (
            partial(search, residues, steps, metrics, decisions, path),
            partial(trellis_fallback.search, residues, state_count, cosets, path),
        )
    for b in (1, 2, 3, 4):
        books = codebooks(b, DEFAULT_SHARED_BITS[b])
        low, width = (np.asarray(end, np.float32) for end in message_intervals(b, DEFAULT_SHARED_BITS[b]))
        random_words, masks = np.empty(BLOCK * b // 32, np.uint32), np.empty(BLOCK // 64, np.uint64)
        table, count, edge, all_keys = books.codewords, books.row_count, books.edge, (*keys, *private)
        target = x, BLOCK, random_words, 0, masks, 0
        pairs[f"quantising, bits={b}"] = (
            partial(
                codebook_quantiser.write, *target, books.intervals, count, edge, one, b, books.cells, all_keys
            ),
            partial(simd_fallback.write, *target, low, width, edge, one, b, all_keys),
        )
        pairs[f"adding codewords, bits={b}"] = (
            partial(codebook_quantiser.add, random_words, 0, y, 0, BLOCK, 0, table, count, b, keys),
            partial(simd_fallback.add, random_words, 0, y, 0, BLOCK, 0, table, count, b, keys),
        )
    return [(name, _ratio(*pair)) for name, pair in (pairs | _rans_pairs()).items()]


def _rans_pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return the coder and the decoder of symbols with the frequencies of ECDQ at 2 bits, and their fallbacks."""
    from abaton.codecs.ecdq import outcome_frequencies, rate_model
    from abaton.kernels import interleaved_rans, simd_fallback

    model, rng = rate_model(2), np.random.default_rng(1)
    frequencies = outcome_frequencies(model.cumulative, model.strata)
    rows, slots = rng.integers(0, model.strata, BLOCK), rng.integers(0, interleaved_rans.TOTAL, BLOCK)
    outcomes = (np.cumsum(frequencies, axis=1)[rows] <= slots[:, None]).sum(axis=1)
    symbols, symbol_rows = (rows * model.table.width + outcomes).astype(np.uint16), rows.astype(np.uint32)
    intervals, reciprocals, guesses, row_width = model.table
    states, code = interleaved_rans.open_code(interleaved_rans.encode_symbols(symbols, model.table))
    rans_words, decoded = np.empty(BLOCK + 1, np.uint16), np.empty(BLOCK, np.uint32)
    return {
        "rANS, encode": (
            lambda: interleaved_rans.write(symbols, intervals, reciprocals, states[:-1].copy(), rans_words),
            lambda: simd_fallback.write_rans(symbols, intervals, states[:-1].copy(), rans_words),
        ),
        "rANS, decode": (
            lambda: interleaved_rans.read(code, states.copy(), symbol_rows, intervals, guesses, decoded),
            lambda: simd_fallback.read_rans(code, states.copy(), symbol_rows, intervals, row_width, decoded),
        ),
    }


if __name__ == "__main__":
    print(json.dumps(_measured()))
