"""A few numbers at a few places, as bytes: what lies beyond a quantiser's reach.

Input: places in increasing order below a known end, and one small number for each. Output: bytes.
Steps (the Elias-Fano code): the low w bits of each place, with w = ⌊log2(end / count)⌋; then one bit string
in which the i-th 1 stands at (place >> w) + i; then the numbers as float16. Bits fill bytes from the lowest
on. At one place in 512 this takes 11 bits a place, and it has exactly one right length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abaton.codecs.rotated import rotated_payload_error

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
