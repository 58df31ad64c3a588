"""A lossless coder for sparse signed matrices: each bit is predicted from its surroundings and range-coded.

The large changes of a layer lie in few rows (units) and few columns (inputs), near each other, and mostly
with the row's sign. Each decision has two or three predictions from adaptive counts, mixed in the logistic
domain (as in context-mixing compressors); everything is integer arithmetic, so every machine decodes the
same bits.

One function, ``code_matrix``, both writes and reads, so that the two sides cannot drift apart. It is
bounds-checked by construction: contexts are clipped to their tables, a reader sees zeros after the end of
the buffer, and a reader that finds more entries than announced stops.
"""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.errors import AbatonError
from abaton.kernels.jit import inlined, kernel

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# Slots of the coder's state: the interval, the code value, the place in the buffer, and whether it reads.
LOW, HIGH, VALUE, PLACE, READS = range(5)
TOP, WORD = 0xFF000000, 0xFFFFFFFF
LIMIT = 250  # evidence counts stop here, so that the oldest fades
ROW, ROW_NEAR, COLUMN, COLUMN_NEAR, CELL, CELL_NEAR, SIGN, SIGN_NEAR = range(8)
SLOTS = 4096
PAD = 64


class Model(NamedTuple):
    """What has been learnt so far."""

    chance: NDArray[np.int32]  # by predictor and context: chance of a one, in 1/65536
    seen: NDArray[np.uint8]  # by predictor and context: how often it was asked
    trust: Ints  # by predictor and regime: its weight in the mix, in 1/65536


