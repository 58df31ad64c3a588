"""Sorted places with signs as bytes: Golomb-Rice gaps, or the context coder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

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
