"""Codec recommendation for a model, by the formulas of the SSTC paper and by measured payload sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abaton.codecs.base import CodecKey
from abaton.codecs.registry import parse_codec
from abaton.codecs.sparse_codec import split_layout
from abaton.codecs.sstc import kernel_pools
from abaton.codecs.stc import CODINGS, Stc
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.codecs.sstc import KernelPool
    from abaton.layout import Layout, Vector

KERNEL_FRACTIONS = (0.05, 0.125, 0.25, 0.4)
MAX_EXCESS = 1.1
"""Size at most, relative to the smallest, of an unbiased codec that is recommended for its smaller error."""

SPARSITIES = (0.001, 0.003, 0.01, 0.03, 0.1)
_KEY = CodecKey(b"adviser", "adviser", b"adviser")  # frozen: part of the bytes


@dataclass(frozen=True, slots=True)
class CodecMeasurement:
    """Payload size and error of one codec on one update."""

    spec: str
    bytes: int
    compression_ratio: float
    error: float  # |update - decoded|^2 / |update|^2
    is_unbiased: bool


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Largest number of kernels for which SSTC's encoding is smaller than STC's, for kernels of one size.

    Eq. 2 of the paper: k < p · b_p / (2 K K + b_k), with p entries of STC in the convolutions, b_p bits
    per index, b_k bits per kernel id.
    """

    kernel_size: int  # K K
    kernel_count: int
    entries: int
    index_bits: int
    kernel_bits: int
    max_kernels: float

    @property
    def kernel_fraction(self) -> float:
        """Break-even of SSTC and STC, as a fraction of all kernels."""
        return self.max_kernels / self.kernel_count

    def gain(self, selected: int) -> float:
        """Return the factor of Eq. 1 by which SSTC's indices are smaller than STC's with ``selected`` kernels."""
        return self.index_bits * self.entries / (selected * (self.kernel_bits + 2 * self.kernel_size))


@dataclass(frozen=True, slots=True)
class CodecAdvice:
    """Measurements and recommended codecs."""

    measurements: tuple[CodecMeasurement, ...]  # the smallest first
    break_even: tuple[BreakEven, ...]
    smallest: str
    best_unbiased: str
    is_from_update: bool


def recommend_codec(layout: Layout, update: Vector | None = None, *, sparsity: float = 0.01) -> CodecAdvice:
    """Measure every candidate codec on an update, or on random values, which a context coder cannot predict.

    >>> from abaton.layout import Layout, Tensor, TensorRole
    >>> cnn = Layout([Tensor("conv", (64, 32, 5, 5), TensorRole.CONV)])
    >>> advice = recommend_codec(cnn)
    >>> advice.break_even[0].kernel_bits, round(advice.break_even[0].kernel_fraction, 3)
    (12, 0.065)
    """
    if not layout.size:
        raise SettingsError("the model has no parameters", remedy="choose a model with parameters")
    is_from_update = update is not None
    update = random_update(layout) if update is None else update
    measurements = sorted(
        (measure_codec(spec, layout, update) for spec in candidate_specs(layout, sparsity)), key=_size
    )
    unbiased = _best_unbiased(measurements)
    return CodecAdvice(
        tuple(measurements),
        tuple(break_even(layout, update, sparsity)),
        measurements[0].spec,
        unbiased.spec,
        is_from_update,
    )


def random_update(layout: Layout) -> Vector:
    """Return random values for a codec recommendation without an update: a context coder's worst case."""
    return np.random.default_rng(0).standard_normal(layout.size).astype(np.float32)


def candidate_specs(layout: Layout, sparsity: float) -> Sequence[str]:
    """Return the codec specs that the advisor measures for a layout."""
    specs = ["raw", "fp16"]
    if split_layout(layout).weights:
        specs += [f"stc(sparsity={sparsity}, coding={coding})" for coding in ("golomb", "context")]
    if kernel_pools(layout)[0]:
        specs += [
            f"sstc(sparsity={sparsity}, kernels={fraction}, coding={coding})"
            for fraction in KERNEL_FRACTIONS
            for coding in ("fixed", "trit", "context")
        ]
    quantisers = [f"{name}(bits={bits})" for name in ("quicfl", "ecdq") for bits in (1, 2, 4)]
    return [*specs, *quantisers, *(f"tcdq(bits={bits})" for bits in (0.5, 1, 2, 4))]


