"""Sorted indices as bytes: with signs (Golomb-Rice, context coder or fixed width), or with values (Elias-Fano).

Outliers of the quantisers are ascending indices below a known end with one float16 value each. Their Elias-Fano code
is the low w bits of each index, with w = ⌊log2(end / count)⌋; then one bit string
in which the i-th 1 is at (index >> w) + i; then the values. Bits fill bytes from the lowest
on. At one index in 512 this takes 11 bits per index, and its length follows from count and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abaton.codecs.payload_format import payload_error

if TYPE_CHECKING:
    from abaton.codecs.sparse_codec import Indices, Signs, TensorSegment


def write_golomb(indices: Indices, negative: Signs, total: int, *, signed: bool = True) -> bytes:
    """Write sorted indices and signs as one byte with the width, then the Golomb-Rice code."""
    from abaton.kernels import golomb_rice

    width = golomb_rice.best_width(len(indices), total)
    buffer = np.empty(golomb_rice.max_bytes(len(indices), total, width), np.uint8)
    byte_count = golomb_rice.write(indices, negative, width, int(signed), buffer)
    return bytes((width,)) + buffer[:byte_count].tobytes()


def read_golomb(
    body: memoryview, count: int, total: int, *, signed: bool = True
) -> tuple[Indices, Signs, memoryview]:
    """Read Golomb-Rice coded indices; return them, whether each entry is negative, and the bytes after the code."""
    from abaton.kernels import golomb_rice

    if count > total or not body or body[0] > 31:
        raise payload_error("its list of indices is not a valid code")
    indices, negative = np.empty(count, np.uint32), np.empty(count, np.bool_)
    buffer = np.frombuffer(body, np.uint8, offset=1)
    byte_count = golomb_rice.read(buffer, body[0], int(signed), total, indices, negative)
    if byte_count < 0:
        raise payload_error("its list of indices is not a valid code")
    return indices, negative, body[1 + byte_count :]


def write_context(indices: Indices, negative: Signs, weights: Sequence[TensorSegment]) -> bytes:
    """Write the indices and signs of all weight tensors, context-coded as one stream."""
    from abaton.kernels import context_coder

    coder, model, input_counts = context_coder.new_writer(), context_coder.new_model(), np.zeros(0, np.int64)
    buffer = np.empty(64 + 8 * len(indices) + sum(sum(w.matrix) for w in weights) // 2, np.uint8)
    signs = np.where(negative, -1, 1).astype(np.int8)
    start, first = 0, 0
    for weight in weights:
        stop = start + weight.stop - weight.start
        last = int(np.searchsorted(indices, stop))
        tensor_indices = indices[first:last].astype(np.int64) - start
        _, input_counts = context_coder.code_matrix(
            coder,
            buffer,
            model,
            weight.matrix,
            tensor_indices,
            signs[first:last],
            len(tensor_indices),
            input_counts,
        )
        start, first = stop, last
    byte_count = int(coder[context_coder.OFFSET])
    assert byte_count <= buffer.size
    return buffer[:byte_count].tobytes() + context_coder.finish_code(coder)


def read_context(
    body: memoryview, count: int, weights: Sequence[TensorSegment]
) -> tuple[Indices, Signs, Sequence[int]]:
    """Read context-coded indices; return them, whether each is negative, and the entries per tensor."""
    from abaton.kernels import context_coder

    buffer = np.frombuffer(body, np.uint8).copy()
    coder, model, input_counts = (
        context_coder.new_reader(buffer),
        context_coder.new_model(),
        np.zeros(0, np.int64),
    )
    indices, negative, counts, start = [], [], [], 0
    for weight in weights:
        tensor_indices, signs = np.empty(count, np.int64), np.empty(count, np.int8)
        entries, input_counts = context_coder.code_matrix(
            coder, buffer, model, weight.matrix, tensor_indices, signs, 0, input_counts
        )
        if entries < 0:
            raise payload_error("it has more entries than its count")
        indices.append((tensor_indices[:entries] + start).astype(np.uint32))
        negative.append(signs[:entries] < 0)
        counts.append(int(entries))
        count -= entries
        start += weight.stop - weight.start
    if count or bytes(body[int(coder[context_coder.OFFSET]) :]) != context_coder.finish_code(coder):
        raise payload_error("it has bytes after its entries")
    empty = np.zeros(0)
    return (
        np.concatenate([*indices, empty.astype(np.uint32)]),
        np.concatenate([*negative, empty.astype(np.bool_)]),
        counts,
    )


def write_fixed(indices: Indices, negative: Signs, total: int) -> bytes:
    """Write each index with b_p = 1 + ⌊log2 total⌋ bits (SSTC, Sec. IV-A) and one bit for its sign."""
    from abaton.kernels.bit_packing import pack_indices

    return pack_indices(indices, negative, total.bit_length()).tobytes()


def read_fixed(body: memoryview, count: int, total: int) -> tuple[Indices, Signs, memoryview]:
    """Read fixed-width indices; return them, whether each entry is negative, and the bytes after the code."""
    from abaton.kernels.bit_packing import field_bytes, unpack_indices

    byte_count = field_bytes(count, total.bit_length() + 1)
    if count > total or byte_count > len(body):
        raise payload_error("its list of indices is not a valid code")
    indices, negative = np.empty(count, np.uint32), np.empty(count, np.bool_)
    buffer = np.frombuffer(body[:byte_count], np.uint8)
    if unpack_indices(buffer, total.bit_length(), total, indices, negative) < 0:
        raise payload_error("its list of indices is not a valid code")
    return indices, negative, body[byte_count:]


OutlierIndices = NDArray[np.int64]
OutlierValues = NDArray[np.float32]


def outlier_bytes(count: int, end: int) -> int:
    """Return the bytes of the Elias-Fano index code and values of ``count`` outliers below ``end``."""
    return sum(_lengths(count, end))


def write_outliers(indices: OutlierIndices, values: OutlierValues, end: int) -> bytes:
    """Write outliers as Elias-Fano coded indices and float16 values; the values must be exact in float16.

    >>> data = write_outliers(np.array([3, 700]), np.float32([4, -8]), 1024)
    >>> indices, values = read_outliers(memoryview(data), 2, 1024)
    >>> indices.tolist(), values.tolist()
    ([3, 700], [4.0, -8.0])
    """
    from abaton.kernels import elias_fano

    if not indices.size:
        return b""
    low, high = (np.zeros(size, dtype=np.uint8) for size in _lengths(indices.size, end)[:2])
    elias_fano.write(indices, _width(indices.size, end), low, high)
    return b"".join((low.data, high.data, values.astype("<f2").data))


def read_outliers(data: memoryview, count: int, end: int) -> tuple[OutlierIndices, OutlierValues]:
    """Read Elias-Fano coded outlier indices and their values; ``data`` has exactly ``outlier_bytes`` bytes."""
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    from abaton.kernels import elias_fano

    width, (first, second, _) = _width(count, end), _lengths(count, end)
    low, high = np.frombuffer(data, np.uint8, first), np.frombuffer(data, np.uint8, second, first)
    indices, values = np.empty(count, dtype=np.int64), np.frombuffer(data[first + second :], dtype="<f2")
    if elias_fano.read(low, high, width, end, indices) and np.isfinite(values).all():
        return indices, values.astype(np.float32)
    raise payload_error("its outliers are not a valid list")


def _width(count: int, end: int) -> int:
    return (end // count).bit_length() - 1


def _lengths(count: int, end: int) -> tuple[int, int, int]:
    if not count:
        return 0, 0, 0
    width = _width(count, end)
    return (count * width + 7) // 8, (count + (end >> width) + 7) // 8, 2 * count
