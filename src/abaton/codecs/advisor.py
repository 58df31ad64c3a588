"""Which codec is smallest for a model, by the SSTC paper's formulas and by payloads that are really written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abaton.codecs.base import Key
from abaton.codecs.registry import parse
from abaton.codecs.sparse_codec import split
from abaton.codecs.sstc import pools_of
from abaton.codecs.stc import CODINGS, Stc
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.codecs.sstc import Pool
    from abaton.layout import Layout, Vector

KERNELS = (0.05, 0.125, 0.25, 0.4)
SPARSITIES = (0.001, 0.003, 0.01, 0.03, 0.1)
_KEY = Key(b"adviser", "adviser", b"adviser")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one codec makes of one update."""

    line: str
    bytes: int
    ratio: float
    error: float  # |update - decoded|^2 / |update|^2
    unbiased: bool


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Up to which share of kernels SSTC's own encoding is smaller than STC's, for kernels of one size.

    Eq. 2 of the paper: k < p · b_p / (2 K K + b_k), with p entries of STC in the convolutions, b_p bits
    for an index of theirs, b_k bits for the number of a kernel.
    """

    kernel: int  # K K
    kernels: int
    entries: int
    index_bits: int
    kernel_bits: int
    most: float

    @property
    def share(self) -> float:
        """The break-even as a share of all kernels."""
        return self.most / self.kernels

    def gain(self, chosen: int) -> float:
        """Eq. 1: how many times smaller SSTC's indices are than STC's when so many kernels are chosen."""
        return self.index_bits * self.entries / (chosen * (self.kernel_bits + 2 * self.kernel))


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole answer."""

    measured: tuple[Measured, ...]  # the smallest first
    break_even: tuple[BreakEven, ...]
    smallest: str
    smallest_unbiased: str
    from_update: bool


def advise(layout: Layout, update: Vector | None = None, *, sparsity: float = 0.01) -> Advice:
    """Measure every candidate on an update; without one, on random numbers, which no context can predict.

    >>> from abaton.kernels import Layout, Role, Tensor
    >>> cnn = Layout([Tensor("conv", (64, 32, 5, 5), Role.CONV)])
    >>> advice = advise(cnn)
    >>> advice.break_even[0].kernel_bits, round(advice.break_even[0].share, 3)
    (12, 0.065)
    """
    if not layout.size:
        raise SettingsError("the model has no numbers", remedy="choose a model with weights")
    given = update is not None
    update = unpredictable(layout) if update is None else update
    measured = sorted((measure(line, layout, update) for line in candidates(layout, sparsity)), key=_size)
    unbiased = next(m for m in measured if m.unbiased)
    return Advice(
        tuple(measured),
        tuple(break_even(layout, update, sparsity)),
        measured[0].line,
        unbiased.line,
        given,
    )


def unpredictable(layout: Layout) -> Vector:
    """Random numbers in place of an update: the worst case for a coder that predicts."""
    return np.random.default_rng(0).standard_normal(layout.size).astype(np.float32)


def candidates(layout: Layout, sparsity: float) -> Sequence[str]:
    """The codec lines worth trying for a layout."""
    lines = ["raw", "fp16"]
    if split(layout).weights:
        lines += [f"stc(sparsity={sparsity}, coding={coding})" for coding in ("golomb", "context")]
    if pools_of(layout)[0]:
        lines += [
            f"sstc(sparsity={sparsity}, kernels={share}, coding={coding})"
            for share in KERNELS
            for coding in ("fixed", "trit", "context")
        ]
    return [*lines, *(f"{name}(bits={bits})" for name in ("quicfl", "ecdq") for bits in (1, 2, 4))]


def measure(line: str, layout: Layout, update: Vector) -> Measured:
    """Write one payload, read it back, and compare."""
    pipeline = parse(line)
    payload, _ = pipeline.encode(update, layout, _KEY, pipeline.start(layout))
    lost = update.astype(np.float64) - pipeline.decode(payload, layout, _KEY)
    power = float(np.dot(update.astype(np.float64), update)) or 1.0
    error = float(np.dot(lost, lost)) / power
    return Measured(pipeline.spec, len(payload), 4 * layout.size / len(payload), error, pipeline.unbiased)


def families(layout: Layout) -> dict[str, Sequence[str]]:
    """Every codec that fits a layout, each with settings from its smallest payload to its largest."""
    lines: dict[str, Sequence[str]] = {}
    if split(layout).weights:
        lines |= {f"stc, {c}": [f"stc(sparsity={p}, coding={c})" for p in SPARSITIES] for c in CODINGS}
    if pools_of(layout)[0]:
        sstc = "sstc(sparsity={}, kernels=0.125, coding=context)"
        lines["sstc, context"] = [sstc.format(p) for p in SPARSITIES]
    for name in ("quicfl", "ecdq", "eden", "hadamard", "kashin", "qsgd"):
        lines[name] = [f"{name}(bits={bits})" for bits in (1, 2, 3, 4)]
    return {**lines, "drive": ["drive"], "fp16": ["fp16"]}


def error_by_bits(layout: Layout, update: Vector) -> dict[str, list[tuple[float, float]]]:
    """For every codec: bits a number as sent, and relative squared error, at several settings."""
    found = {}
    for name, lines in families(layout).items():
        rows = [measure(line, layout, update) for line in lines]
        found[name] = [(8 * row.bytes / layout.size, row.error) for row in rows]
    return found


def ternary(layout: Layout, update: Vector, sparsity: float, kernels: float) -> dict[str, Vector]:
    """An update, what STC leaves of it, and what SSTC leaves of it."""
    lines = {
        "update": "raw",
        f"after STC at {100 * sparsity:g} %": f"stc(sparsity={sparsity})",
        f"after SSTC at {100 * sparsity:g} % in {100 * kernels:g} % of the kernels": (
            f"sstc(sparsity={sparsity}, kernels={kernels})"
        ),
    }
    codecs = {name: parse(line).codec for name, line in lines.items()}
    return {name: c.decode(c.encode(update, layout, _KEY), layout, _KEY) for name, c in codecs.items()}


def break_even(layout: Layout, update: Vector, sparsity: float) -> list[BreakEven]:
    """Eq. 2 for each size of kernel in the model."""
    codec = Stc(sparsity)
    entries = codec.open(codec.encode(update, layout, _KEY), layout).places
    found = []
    for pool in pools_of(layout)[0]:
        inside = sum(int(((entries >= a) & (entries < b)).sum()) for a, b in pool.where)
        weights = pool.count * pool.size
        most = inside * weights.bit_length() / (2 * pool.size + pool.width)
        found.append(_row(pool, inside, weights, most))
    return found


def _row(pool: Pool, entries: int, weights: int, most: float) -> BreakEven:
    return BreakEven(pool.size, pool.count, entries, weights.bit_length(), pool.width, most)


def _size(measured: Measured) -> int:
    return measured.bytes
