"""The fast checksum is zlib's."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from abaton.vectors.checksum import CHUNK, crc32


@given(st.integers(0, 9), st.integers(-3, 3), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_checksums_are_those_of_zlib(chunks, more, start, random):
    data = random.randbytes(max(0, chunks * CHUNK + more))
    assert crc32(data, start) == zlib.crc32(data, start)


def test_any_changed_bit_shows():
    data = bytearray(bytes(range(256)) * 40)
    before = crc32(data)
    for bit in range(0, 8 * len(data), 1009):
        data[bit >> 3] ^= 1 << (bit & 7)
        assert crc32(data) != before
        data[bit >> 3] ^= 1 << (bit & 7)
