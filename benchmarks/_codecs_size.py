"""How small the sparse codecs make real updates of the SSTC paper's CNN, and how fast they are."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abaton.benchmark import Measure, at_least, at_most, within
from abaton.codecs import Key, Sstc, Stc, parse
from abaton.codecs.index_coding import write_context
from abaton.codecs.payload_format import read
from abaton.codecs.sparse_codec import Parts, rest_bytes, split
from abaton.codecs.sstc import pools_of, read_maps
from abaton.kernels import Layout, Role, Tensor

sys.path.insert(0, str(Path(__file__).parent))
import _cnn

if TYPE_CHECKING:
    from abaton.layout import Vector

KEY = Key(b"benchmark", "north")
ROUNDS = (1, 2, 4, 8)
CONV_BITS = 32 * 52_000
WHOLE = (
    "stc(sparsity=0.01)",
    "stc(sparsity=0.01, coding=context)",
    "sstc(sparsity=0.01, kernels=0.125, coding=context)",
)


def run() -> list[Measure]:
    """Speed on random numbers, then size on real updates where the pictures are there."""
    measures = _speed()
    if not _cnn.available():
        return measures
    data, layout = _cnn.pictures(learners=6, scans=100, seed=1), _cnn.sstc_cnn().layout
    for number, made in enumerate(_cnn.rounds(data, "raw", count=max(ROUNDS), epochs=5, seed=1), 1):
        if number in ROUNDS:
            measures += _sizes(f"round {number}", made.updates[0], layout)
    return measures


def _sizes(when: str, update: Vector, layout: Layout) -> list[Measure]:
    stc = {
        c: _payload(f"stc(sparsity=0.01, coding={c}, biases=sparse)", update, layout)
        for c in ("golomb", "context")
    }
    sstc = {c: Sstc(0.01, 0.125, coding=c, biases="raw") for c in ("fixed", "trit", "context")}
    payloads = {c: codec.encode(update, layout, KEY) for c, codec in sstc.items()}
    decoded = {codec.decode(payloads[c], layout, KEY).tobytes() for c, codec in sstc.items()}
    same = {Stc(0.01, coding=c, biases="sparse").decode(p, layout, KEY).tobytes() for c, p in stc.items()}
    entries = _conv_entries(sstc["trit"].open(payloads["trit"], layout).places, layout)
    context = CONV_BITS / (8 * _conv_context(sstc["context"], payloads["context"], layout))
    conv = {c: 8 * _conv(sstc[c], payloads[c], layout) for c in ("fixed", "trit")}
    raw = 4 * layout.size
    return [
        Measure(f"{when}: entries in the convolutions, SSTC", entries, "entries"),
        at_least(f"{when}: conv, SSTC fixed (numbers and maps)", CONV_BITS / (conv["fixed"] - 32), 103, "x"),
        at_least(f"{when}: conv, SSTC trit with μ", CONV_BITS / (conv["trit"] + 32), 140, "x"),
        at_least(f"{when}: conv, SSTC context with μ", context, 180, "x")
        if entries <= 2300
        else Measure(f"{when}: conv, SSTC context with μ", context, "x"),
        within(f"{when}: whole model, STC golomb", raw / len(stc["golomb"]), 340, 0.02, "x"),
        at_least(f"{when}: whole model, STC context", raw / len(stc["context"]), 600, "x"),
        *(
            Measure(f"{when}: whole model, {line}", raw / len(_payload(line, update, layout)), "x")
            for line in WHOLE
        ),
        at_most(f"{when}: decodings that differ between codings", len(decoded) + len(same) - 2, 0, ""),
    ]


def _payload(line: str, update: Vector, layout: Layout) -> bytes:
    return parse(line).codec.encode(update, layout, KEY)


def _conv_entries(places: np.ndarray, layout: Layout) -> int:
    return int(
        sum(((places >= a) & (places < b)).sum() for pool in pools_of(layout)[0] for a, b in pool.where)
    )


def _conv(codec: Sstc, payload: bytes, layout: Layout) -> int:
    """The bytes of the convolutions in a real payload."""
    body, parts = read(payload).body, split(layout)
    body = body[8 : len(body) - rest_bytes(parts, codec.biases)]
    (pool,) = pools_of(layout)[0]
    return len(body) - len(
        read_maps(body, pool, codec.allowed(pool), codec.count(parts.size), codec.coding)[2]
    )


def _conv_context(codec: Sstc, payload: bytes, layout: Layout) -> int:
    """The bytes of a context list that holds the convolutions alone, and μ."""
    opened, parts = codec.open(payload, layout), split(layout)
    conv = Parts(tuple(w for w in parts.weights if w.tensor.role is Role.CONV), ())
    from abaton.kernels.vector_ops import inside

    order = np.argsort(opened.places)
    told, negative = inside(opened.places[order], opened.values[order].view(np.uint32), conv.stretches())
    return 4 + len(write_context(told, negative, conv.weights))


def _cpu_seconds(call: Callable[[], object], *, repeats: int) -> float:
    """The fastest of several timings, in seconds of this thread: calls of milliseconds are cut up on a busy machine."""
    best = math.inf
    for _ in range(repeats):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best


def _speed() -> list[Measure]:
    rng, measures = np.random.default_rng(0), []
    for power in (20, 22):
        side = 1 << power // 2
        dense = Layout([Tensor("weight", (side, side), Role.DENSE)])
        mixed = Layout(
            [
                Tensor("conv", (64, 32, 5, 5), Role.CONV),
                Tensor("weight", (math.ceil((4 ** (power // 2) - 51200) / side), side), Role.DENSE),
            ]
        )
        for line, layout, limit in (
            ("stc(sparsity=0.01)", dense, 2.0),
            ("stc(sparsity=0.001)", dense, None),
            ("stc(sparsity=0.1)", dense, None),
            ("sstc(sparsity=0.01, kernels=0.125)", mixed, 2.5),
        ):
            update = rng.standard_normal(layout.size).astype(np.float32)
            codec, target = parse(line).codec, np.empty_like(update)
            codec.encode(update, layout, KEY)
            copy = _cpu_seconds(lambda t=target, u=update: np.copyto(t, u), repeats=60)
            encode = _cpu_seconds(lambda c=codec, u=update, x=layout: c.encode(u, x, KEY), repeats=60)
            copy = min(copy, _cpu_seconds(lambda t=target, u=update: np.copyto(t, u), repeats=60))
            name = f"{line} 2^{power}, select and code"
            measures.append(
                at_most(name, encode / copy, limit, "x copy")
                if limit
                else Measure(name, encode / copy, "x copy")
            )
            payload, total = codec.encode(update, layout, KEY), codec.accumulator(layout, KEY.round)
            add = _cpu_seconds(lambda a=total, p=payload: a.add(p, 1.0, "north"), repeats=30)
            measures.append(Measure(f"{line} 2^{power}, decode and add", add / copy, "x copy"))
    return [*measures, *_context_speed()]


def _context_speed() -> list[Measure]:
    """On an update with the structure of a trained layer: few rows and columns hold most of it."""
    rng, layout = np.random.default_rng(0), Layout([Tensor("weight", (1024, 1024), Role.DENSE)])
    outer = rng.lognormal(0, 2, (1024, 1)) * rng.lognormal(0, 2, 1024) * rng.standard_normal((1024, 1024))
    measures = []
    for name, update in (("layered", outer), ("random", rng.standard_normal((1024, 1024)))):
        flat, codec = update.ravel().astype(np.float32), Stc(0.01, coding="context")
        payload = codec.encode(flat, layout, KEY)
        encode = _cpu_seconds(lambda f=flat, c=codec: c.encode(f, layout, KEY), repeats=7)
        decode = _cpu_seconds(lambda p=payload, c=codec: c.open(p, layout), repeats=7)
        for what, seconds in (("encode", encode), ("decode", decode)):
            label, value = f"context coder, {name} update, {what}", 1e9 * seconds / layout.size
            measures.append(
                at_most(label, value, 12, "ns/weight")
                if name == "layered"
                else Measure(label, value, "ns/weight")
            )
    return measures
