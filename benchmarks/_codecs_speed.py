"""Speed of the quantising codecs on one thread, relative to copying the same array in the same run."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

if TYPE_CHECKING:
    from collections.abc import Callable

    from abaton.layout import Vector

SIZE = 1 << 20
ENTROPY_CODED_LIMITS = {
    "ecdq": 40,
    "tcdq": 50,
}  # x copy: 3.5 ns per value where a copy takes 0.086 or 0.07 ns
KEY = CodecKey(b"benchmark", "north")


def run() -> list[BenchmarkResult]:
    """Measure transform, encode, decode and add; torch's transform for comparison."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_transform(), *_quicfl(), *_others()]
    finally:
        torch.set_num_threads(threads)


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the best of several timings in seconds of this thread."""
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best


def _ratio(call: Callable[[], object], source: Vector) -> float:
    """Return the time of a call divided by the time of a copy; copies are timed before and after, the faster counts."""
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    call()
    before = _seconds(copy, 60)
    seconds = _seconds(call, 60)
    return seconds / min(before, _seconds(copy, 60))


def _torch_transform(x: Any) -> Any:
    """Return the Walsh-Hadamard transform as usually written in torch."""
    import torch

    size, half = x.numel(), 1
    while half < size:
        pairs = x.view(-1, 2, half)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), dim=1).view(-1)
        half *= 2
    return x


def _transform() -> list[BenchmarkResult]:
    import torch

    from abaton.kernels.walsh_hadamard import aligned, transform

    results = []
    for power, limit in ((20, 3.5), (22, None), (16, None)):
        x = aligned(1 << power)
        x[:] = 0
        ratio = _ratio(partial(transform, x, 0, x.size, np.float32(1)), x)
        name = f"FWHT 2^{power}"
        results.append(
            at_most(name, ratio, limit, "x copy") if limit else BenchmarkResult(name, ratio, "x copy")
        )
    x = aligned(SIZE)
    x[:] = 0
    seconds = _seconds(lambda: transform(x, 0, SIZE, np.float32(1)), 60)
    torch_seconds = _seconds(lambda: _torch_transform(torch.zeros(SIZE)), 7)
    return [
        *results,
        at_least("FWHT 2^20, time of PyTorch over that of the kernel", torch_seconds / seconds, 20, "x"),
    ]


def _update() -> Vector:
    return np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


def _quicfl() -> list[BenchmarkResult]:
    from abaton.codecs import QuicFL
    from abaton.codecs.rotated_domain import split_blocks

    results = []
    update, layout = _update(), Layout([Tensor("weight", (SIZE,), TensorRole.DENSE)])
    for bits in (1, 2, 3, 4):
        codec, blocks = QuicFL(bits), split_blocks(SIZE, bits)
        payload, total = codec.encode(update, layout, KEY), codec.accumulator(layout, KEY.round)
        opened = codec.open_payload(payload, layout, KEY)
        total_vector = np.zeros(blocks.padded_size, np.float32)
        encode = _ratio(partial(codec.encode, update, layout, KEY), update)
        add = _ratio(partial(codec.add_to, total_vector, opened, blocks, opened.norms, KEY), update)
        full_ratio = _ratio(partial(total.add, payload, 1.0, KEY.learner), update)
        results.append(at_most(f"QUIC-FL {bits} bits, encode", encode, 9, "x copy"))
        results.append(at_most(f"QUIC-FL {bits} bits, decode and accumulate", add, 1.8, "x copy"))
        results.append(
            BenchmarkResult(f"QUIC-FL {bits} bits, the same with checksum and checks", full_ratio, "x copy")
        )
    return results


def _others() -> list[BenchmarkResult]:
    results = []
    update, layout = _update(), Layout([Tensor("weight", (SIZE,), TensorRole.DENSE)])
    lines = [f"{name}(bits={b})" for name in ("ecdq", "tcdq") for b in (1, 2, 3, 4)]
    slower = ["tcdq(bits=2, states=8)", "tcdq(bits=2, states=256)", "eden(bits=1)", "eden(bits=4)"]
    for line in [*lines, *slower]:
        codec: Any = parse_codec(line).codec
        payload = codec.encode(update, layout, KEY)
        for name, call in (
            ("encode", partial(codec.encode, update, layout, KEY)),
            ("decode", partial(codec.decode, payload, layout, KEY)),
        ):
            ratio = _ratio(call, update)
            results.append(
                at_most(f"{line}, {name}", ratio, ENTROPY_CODED_LIMITS[line[:4]], "x copy")
                if line in lines
                else BenchmarkResult(f"{line}, {name}", ratio, "x copy")
            )
    return results