def _best_unbiased(measurements: Sequence[CodecMeasurement]) -> CodecMeasurement:
    """Return the recommended unbiased codec: the smallest error at about the smallest size.

    Codecs whose error exceeds the update are excluded, because few learners do not average it out.
    """
    unbiased = [m for m in measurements if m.is_unbiased and m.error < 1]
    largest = MAX_EXCESS * min(m.bytes for m in unbiased)
    return min((m for m in unbiased if m.bytes <= largest), key=lambda m: m.error)


def measure_codec(spec: str, layout: Layout, update: Vector) -> CodecMeasurement:
    """Return size and error of one candidate codec, by encoding and decoding an update."""
    pipeline = parse_codec(spec)
    payload, _ = pipeline.encode(update, layout, _KEY, pipeline.initial_state(layout))
    residual = update.astype(np.float64) - pipeline.decode(payload, layout, _KEY)
    squared_norm = float(np.dot(update.astype(np.float64), update)) or 1.0
    error = float(np.dot(residual, residual)) / squared_norm
    return CodecMeasurement(
        pipeline.spec, len(payload), 4 * layout.size / len(payload), error, pipeline.is_unbiased
    )


def codec_families(layout: Layout) -> dict[str, Sequence[str]]:
    """Return specs of every codec the advisor compares for a layout, from the smallest payload to the largest."""
    families: dict[str, Sequence[str]] = {}
    if split_layout(layout).weights:
        families |= {
            f"stc, {coding}": [f"stc(sparsity={sparsity}, coding={coding})" for sparsity in SPARSITIES]
            for coding in CODINGS
        }
    if kernel_pools(layout)[0]:
        sstc = "sstc(sparsity={}, kernels=0.125, coding=context)"
        families["sstc, context"] = [sstc.format(sparsity) for sparsity in SPARSITIES]
    families["tcdq"] = [f"tcdq(bits={bits})" for bits in (0.3, 0.5, 1, 2, 3, 4)]
    for name in ("quicfl", "ecdq", "eden", "hadamard", "kashin", "qsgd"):
        families[name] = [f"{name}(bits={bits})" for bits in (1, 2, 3, 4)]
    return {**families, "drive": ["drive"], "fp16": ["fp16"]}


def error_by_bits(layout: Layout, update: Vector) -> dict[str, list[tuple[float, float]]]:
    """Return for every candidate codec the bits per value and the relative squared error, at several settings."""
    points = {}
    for name, specs in codec_families(layout).items():
        measurements = [measure_codec(spec, layout, update) for spec in specs]
        points[name] = [
            (8 * measurement.bytes / layout.size, measurement.error) for measurement in measurements
        ]
    return points


def ternary_updates(layout: Layout, update: Vector, sparsity: float, kernels: float) -> dict[str, Vector]:
    """Return an update, and the same update after STC and after SSTC, to compare what each codec keeps."""
    specs = {
        "update": "raw",
        f"after STC at {100 * sparsity:g} %": f"stc(sparsity={sparsity})",
        f"after SSTC at {100 * sparsity:g} % in {100 * kernels:g} % of the kernels": (
            f"sstc(sparsity={sparsity}, kernels={kernels})"
        ),
    }
    codecs = {name: parse_codec(spec).codec for name, spec in specs.items()}
    return {
        name: codec.decode(codec.encode(update, layout, _KEY), layout, _KEY) for name, codec in codecs.items()
    }


def break_even(layout: Layout, update: Vector, sparsity: float) -> list[BreakEven]:
    """Return the break-even of SSTC against STC (Eq. 2 of the paper) for each kernel size of the model."""
    codec = Stc(sparsity)
    entries = codec.open_payload(codec.encode(update, layout, _KEY), layout).indices
    rows = []
    for pool in kernel_pools(layout)[0]:
        pool_entries = sum(int(((entries >= a) & (entries < b)).sum()) for a, b in pool.segments)
        weights = pool.count * pool.size
        max_kernels = pool_entries * weights.bit_length() / (2 * pool.size + pool.width)
        rows.append(_row(pool, pool_entries, weights, max_kernels))
    return rows


def _row(pool: KernelPool, entries: int, weights: int, max_kernels: float) -> BreakEven:
    return BreakEven(pool.size, pool.count, entries, weights.bit_length(), pool.width, max_kernels)


def _size(measurement: CodecMeasurement) -> int:
    return measurement.bytes