def _tables() -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    squash = [min(65520, max(16, round(65536 / (1 + math.exp(-x / 256))))) for x in range(-2048, 2048)]
    stretch = [round(256 * math.log((i + 0.5) / (4095.5 - i))) for i in range(4096)]
    rates = [65536 // (n + 2) for n in range(LIMIT + 1)]
    return np.array(squash, np.int32), np.array(stretch, np.int32), np.array(rates, np.int32)


SQUASH, STRETCH, RATES = _tables()
TABLES_CRC = 2748327015


def model() -> Model:
    """A model that has seen nothing: every chance one half, every predictor trusted alike."""
    if zlib.crc32(SQUASH.tobytes() + STRETCH.tobytes()) != TABLES_CRC:
        raise AbatonError("this machine rounds the logistic tables differently", remedy="use coding=golomb")
    chance, seen = np.full((8, SLOTS), 32768, np.int32), np.zeros((8, SLOTS), np.uint8)
    return Model(chance, seen, np.full((8, 16), 46811, np.int64))


def writer() -> Ints:
    """The state of a coder that writes."""
    return np.array([0, WORD, 0, 0, 0], np.int64)


def reader(buffer: Bytes) -> Ints:
    """The state of a coder that reads."""
    value = int.from_bytes(bytes(buffer[:4]).ljust(4, b"\0"), "big")
    return np.array([0, WORD, value, 0, 1], np.int64)


def ending(state: Ints) -> bytes:
    """The shortest bytes that end the code: any number in the interval, with zeros implied after it."""
    low, high = int(state[LOW]), int(state[HIGH])
    for count in range(5):
        number = high >> (32 - 8 * count) << (32 - 8 * count)
        if number >= low:
            return number.to_bytes(4, "big")[:count]
    raise AssertionError("an interval holds its own end")


@inlined
def _narrow(state: Ints, buffer: Bytes, chance: int, bit: int) -> int:
    """Code one decision by narrowing the interval, and move finished bytes to or from the buffer."""
    low, high = state[LOW], state[HIGH]
    middle = low + (((high - low) * chance) >> 16)
    if state[READS]:
        bit = 1 if state[VALUE] <= middle else 0
    if bit:
        high = middle
    else:
        low = middle + 1
    while ((low ^ high) & TOP) == 0:
        place = state[PLACE]
        if state[READS]:
            after = place + 4
            byte = np.int64(buffer[after]) if after < buffer.size else np.int64(0)
            state[VALUE] = ((state[VALUE] << 8) & WORD) | byte
        elif place < buffer.size:
            buffer[place] = high >> 24
        state[PLACE] = place + 1
        low = (low << 8) & WORD
        high = ((high << 8) & WORD) | 0xFF
    state[LOW] = low
    state[HIGH] = high
    return bit


@inlined
def _decide(
    state: Ints, buffer: Bytes, learnt: Model, first: int, near: int, context: int, regime: int, bit: int
) -> int:
    """Code one bit: mix predictor ``first`` at ``context`` and the next one at ``near``, then learn."""
    chance, seen, trust = learnt.chance, learnt.seen, learnt.trust
    one, two = chance[first, context], chance[first + 1, near]
    s, t = STRETCH[one >> 4], STRETCH[two >> 4]
    mixed = (trust[first, regime] * s + trust[first + 1, regime] * t) >> 16
    mixed = min(max(mixed, -2048), 2047)
    p = SQUASH[mixed + 2048]
    bit = _narrow(state, buffer, p, bit)
    goal = bit << 16
    error = goal - p
    trust[first, regime] += (s * error + 16384) >> 15
    trust[first + 1, regime] += (t * error + 16384) >> 15
    n, m = seen[first, context], seen[first + 1, near]
    chance[first, context] = min(max(one + (((goal - one) * RATES[n]) >> 16), 16), 65520)
    chance[first + 1, near] = min(max(two + (((goal - two) * RATES[m]) >> 16), 16), 65520)
    if n < LIMIT:
        seen[first, context] = n + 1
    if m < LIMIT:
        seen[first + 1, near] = m + 1
    return bit


@kernel
def _logs(size: int) -> Ints:
    """Eight times the binary logarithm, rounded down, by squaring: exact in integers."""
    logs = np.zeros(size, np.int64)
    for x in range(1, size):
        whole = 0
        while (x >> (whole + 1)) > 0:
            whole += 1
        mantissa = (x << 30) >> whole
        fraction = 0
        for _ in range(3):
            mantissa = (mantissa * mantissa) >> 30
            fraction <<= 1
            if mantissa >= 1 << 31:
                mantissa >>= 1
                fraction |= 1
        logs[x] = 8 * whole + fraction
    return logs


@kernel
def _occupied(
    state: Ints, buffer: Bytes, learnt: Model, first: int, given: Bytes, feeds: Ints, group: int, wide: int
) -> None:
    """Code which rows or columns hold anything, from their neighbours and from the layer that feeds them."""
    history = 0
    for j in range(given.size):
        fed = 0
        if group > 0:
            count = feeds[j // group]
            while count > 0 and fed < 14:
                count >>= 1
                fed += 1
            fed += 1
        above = given[j - wide] if 0 < wide <= j else 0
        before = given[j - group] if 0 < group <= j else 0
        context = (history & 7) + 8 * (above + 2 * fed)
        given[j] = _decide(
            state, buffer, learnt, first, (history & 1) + 2 * (before + 2 * fed), context, 0, given[j]
        )
        history = (history << 1) | given[j]


@kernel
def code_matrix(
    state: Ints,
    buffer: Bytes,
    learnt: Model,
    shape: tuple[int, int],
    places: Ints,
    signs: NDArray[np.int8],
    count: int,
    feeds: Ints,
) -> tuple[int, Ints]:
    """Write or read the entries of one matrix.

    Args:
        state: The coder, from ``writer`` or ``reader``.
        buffer: The bytes.
        learnt: The model, carried from matrix to matrix.
        shape: Rows and columns.
        places: Where the entries are (row * columns + column), ascending; filled when reading.
        signs: -1 or 1 for each; filled when reading.
        count: How many to write; when reading, ignored.
        feeds: How many entries each row of the matrix before had.

    Returns:
        How many entries there are, or -1 if they do not fit ``places``; and the entries of each row.
    """
    rows, columns = shape
    reads = state[READS] == 1
    in_row, row_on, column_on = (
        np.zeros(rows, np.int64),
        np.zeros(rows, np.uint8),
        np.zeros(columns, np.uint8),
    )
    if not reads:
        for e in range(count):
            row_on[places[e] // columns] = 1
            column_on[places[e] % columns] = 1
    group = columns // feeds.size if feeds.size > 0 and columns % feeds.size == 0 else 0
    wide = 0
    while (wide + 1) * (wide + 1) <= group:
        wide += 1
    _occupied(state, buffer, learnt, ROW, row_on, feeds, 0, 0)
    _occupied(state, buffer, learnt, COLUMN, column_on, feeds, group, wide)
    active = np.flatnonzero(column_on)
    logs = _logs(max(2 * max(rows, columns), places.size) + 3)
    in_column = np.zeros(active.size, np.int64)
    balance = np.zeros(active.size, np.int64)
    above, last = np.zeros(active.size, np.int8), np.zeros(active.size, np.int8)
    here = np.zeros(columns + 1, np.uint8)
    entry, rows_done = 0, 0
    for i in range(rows):
        if not row_on[i]:
            continue
        here[:] = 0
        level = logs[active.size] - logs[entry + 1] + 32
        found, row_balance, left, left_sign = 0, 0, 0, 0
        for a in range(active.size):
            j = active[a]
            place = i * columns + j
            up = 1 if above[a] != 0 else 0
            near = 0
            if wide > 1 and j > wide:
                near = here[j - wide] * 4 + here[j - wide + 1] * 2 + here[j - wide - 1]
            if j > 0:
                near = near * 2 + here[j - 1]
            if 1 < group <= j:
                near = near + 16 * here[j - group]
            rate = logs[2 * in_column[a] + 1]
            expected = min(max(((logs[2 * found + 1] + rate - logs[a + 1] + level) >> 2) + 2, 0), 63)
            density = min(max((rate - logs[rows_done + 1] + 64) >> 3, 0), 15)
            bit = 1 if not reads and entry < count and places[entry] == place else 0
            bit = _decide(
                state,
                buffer,
                learnt,
                CELL,
                (near * 2 + up) * 16 + density,
                expected * 4 + left * 2 + up,
                min(expected >> 1, 15),
                bit,
            )
            sign = 0
            if bit:
                if entry >= places.size:
                    return -1, in_row
                lean = min(max(row_balance, -3), 3) + 3
                column_lean = min(max(balance[a], -3), 3) + 3
                positive = 1 if not reads and signs[entry] > 0 else 0
                positive = _decide(
                    state,
                    buffer,
                    learnt,
                    SIGN,
                    (lean * 3 + last[a] + 1) * 3 + left_sign + 1,
                    lean * 7 + column_lean,
                    0,
                    positive,
                )
                sign = 2 * positive - 1
                places[entry] = place
                signs[entry] = sign
                entry += 1
                found += 1
                row_balance += sign
                balance[a] += sign
                in_column[a] += 1
                last[a] = sign
                left_sign = sign
                here[j] = 1
            above[a] = sign
            left = bit
        in_row[i] = found
        rows_done += 1
    return entry, in_row
