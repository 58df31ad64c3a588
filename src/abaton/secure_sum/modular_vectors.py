"""Vectors of integers modulo 2^bits: sums, mask streams, payloads, and exact fixed point for floats.

A segment of 2 to 16, 32 or 64 bits has signed integers. They are added in unsigned words of 8, 16, 32 or 64 bits, which
wrap, cut to `bits` bits and packed without gaps (groups of eight numbers in `bits` bytes). A segment of 256 bits has
floats as multiples of 2^-128. They are added in eight lanes of 32 bits, with carries at the end.

Every float of magnitude 2^-76 or more is a multiple of 2^-128, so its encoding is exact. Smaller floats are rounded to
the nearest multiple, an error of at most 2^-129. The sum of encoded floats is exact, does not depend on their order,
and is rounded once when it is decoded.

Limits make sure that a sum of n honest contributions never wraps: an integer is at most floor((2^(bits-1) - 1) / n).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from abaton.errors import SettingsError

Values: TypeAlias = Mapping[str, NDArray[Any]]
"""Numbers by the name of their segment: int64, or float64 for a segment of 256 bits."""

EXACT_BITS = 256
SEGMENT_BITS = frozenset({*range(2, 17), 32, 64, EXACT_BITS})
_FRACTION_BITS = 128
_EXACT_BYTES = EXACT_BITS // 8
_LANES = EXACT_BITS // 32
_GROUP = 8  # numbers that are packed together
_CHUNK = 1 << 18
_ZEROS = bytes(_CHUNK)


class NamedSegment(Protocol):
    """Name, size and bits of a segment."""

    @property
    def name(self) -> str:
        """Name, unique in a sum."""

    @property
    def size(self) -> int:
        """Number of values."""

    @property
    def bits(self) -> int:
        """Bits of a value."""


def max_magnitude(bits: int, sites: int) -> int:
    """Return the largest integer that a site may contribute, so that a sum over `sites` cannot wrap.

    >>> max_magnitude(5, 4), max_magnitude(6, 10), max_magnitude(9, 50)
    (3, 3, 5)
    """
    return ((1 << (bits - 1)) - 1) // sites


def encode_exact(values: NDArray[np.float64], sites: int) -> list[int]:
    """Return floats as integer multiples of 2^-128.

    Raises:
        SettingsError: A value is not finite, or so large that a sum over `sites` could wrap.
    """
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(np.asarray(values, np.float64), _FRACTION_BITS))
    if not np.isfinite(scaled).all():
        raise _range_error()
    integers = [int(value) for value in scaled.tolist()]
    limit = max_magnitude(EXACT_BITS, sites)
    if any(abs(integer) > limit for integer in integers):
        raise _range_error()
    return integers


def decode_exact(integers: Iterable[int]) -> NDArray[np.float64]:
    """Return the floats nearest to multiples of 2^-128.

    >>> decode_exact(encode_exact(np.array([0.1, -2.5e30]), 3)).tolist()
    [0.1, -2.5e+30]
    """
    unit = 1 << _FRACTION_BITS
    return np.array([integer / unit for integer in integers], np.float64)


def payload_bytes(segments: Iterable[NamedSegment]) -> int:
    """Return the size of the payload of these segments."""
    return sum(_packed_bytes(segment) for segment in segments)


def _packed_bytes(segment: NamedSegment) -> int:
    if segment.bits % 8 == 0:
        return segment.size * segment.bits // 8
    return -(-segment.size // _GROUP) * segment.bits


def _word_dtype(bits: int) -> np.dtype[Any]:
    return np.dtype("<u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4" if bits == 32 else "<u8")


class ModularSum:
    """Running sum of vectors over all segments, each modulo 2^bits.

    Args:
        segments: Segments of the sum, in the order of the payload.
    """

    def __init__(self, segments: Sequence[NamedSegment]) -> None:
        self._segments = tuple(segments)
        self._sums: list[NDArray[Any]] = [
            np.zeros((segment.size, _LANES), np.int64)
            if segment.bits == EXACT_BITS
            else np.zeros(segment.size, _word_dtype(segment.bits))
            for segment in self._segments
        ]

    def add_values(self, values: Values, sites: int) -> None:
        """Add one site's values.

        Raises:
            SettingsError: Values are missing, not finite, or too large for a sum over `sites`.
        """
        if values.keys() != {segment.name for segment in self._segments}:
            raise SettingsError(
                "the values do not match the segments", where="secure sum", remedy="encode each segment"
            )
        for segment, total in zip(self._segments, self._sums, strict=True):
            vector = np.asarray(values[segment.name])
            if vector.shape != (segment.size,):
                raise SettingsError(
                    f"segment '{segment.name}' has a vector of another size",
                    where="secure sum",
                    remedy=f"encode {segment.size} values",
                )
            if segment.bits == EXACT_BITS:
                if vector.dtype != np.float64:
                    raise _dtype_error(segment, "float64")
                integers = encode_exact(vector, sites)
                raw = b"".join(integer.to_bytes(_EXACT_BYTES, "little", signed=True) for integer in integers)
                total += np.frombuffer(raw, "<u4").reshape(-1, _LANES)
            else:
                if vector.dtype != np.int64:
                    raise _dtype_error(segment, "int64")
                limit = max_magnitude(segment.bits, sites)
                if vector.size and (int(vector.max()) > limit or int(vector.min()) < -limit):
                    raise _range_error()
                total += vector.astype(total.dtype)  # two's complement

    def add_stream(self, key: bytes, *, negative: bool = False) -> None:
        """Add or subtract the AES-256-CTR key stream of a key that is used for one sum only."""
        encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
        buffer = bytearray(_CHUNK + 15)
        combine: Callable[..., Any] = np.subtract if negative else np.add
        for total in self._sums:
            # Lanes of a 256-bit number take 32 bits of the stream each.
            dtype = np.dtype("<u4") if total.ndim > 1 else total.dtype
            flat = total.reshape(-1)
            step = _CHUNK // dtype.itemsize
            for start in range(0, flat.size, step):
                part = flat[start : start + step]
                count = part.size * dtype.itemsize
                encryptor.update_into(memoryview(_ZEROS)[:count], buffer)
                combine(part, np.frombuffer(buffer, dtype, part.size), out=part)

    def add_payload(self, payload: bytes) -> None:
        """Add a payload of :meth:`to_payload`."""
        if len(payload) != payload_bytes(self._segments):
            raise ValueError("payload of another size")
        start = 0
        for segment, total in zip(self._segments, self._sums, strict=True):
            end = start + _packed_bytes(segment)
            if segment.bits == EXACT_BITS:
                total += np.frombuffer(payload[start:end], "<u4").reshape(-1, _LANES)
            else:
                total += _unpack(payload[start:end], segment)
            start = end

    def to_payload(self) -> bytes:
        """Return the sum modulo 2^bits as packed bytes."""
        return b"".join(
            _carried(total).tobytes() if segment.bits == EXACT_BITS else _pack(total, segment)
            for segment, total in zip(self._segments, self._sums, strict=True)
        )

    def to_values(self, sites: int, contributors: int) -> tuple[Values, bool]:
        """Return the values of the sum, and whether honest contributors can have given all of them.

        Args:
            sites: Number of sites with which the limit of a value was computed.
            contributors: Number of sites in the sum.
        """
        values: dict[str, NDArray[Any]] = {}
        in_range = True
        for segment, total in zip(self._segments, self._sums, strict=True):
            limit = max_magnitude(segment.bits, sites) * contributors
            if segment.bits == EXACT_BITS:
                raw = _carried(total).tobytes()
                integers = [
                    int.from_bytes(raw[start : start + _EXACT_BYTES], "little", signed=True)
                    for start in range(0, len(raw), _EXACT_BYTES)
                ]
                in_range &= all(abs(integer) <= limit for integer in integers)
                values[segment.name] = decode_exact(integers)
            else:
                vector = _signed(total, segment.bits)
                in_range &= int(vector.max()) <= limit and int(vector.min()) >= -limit
                values[segment.name] = vector
        return values, in_range


def _carried(lanes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return lanes of 32 bits after carries, modulo 2^256."""
    containers = np.empty(lanes.shape, "<u4")
    carry = np.zeros(len(lanes), np.int64)
    for lane in range(_LANES):
        carry += lanes[:, lane]
        containers[:, lane] = carry & 0xFFFFFFFF
        carry >>= 32  # arithmetic: negative lanes borrow
    return containers


