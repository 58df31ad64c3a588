"""Error of the quantising codecs: size, decrease with the number of learners, and bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least, at_most, within
from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

if TYPE_CHECKING:
    from abaton.codecs import Codec
    from abaton.layout import Vector

SEEDS = 8
SIZE = 1 << 20
KINDS = ("normal", "lognormal")
QUICFL = ((1.465, 0.02), (0.2136, 0.007), (0.04264, 0.005), (0.00951, 0.005))
EDEN = (0.5708, 0.1331, 0.0358, 0.00959)
ECDQ = (0.551, 0.0977, 0.0228, 0.0056)


def run() -> list[BenchmarkResult]:
    """Measure vNMSE at 2^20 values, error times learners, and bias on sparse updates."""
    return [*_errors(), *_baselines(), *_learners(), *_sparse()]


def _flat(size: int) -> Layout:
    return Layout([Tensor("weight", (size,), TensorRole.DENSE)])


def _codec(line: str) -> Codec:
    return parse_codec(line).codec


def _update(kind: str, seed: int, size: int) -> Vector:
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal if kind == "normal" else rng.lognormal
    return draw(size=size).astype(np.float32)


def _vnmse(line: str, kind: str, seeds: int) -> tuple[float, float]:
    """Return the mean error and the largest payload size in bits per value."""
    layout, codec, errors, sizes = _flat(SIZE), _codec(line), [], []
    for seed in range(seeds):
        update, key = _update(kind, seed, SIZE), CodecKey(b"benchmark %d" % seed, "north")
        payload = codec.encode(update, layout, key)
        error = codec.decode(payload, layout, key).astype(np.float64) - update
        errors.append((error @ error) / float(np.sum(update.astype(np.float64) ** 2)))
        sizes.append(8 * len(payload) / SIZE)
    return float(np.mean(errors)), max(sizes)


def _errors() -> list[BenchmarkResult]:
    results = []
    for kind in KINDS:
        for i, bits in enumerate((1, 2, 3, 4)):
            error, size = _vnmse(f"quicfl(bits={bits})", kind, SEEDS)
            results.append(within(f"vNMSE quicfl {bits} bits, {kind}", error, *QUICFL[i], "1"))
            results.append(BenchmarkResult(f"size quicfl {bits} bits, {kind}", size, "bits/number"))
            error, _ = _vnmse(f"eden(bits={bits})", kind, SEEDS)
            results.append(within(f"vNMSE eden {bits} bits, {kind}", error, EDEN[i], 0.005, "1"))
            error, size = _vnmse(f"ecdq(bits={bits})", kind, SEEDS)
            results.append(at_most(f"vNMSE ecdq {bits} bits, {kind}", error, ECDQ[i], "1"))
            results.append(at_most(f"size ecdq {bits} bits, {kind}", size, bits + 0.005, "bits/number"))
    return results


def _baselines() -> list[BenchmarkResult]:
    results = []
    for kind in KINDS:
        for line in [
            "drive",
            *(f"{name}(bits={b})" for name in ("hadamard", "kashin", "qsgd") for b in (1, 2, 3, 4)),
        ]:
            error, size = _vnmse(line, kind, 1)
            results.append(BenchmarkResult(f"vNMSE {line}, {kind}", error, "1"))
            results.append(BenchmarkResult(f"size {line}, {kind}", size, "bits/number"))
    return results


def _learners() -> list[BenchmarkResult]:
    """Return NMSE times n through the accumulator for 1, 10 and 100 learners with different updates."""
    results, size = [], 1 << 18
    for line in [f"{name}(bits={b})" for name in ("quicfl", "ecdq") for b in (1, 2, 3, 4)]:
        codec, layout, first = _codec(line), _flat(size), 0.0
        for learners in (1, 10, 100):
            total, mean, squares = codec.accumulator(layout, b"benchmark"), np.zeros(size), 0.0
            for i in range(learners):
                update = _update("lognormal", i, size)
                total.add(codec.encode(update, layout, CodecKey(b"benchmark", f"{i}")), 1.0, f"{i}")
                mean += update / learners
                squares += float(np.sum(update.astype(np.float64) ** 2)) / learners
            scaled = learners * float(np.sum((total.mean() - mean) ** 2)) / squares
            first = first or scaled
            results.append(within(f"NMSE·n {line}, n = {learners}", scaled, first, 0.04, "1"))
    return results


def _sparse() -> list[BenchmarkResult]:
    """Return the error of the mean of many decodings of (1, ½, ¼, 0, ...): it vanishes for an unbiased codec."""
    results, size, times = [], 1024, 10_000
    update, layout = np.zeros(size, np.float32), _flat(size)
    update[:3] = 1, 0.5, 0.25
    for line in ("quicfl(bits=1)", "ecdq(bits=1)", "eden(bits=1)"):
        codec, mean = _codec(line), np.zeros(size)
        for i in range(times):
            key = CodecKey(i.to_bytes(4, "little"), "north")
            mean += codec.decode(codec.encode(update, layout, key), layout, key)
        mean /= times
        scaled = times * float(np.sum((mean - update) ** 2) / np.sum(update**2))
        check = at_least if line.startswith("eden") else at_most
        results.append(check(f"sparse update, NMSE·{times} {line}", scaled, 3.0, "1"))
        results.append(
            BenchmarkResult(f"sparse update, mean of the first number (1) {line}", float(mean[0]), "1")
        )
    return results
