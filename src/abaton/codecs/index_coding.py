"""Sorted places with signs as bytes: Golomb-Rice gaps, or the context coder.

A few numbers at a few places, as bytes: what lies beyond a quantiser's reach.

Input: places in increasing order below a known end, and one small number for each. Output: bytes.
Steps (the Elias-Fano code): the low w bits of each place, with w = ⌊log2(end / count)⌋; then one bit string
in which the i-th 1 stands at (place >> w) + i; then the numbers as float16. Bits fill bytes from the lowest
on. At one place in 512 this takes 11 bits a place, and it has exactly one right length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abaton.codecs.rotated_domain import rotated_payload_error
from abaton.errors import PayloadError

if TYPE_CHECKING:
    from abaton.codecs.sparse_codec import Places, Signs, Stretch


def write_golomb(places: Places, negative: Signs, total: int, *, signed: bool = True) -> bytes:
    """One byte with the width, then the code."""
    from abaton.kernels import golomb_rice

    width = golomb_rice.best_width(len(places), total)
    buffer = np.empty(golomb_rice.longest(len(places), total, width), np.uint8)
    used = golomb_rice.write(places, negative, width, int(signed), buffer)
    return bytes((width,)) + buffer[:used].tobytes()


def read_golomb(
    body: memoryview, count: int, total: int, *, signed: bool = True
) -> tuple[Places, Signs, memoryview]:
    """The places, whether each is negative, and what follows the code."""
    from abaton.kernels import golomb_rice

    if count > total or not body or body[0] > 31:
        raise index_payload_error("a list of places")
    places, negative = np.empty(count, np.uint32), np.empty(count, np.bool_)
    buffer = np.frombuffer(body, np.uint8, offset=1)
    used = golomb_rice.read(buffer, body[0], int(signed), total, places, negative)
    if used < 0:
        raise index_payload_error("a list of places")
    return places, negative, body[1 + used :]


def write_context(places: Places, negative: Signs, weights: Sequence[Stretch]) -> bytes:
    """The entries of all weight tensors, predicted and range-coded as one stream."""
    from abaton.kernels import context_coder

    coder, model, feeds = context_coder.writer(), context_coder.model(), np.zeros(0, np.int64)
    buffer = np.empty(64 + 8 * len(places) + sum(sum(w.matrix) for w in weights) // 2, np.uint8)
    signs = np.where(negative, -1, 1).astype(np.int8)
    start, first = 0, 0
    for weight in weights:
        stop = start + weight.stop - weight.start
        last = int(np.searchsorted(places, stop))
        mine = places[first:last].astype(np.int64) - start
        _, feeds = context_coder.code_matrix(
            coder, buffer, model, weight.matrix, mine, signs[first:last], len(mine), feeds
        )
        start, first = stop, last
    used = int(coder[context_coder.PLACE])
    assert used <= buffer.size
    return buffer[:used].tobytes() + context_coder.ending(coder)


def read_context(
    body: memoryview, count: int, weights: Sequence[Stretch]
) -> tuple[Places, Signs, Sequence[int]]:
    """The places, whether each is negative, and how many each tensor has; nothing may follow the code."""
    from abaton.kernels import context_coder

    buffer = np.frombuffer(body, np.uint8).copy()
    coder, model, feeds = context_coder.reader(buffer), context_coder.model(), np.zeros(0, np.int64)
    places, negative, counts, start = [], [], [], 0
    for weight in weights:
        mine, signs = np.empty(count, np.int64), np.empty(count, np.int8)
        found, feeds = context_coder.code_matrix(coder, buffer, model, weight.matrix, mine, signs, 0, feeds)
        if found < 0:
            raise index_payload_error("more entries than announced")
        places.append((mine[:found] + start).astype(np.uint32))
        negative.append(signs[:found] < 0)
        counts.append(int(found))
        count -= found
        start += weight.stop - weight.start
    if count or bytes(body[int(coder[context_coder.PLACE]) :]) != context_coder.ending(coder):
        raise index_payload_error("it does not end where its entries end")
    nothing = np.zeros(0)
    return (
        np.concatenate([*places, nothing.astype(np.uint32)]),
        np.concatenate([*negative, nothing.astype(np.bool_)]),
        counts,
    )


def write_fixed(places: Places, negative: Signs, total: int) -> bytes:
    """Each place with b_p = 1 + ⌊log2 total⌋ bits (SSTC, Sec. IV-A) and a bit for its sign."""
    from abaton.kernels.bit_packing import write_places

    return write_places(places, negative, total.bit_length()).tobytes()


def read_fixed(body: memoryview, count: int, total: int) -> tuple[Places, Signs, memoryview]:
    """The places, whether each is negative, and what follows the code."""
    from abaton.kernels.bit_packing import field_bytes, read_places

    used = field_bytes(count, total.bit_length() + 1)
    if count > total or used > len(body):
        raise index_payload_error("a list of places")
    places, negative = np.empty(count, np.uint32), np.empty(count, np.bool_)
    listed = np.frombuffer(body[:used], np.uint8)
    if read_places(listed, total.bit_length(), total, places, negative) < 0:
        raise index_payload_error("a list of places")
    return places, negative, body[used:]


def index_payload_error(what: str) -> PayloadError:
    """The error for a body that cannot be read."""
    return PayloadError(f"the payload is broken: {what}", remedy="send it again")


OutlierIndices = NDArray[np.int64]
Numbers = NDArray[np.float32]


def length(count: int, end: int) -> int:
    """How many bytes ``count`` numbers below ``end`` take."""
    return sum(_lengths(count, end))


def write(places: OutlierIndices, numbers: Numbers, end: int) -> bytes:
    """The bytes of numbers that float16 can hold.

    >>> places, numbers = read(memoryview(write(np.array([3, 700]), np.float32([4, -8]), 1024)), 2, 1024)
    >>> places.tolist(), numbers.tolist()
    ([3, 700], [4.0, -8.0])
    """
    from abaton.kernels import elias_fano as kernels

    if not places.size:
        return b""
    low, high = (np.zeros(size, dtype=np.uint8) for size in _lengths(places.size, end)[:2])
    kernels.write(places, _width(places.size, end), low, high)
    return b"".join((low.data, high.data, numbers.astype("<f2").data))


def read(data: memoryview, count: int, end: int) -> tuple[OutlierIndices, Numbers]:
    """The places and numbers; the caller has checked that ``data`` is as long as ``length`` says."""
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    from abaton.kernels import elias_fano as kernels

    width, (first, second, _) = _width(count, end), _lengths(count, end)
    low, high = np.frombuffer(data, np.uint8, first), np.frombuffer(data, np.uint8, second, first)
    places, numbers = np.empty(count, dtype=np.int64), np.frombuffer(data[first + second :], dtype="<f2")
    if kernels.read(low, high, width, end, places) and np.isfinite(numbers).all():
        return places, numbers.astype(np.float32)
    raise rotated_payload_error("its outliers are not in order")


def _width(count: int, end: int) -> int:
    return (end // count).bit_length() - 1


def _lengths(count: int, end: int) -> tuple[int, int, int]:
    if not count:
        return 0, 0, 0
    width = _width(count, end)
    return (count * width + 7) // 8, (count + (end >> width) + 7) // 8, 2 * count