def _signed(containers: NDArray[Any], bits: int) -> NDArray[np.int64]:
    if bits == 64:
        return containers.astype(np.uint64).view(np.int64)
    values = containers.astype(np.int64) & ((1 << bits) - 1)
    return values - ((values >> (bits - 1)) << bits)


def _pack(containers: NDArray[Any], segment: NamedSegment) -> bytes:
    """Pack groups of eight numbers into `bits` bytes; number i begins at bit i * bits of its group."""
    bits = segment.bits
    if bits % 8 == 0:
        return containers.tobytes()
    numbers = np.zeros(-(-segment.size // _GROUP) * _GROUP, containers.dtype)
    np.bitwise_and(containers, containers.dtype.type((1 << bits) - 1), out=numbers[: segment.size])
    pairs = _joined(numbers, bits)
    fours = _joined(pairs, 2 * bits).astype(np.uint64)
    low, high = fours[0::2], fours[1::2]
    columns = (low | (high << np.uint64(4 * bits))).astype("<u8").view(np.uint8).reshape(-1, 8)
    packed = np.empty((len(low), bits), np.uint8)
    for i in range(min(bits, 8)):  # faster than a slice of rows
        packed[:, i] = columns[:, i]
    if bits > 8:
        rest = (high >> np.uint64(64 - 4 * bits)).astype("<u8").view(np.uint8).reshape(-1, 8)
        packed[:, 8:] = rest[:, : bits - 8]
    return packed.tobytes()


def _joined(numbers: NDArray[Any], bits: int) -> NDArray[Any]:
    """Join two neighbours of `bits` bits each in a word of twice the size."""
    dtype = np.dtype(f"<u{2 * numbers.dtype.itemsize}")
    joined = numbers[1::2].astype(dtype)
    joined <<= dtype.type(bits)
    joined |= numbers[0::2]
    return joined


def _unpack(payload: bytes, segment: NamedSegment) -> NDArray[Any]:
    bits, dtype = segment.bits, _word_dtype(segment.bits)
    if bits % 8 == 0:
        return np.frombuffer(payload, dtype)
    packed = np.zeros((len(payload) // bits, 16), np.uint8)
    packed[:, :bits] = np.frombuffer(payload, np.uint8).reshape(-1, bits)
    containers = packed.view("<u8")
    mask = np.uint64((1 << bits) - 1)
    high = (containers[:, 0] >> np.uint64(4 * bits)) | (containers[:, 1] << np.uint64(64 - 4 * bits))
    numbers = np.empty((len(packed), _GROUP), dtype)
    for i in range(4):
        numbers[:, i] = (containers[:, 0] >> np.uint64(i * bits)) & mask
        numbers[:, 4 + i] = (high >> np.uint64(i * bits)) & mask
    return numbers.reshape(-1)[: segment.size]


def _range_error() -> SettingsError:
    # The value itself is a site's statistic and must not be in the message.
    return SettingsError(
        "a value is not finite or too large for the segment",
        where="secure sum",
        remedy="clip or scale the values before they are summed",
    )


def _dtype_error(segment: NamedSegment, dtype: str) -> SettingsError:
    return SettingsError(
        f"segment '{segment.name}' has another type of number",
        where="secure sum",
        remedy=f"encode it as {dtype}",
    )


def values_to_bytes(values: Values) -> bytes:
    """Return vectors of int64 or float64 as bytes, equal for equal content."""
    parts = []
    for name in sorted(values):
        vector = np.asarray(values[name])
        if vector.dtype not in (np.int64, np.float64) or vector.ndim != 1:
            raise SettingsError(
                f"segment '{name}' is not a vector of int64 or float64",
                where="secure sum",
                remedy="convert it",
            )
        raw = vector.astype(vector.dtype.newbyteorder("<")).tobytes()
        header = f"{len(name.encode())} {vector.dtype.kind} {vector.size}\n".encode()
        parts.append(header + name.encode() + raw)
    return b"".join(parts)


def values_from_bytes(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the vectors of :func:`values_to_bytes`."""
    values: dict[str, NDArray[Any]] = {}
    start = 0
    while start < len(content):
        end = content.index(b"\n", start)
        name_bytes, kind, size = content[start:end].decode().split(" ")
        start = end + 1
        name = content[start : start + int(name_bytes)].decode()
        start += int(name_bytes)
        values[name] = np.frombuffer(content, f"<{kind}8", int(size), start).astype(f"={kind}8")
        start += 8 * int(size)
    return values


def content_digest(content: bytes) -> bytes:
    """Return the SHA-256 digest of bytes."""
    return hashlib.sha256(content).digest()
