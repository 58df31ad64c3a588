"""The speed of the quantising codecs on one thread, as ratios to copying the same array in the same run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from abaton.benchmark import Measure, at_least, at_most
from abaton.codecs import Key, parse
from abaton.kernels import Layout, Role, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from abaton.layout import Vector

SIZE = 1 << 20
KEY = Key(b"benchmark", "north")


def run() -> list[Measure]:
    """Transform, encode, decode and add; torch's transform beside ours."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_transform(), *_quicfl(), *_others()]
    finally:
        torch.set_num_threads(threads)


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several timings in seconds of this thread: what others do on the machine does not count."""
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best


def _ratio(call: Callable[[], object], source: Vector) -> float:
    """Seconds of a call over seconds of a copy; copies are timed before and after, the faster counts."""
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    call()
    before = _seconds(copy, 60)
    seconds = _seconds(call, 60)
    return seconds / min(before, _seconds(copy, 60))


def _torch_transform(x: Any) -> Any:
    """The transform as it is usually written in torch."""
    import torch

    size, half = x.numel(), 1
    while half < size:
        pairs = x.view(-1, 2, half)
        x = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), dim=1).view(-1)
        half *= 2
    return x


def _transform() -> list[Measure]:
    import torch

    from abaton.kernels.walsh_hadamard import aligned, transform

    measures = []
    for power, limit in ((20, 3.5), (22, None), (16, None)):
        x, one = aligned(1 << power), np.float32(1)
        x[:] = 0
        ratio = _ratio(lambda x=x, one=one: transform(x, 0, x.size, one), x)
        name = f"FWHT 2^{power}"
        measures.append(at_most(name, ratio, limit, "x copy") if limit else Measure(name, ratio, "x copy"))
    x = aligned(SIZE)
    x[:] = 0
    ours = _seconds(lambda: transform(x, 0, SIZE, np.float32(1)), 60)
    torchs = _seconds(lambda: _torch_transform(torch.zeros(SIZE)), 7)
    return [*measures, at_least("FWHT 2^20, torch's time over ours", torchs / ours, 20, "x")]


def _update() -> Vector:
    return np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


def _quicfl() -> list[Measure]:
    from abaton.codecs import QuicFL
    from abaton.codecs.rotated_domain import split

    measures = []
    update, layout = _update(), Layout([Tensor("weight", (SIZE,), Role.DENSE)])
    for bits in (1, 2, 3, 4):
        codec, cut = QuicFL(bits), split(SIZE, bits)
        payload, total = codec.encode(update, layout, KEY), codec.accumulator(layout, KEY.round)
        parts, space = codec.parts(payload, layout, KEY), np.zeros(cut.padded, np.float32)
        encode = _ratio(lambda c=codec: c.encode(update, layout, KEY), update)
        add = _ratio(lambda c=codec, p=parts, s=space, t=cut: c.add_to(s, p, t, p.norms, KEY), update)
        whole = _ratio(lambda t=total, p=payload: t.add(p, 1.0, KEY.learner), update)
        measures.append(at_most(f"QUIC-FL {bits} bits, encode", encode, 9, "x copy"))
        measures.append(at_most(f"QUIC-FL {bits} bits, decode and accumulate", add, 1.8, "x copy"))
        measures.append(Measure(f"QUIC-FL {bits} bits, the same with checksum and checks", whole, "x copy"))
    return measures


def _others() -> list[Measure]:
    measures = []
    update, layout = _update(), Layout([Tensor("weight", (SIZE,), Role.DENSE)])
    for line in [*(f"ecdq(bits={b})" for b in (1, 2, 3, 4)), "eden(bits=1)", "eden(bits=4)"]:
        codec: Any = parse(line).codec
        payload = codec.encode(update, layout, KEY)
        encode = _seconds(lambda c=codec: c.encode(update, layout, KEY), 15)
        decode = _seconds(lambda c=codec, p=payload: c.decode(p, layout, KEY), 15)
        measures.append(Measure(f"{line}, encode", 1e9 * encode / SIZE, "ns/number"))
        measures.append(Measure(f"{line}, decode", 1e9 * decode / SIZE, "ns/number"))
    return measures
