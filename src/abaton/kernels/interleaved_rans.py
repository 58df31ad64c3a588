"""Entropy coder for symbols with known frequencies: rANS (Duda 2013) in 32 interleaved lanes.

A table has rows of frequencies; the frequencies of a row sum to 2^14. Symbol number s belongs to row s div width,
and the decoder must know the row of every symbol before it decodes the symbol. One step codes 32 symbols with vector
instructions. Frequencies, states and words are integers, so that bytes are the same on every processor.

Format of a code, whose number of symbols is a multiple of 32; all numbers are little-endian:

    32 states u32, lane 0 first; words u16 until the end

A decoder takes the symbol of a row from a state x, and refills the state if it is too small:

    slot = x mod 2^14
    symbol = the one in the row with start <= slot < start + frequency
    x = frequency · (x div 2^14) + slot - start
    if x < 2^16: x = 2^16 · x + the next word

where start is the sum of the frequencies before the symbol in its row. Symbol i belongs to step i div 32 and to lane
i mod 32. In a step, each lane takes a symbol from its own state; lanes are refilled in ascending order. The last 512
symbols (all, if there are fewer) are taken in ascending order from the state of lane 0. Its next words are then the
lower halves of the states 1 to 31, in ascending order, each of which is set to 2^16, and after those the rest of the
words. At the end every state is 2^16 and no word is left; any other code is invalid. A code of 0 symbols is empty.

The encoder inverts this from the last symbol to the first. All states start at 2^16. If x >= 2^18 · frequency, the
lowest 16 bits of x become a word. Then x = 2^14 · (x div frequency) + start + x mod frequency. Words of the last 512
symbols start the states 1 to 31, which would otherwise waste 16 bits each. A code is longer than the sum of
log2(2^14 / frequency) by less than 0.0005 bits per symbol, and by 34 bytes on average.

The decoder cannot leave its buffers: a row covers every slot, so that a search ends in the row where it begins,
whatever the state is; and a step reads at most as many words as the list is padded with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined, kernel
from abaton.kernels.simd import (
    INT,
    INTS,
    LONG,
    LONGS,
    WIDTH,
    constant,
    intrinsic,
    ir,
    load,
    mask_bits,
    pointer,
    store,
    types,
)

LANES = 32
TOTAL_BITS = 14  # more would lose precision in states of 32 bits: 0.0006 bits per symbol at 15, 0.003 at 16
TOTAL = 1 << TOTAL_BITS
MIN_STATE = 1 << 16
BUCKET_BITS = 6
BUCKETS = TOTAL >> BUCKET_BITS  # buckets of slots per row; a search begins with a guess for the bucket
STATE_BYTES = 4 * LANES
SERIAL = 512  # symbols at the end that use one state
CHUNK = 16 * LANES
USED = LANES  # place after the states: how many of them a decoder has used as words

RansWords = NDArray[np.uint16]
Bits32 = NDArray[np.uint32]

SHORT = ir.IntType(16)
SHORTS = ir.VectorType(SHORT, WIDTH)
OFFSETS = (0, WIDTH)  # a step is two vectors


class RansTable(NamedTuple):
    """Rows of symbol frequencies, prepared for the rANS coder."""

    intervals: Bits32  # by symbol: start + 2^16 · frequency
    reciprocals: Bits32  # by symbol: 2^32 div frequency, at most 2^32 - 1
    guesses: Bits32  # by row and bucket: a symbol + 2^16 · the first slot after it
    width: int  # symbols per row


def rans_table(frequencies: NDArray[np.int64]) -> RansTable:
    """Return the rANS table of frequencies, one row of symbols per row; symbols of frequency 0 cannot be coded.

    >>> rans_table(np.array([[16000, 384], [384, 16000]])).width
    2
    """
    if (frequencies < 0).any() or (frequencies.sum(axis=1) != TOTAL).any() or frequencies.size > 1 << 16:
        raise ValueError(
            f"frequencies must not be negative, and rows must sum to {TOTAL}; 2^16 symbols at most"
        )
    starts = np.cumsum(frequencies, axis=1) - frequencies
    quotients = (1 << 32) // np.maximum(frequencies, 1)
    return RansTable(
        (starts + (frequencies << 16)).astype(np.uint32).ravel(),
        np.minimum(quotients, (1 << 32) - 1).astype(np.uint32).ravel(),
        np.concatenate([_guesses(row, i * row.size) for i, row in enumerate(frequencies)]),
        frequencies.shape[1],
    )


def _guesses(row: NDArray[np.int64], first: int) -> Bits32:
    """Return for each bucket of slots the two neighbours in a row that have most slots of it: symbol and its end."""
    ends = np.cumsum(row)
    edges = np.arange(0, TOTAL + 1, 1 << BUCKET_BITS)
    inside = np.clip(ends[:, None], edges[:-1], edges[1:]) - np.clip(
        (ends - row)[:, None], edges[:-1], edges[1:]
    )
    pairs = inside + np.append(inside[1:], np.zeros((1, BUCKETS), np.int64), axis=0)
    best = pairs.argmax(axis=0)
    guesses: Bits32 = (first + best + (ends[best] << 16)).astype(np.uint32)
    return guesses


def encode_symbols(symbols: NDArray[np.uint16], table: RansTable) -> bytes:
    """Return the rANS code of symbols, numbered through all rows of the table; their number is a multiple of 32.

    >>> table = rans_table(np.array([[16000, 384]]))
    >>> len(encode_symbols(np.zeros(3200, np.uint16), table))
    128
    """
    states, rans_words = np.empty(LANES, np.uint32), np.empty(symbols.size + 1, np.uint16)
    count = write(symbols, table.intervals, table.reciprocals, states, rans_words)
    return (
        states.astype("<u4").tobytes() + rans_words[:count].astype("<u2").tobytes() if symbols.size else b""
    )


def open_code(code: bytes | memoryview) -> tuple[Bits32, RansWords]:
    """Return the states of a rANS code, for ``decode_step``, and its words, padded with as many as a step can read.

    The code must have at least ``STATE_BYTES`` bytes and a multiple of two.
    """
    states = np.append(np.frombuffer(code, "<u4", LANES), 0).astype(np.uint32)
    count = (len(code) - STATE_BYTES) // 2
    rans_words = np.zeros(count + LANES, np.uint16)
    rans_words[:count] = np.frombuffer(code, "<u2", count, STATE_BYTES)
    return states, rans_words


def decode_symbols(code: bytes | memoryview, rows: Bits32, table: RansTable) -> Bits32 | None:
    """Return the symbols of a rANS code, one for each of ``rows``; None if it is not a code of that many.

    >>> table = rans_table(np.array([[16000, 384], [384, 16000]]))
    >>> symbols = np.tile(np.array([0, 3], np.uint16), 160)
    >>> (decode_symbols(encode_symbols(symbols, table), symbols // np.uint32(2), table) == symbols).all()
    np.True_
    """
    symbols = np.empty(rows.size, np.uint32)
    if not rows.size:
        return None if len(code) else symbols
    if len(code) < STATE_BYTES or len(code) % 2:
        return None
    states, rans_words = open_code(code)
    is_valid = read(rans_words, states, rows, table.intervals, table.guesses, symbols)
    return symbols if is_valid else None


def _look_up(build: Any, address: Any, index: Any) -> Any:
    """Return the 32-bit elements at sixteen indices: faster as scalar loads than as one gather instruction."""
    result = ir.Constant(INTS, ir.Undefined)
    for lane in range(WIDTH):
        position = build.zext(build.extract_element(index, ir.Constant(INT, lane)), LONG)
        value = build.load(build.gep(address, [position]))
        result = build.insert_element(result, value, ir.Constant(INT, lane))
    return result


def _high_product(build: Any, one: Any, other: Any) -> Any:
    """Return the upper 32 bits of the products of unsigned 32-bit lanes."""
    half, low = constant(LONGS, 32), constant(LONGS, 0xFFFFFFFF)
    a, b = build.bitcast(one, LONGS), build.bitcast(other, LONGS)
    even = build.lshr(build.mul(build.and_(a, low), build.and_(b, low)), half)
    odd = build.mul(build.lshr(a, half), build.lshr(b, half))
    return build.bitcast(build.or_(even, build.and_(odd, constant(LONGS, 0xFFFFFFFF << 32))), INTS)


def _split(build: Any, packed: Any) -> tuple[Any, Any]:
    """Return the lower and the upper 16 bits of each lane."""
    return build.and_(packed, constant(INTS, 0xFFFF)), build.lshr(packed, constant(INTS, 16))


def _next_position(build: Any, position: Any, truths: Any, lane: int) -> Any:
    """Return the position after a word of this lane, if it has one."""
    return build.add(position, build.zext(build.extract_element(truths, ir.Constant(INT, lane)), LONG))


@intrinsic
def _encode_step(
    _: Any, intervals: Any, reciprocals: Any, index: Any, states: Any, rans_words: Any, position: Any
) -> Any:
    """Code 32 symbols, lane 31 first, given their table entries; return the next position in ``rans_words``."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        interval_address, reciprocal_address = (
            pointer(context, build, signature.args[i], args[i], args[2]) for i in (0, 1)
        )
        state_address, word_address = (
            pointer(context, build, signature.args[i], args[i], ir.Constant(LONG, 0)) for i in (3, 4)
        )
        position = args[5]
        for offset in OFFSETS:
            x = load(build, state_address, INTS, offset)
            start, frequency = _split(build, load(build, interval_address, INTS, offset))
            full = build.icmp_unsigned(">=", build.lshr(x, constant(INTS, 32 - TOTAL_BITS)), frequency)
            low = build.trunc(x, SHORTS)
            for lane in range(WIDTH):
                word = build.extract_element(low, ir.Constant(INT, lane))
                build.store(word, build.gep(word_address, [position]))
                position = _next_position(build, position, full, lane)
            x = build.select(full, build.lshr(x, constant(INTS, 16)), x)
            # The reciprocal is rounded down: the quotient is exact or one too small.
            quotient = _high_product(build, x, load(build, reciprocal_address, INTS, offset))
            rest = build.sub(x, build.mul(quotient, frequency))
            small = build.icmp_unsigned(">=", rest, frequency)
            rest = build.select(small, build.sub(rest, frequency), rest)
            quotient = build.select(small, build.add(quotient, constant(INTS, 1)), quotient)
            x = build.add(build.shl(quotient, constant(INTS, TOTAL_BITS)), build.add(rest, start))
            store(build, x, state_address, offset)
        return position

    argument_types = (intervals, reciprocals, types.int64, states, rans_words, types.int64)
    return types.int64(*argument_types), generate


@intrinsic
def _decode_step(
    _: Any,
    rans_words: Any,
    position: Any,
    states: Any,
    rows: Any,
    symbols: Any,
    index: Any,
    intervals: Any,
    guesses: Any,
) -> Any:
    """Decode 32 symbols, one in each lane; return the next position in ``rans_words``."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        word_address, state_address, interval_address, guess_address = (
            pointer(context, build, signature.args[i], args[i], ir.Constant(LONG, 0)) for i in (0, 2, 6, 7)
        )
        row_address, symbol_address = (
            pointer(context, build, signature.args[i], args[i], args[5]) for i in (3, 4)
        )
        states = [load(build, state_address, INTS, offset) for offset in OFFSETS]
        slots = [build.and_(x, constant(INTS, TOTAL - 1)) for x in states]
        guessed = []
        for slot, offset in zip(slots, OFFSETS, strict=True):
            row = build.mul(load(build, row_address, INTS, offset), constant(INTS, BUCKETS))
            bucket = build.add(row, build.lshr(slot, constant(INTS, BUCKET_BITS)))
            symbol, end = _split(build, _look_up(build, guess_address, bucket))
            guessed.append(build.add(symbol, build.zext(build.icmp_unsigned(">=", slot, end), INTS)))
        symbols_by_vector, frequencies, rests = _search(build, slots, guessed, interval_address)
        position = args[1]
        for i, offset in enumerate(OFFSETS):
            store(build, symbols_by_vector[i], symbol_address, offset)
            quotient = build.lshr(states[i], constant(INTS, TOTAL_BITS))
            x = build.add(build.mul(frequencies[i], quotient), rests[i])
            empty = build.icmp_unsigned("<", x, constant(INTS, MIN_STATE))
            read_words = ir.Constant(INTS, ir.Undefined)
            for lane in range(WIDTH):
                word = build.zext(build.load(build.gep(word_address, [position])), INT)
                read_words = build.insert_element(read_words, word, ir.Constant(INT, lane))
                position = _next_position(build, position, empty, lane)
            refilled = build.or_(build.shl(x, constant(INTS, 16)), read_words)
            store(build, build.select(empty, refilled, x), state_address, offset)
        return position

    argument_types = (rans_words, types.int64, states, rows, symbols, types.int64, intervals, guesses)
    return types.int64(*argument_types), generate


def _search(build: Any, slots: list[Any], guessed: list[Any], intervals: Any) -> tuple[list[Any], ...]:
    """Return the symbols whose intervals have the slots, their frequencies, and the slots' places in the intervals.

    A loop that moves wrong guesses to the neighbour, until no lane has one. Few guesses are wrong.
    """
    before, search, after_search = (
        build.block,
        build.append_basic_block("search"),
        build.append_basic_block("found"),
    )
    build.branch(search)
    build.position_at_end(search)
    symbols = [build.phi(INTS) for _ in OFFSETS]
    moved, frequencies, rests, missed = [], [], [], []
    for symbol, slot in zip(symbols, slots, strict=True):
        start, frequency = _split(build, _look_up(build, intervals, symbol))
        rest = build.sub(slot, start)  # wraps around below the start
        outside = build.icmp_unsigned(">=", rest, frequency)
        is_below = build.icmp_unsigned("<", slot, start)
        move = build.select(is_below, constant(INTS, 0xFFFFFFFF), constant(INTS, 1))
        moved.append(build.select(outside, build.add(symbol, move), symbol))
        frequencies.append(frequency)
        rests.append(rest)
        missed.append(outside)
    is_missed = build.icmp_unsigned("!=", mask_bits(build, build.or_(*missed)), ir.Constant(SHORT, 0))
    build.cbranch(is_missed, search, after_search)
    for symbol, first, second in zip(symbols, guessed, moved, strict=True):
        symbol.add_incoming(first, before)
        symbol.add_incoming(second, search)
    build.position_at_end(after_search)
    return symbols, frequencies, rests


@inlined
def _decode_serially(
    rans_words: RansWords, position: Any, states: Bits32, rows: Bits32, symbols: Bits32, index: Any, intervals: Bits32,
    guesses: Bits32,
) -> Any:  # fmt: skip
    """Decode 32 symbols from the state of lane 0; return the next position in ``rans_words``."""
    x, used = np.uint64(states[0]), np.int64(states[USED])
    for i in range(index, index + LANES):
        slot = np.int64(x) & (TOTAL - 1)
        symbol = np.int64(guesses[np.int64(rows[i]) * BUCKETS + (slot >> BUCKET_BITS)] & 0xFFFF)
        while slot < np.int64(intervals[symbol] & 0xFFFF):
            symbol -= 1
        while slot >= np.int64(intervals[symbol] & 0xFFFF) + np.int64(intervals[symbol] >> 16):
            symbol += 1
        symbols[i] = np.uint32(symbol)
        frequency, start = np.uint64(intervals[symbol] >> 16), np.uint64(intervals[symbol] & 0xFFFF)
        x = frequency * (x >> np.uint64(TOTAL_BITS)) + np.uint64(slot) - start
        if x < MIN_STATE:
            word = np.uint64(0)
            if used < LANES - 1:
                used += 1
                word = np.uint64(states[used] & np.uint32(0xFFFF))
                states[used] &= np.uint32(0xFFFF0000)
            else:
                word = np.uint64(rans_words[position])
                position += 1
            x = (x << np.uint64(16)) | word
    states[0], states[USED] = np.uint32(x), np.uint32(used)
    return position


@inlined
def decode_step(
    rans_words: RansWords, position: Any, states: Bits32, rows: Bits32, symbols: Bits32, index: Any, intervals: Bits32,
    guesses: Bits32, remaining: Any,
) -> Any:  # fmt: skip
    """Decode the next 32 of ``remaining`` symbols of a rANS code; return the next position, at most 32 further.

    The rows are read from, and the symbols written to, the 32 elements of ``rows`` and ``symbols`` that begin at
    ``index``. ``states`` and ``rans_words`` are from ``open_code``; a caller stops at a position beyond the words.
    """
    if remaining > SERIAL:
        return _decode_step(rans_words, position, states, rows, symbols, index, intervals, guesses)
    return _decode_serially(rans_words, position, states, rows, symbols, index, intervals, guesses)


@kernel
def write(
    symbols: NDArray[np.uint16], intervals: Bits32, reciprocals: Bits32, states: Bits32, rans_words: RansWords
) -> int:
    """Code symbols with rANS to ``states`` and ``rans_words``, which has one element more; return the number of words.

    Symbols are coded in descending order; states and words are reversed at the end.
    """
    symbol_intervals, symbol_reciprocals = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    serial = min(symbols.size, SERIAL)
    count, end = 0, symbols.size - serial
    x = np.uint64(MIN_STATE)
    for i in range(symbols.size - 1, end - 1, -1):
        interval = np.uint64(intervals[symbols[i]])
        start, frequency = interval & np.uint64(0xFFFF), interval >> np.uint64(16)
        if x >> np.uint64(32 - TOTAL_BITS) >= frequency:
            rans_words[count] = np.uint16(x & np.uint64(0xFFFF))
            count += 1
            x >>= np.uint64(16)
        x = (x // frequency << np.uint64(TOTAL_BITS)) + start + x % frequency
    states[LANES - 1] = np.uint32(x)
    for i in range(LANES - 2, -1, -1):
        states[i] = np.uint32(MIN_STATE)
        if count > 0:
            count -= 1
            states[i] |= np.uint32(rans_words[count])
    while end > 0:
        size = min(CHUNK, end)
        for i in range(size):
            symbol = symbols[end - 1 - i]
            symbol_intervals[i], symbol_reciprocals[i] = intervals[symbol], reciprocals[symbol]
        for i in range(0, size, LANES):
            count = _encode_step(symbol_intervals, symbol_reciprocals, i, states, rans_words, count)
        end -= size
    states[:] = states[::-1].copy()
    for i in range(count // 2):
        rans_words[i], rans_words[count - 1 - i] = rans_words[count - 1 - i], rans_words[i]
    return count


@kernel
def read(
    rans_words: RansWords, states: Bits32, rows: Bits32, intervals: Bits32, guesses: Bits32, symbols: Bits32
) -> bool:
    """Decode a rANS code from ``open_code`` to symbols of known rows; return whether it is exactly one code."""
    position, end, count = 0, rans_words.size - LANES, rows.size
    for i in range(0, count, LANES):
        position = decode_step(rans_words, position, states, rows, symbols, i, intervals, guesses, count - i)
        if position > end:
            return False
    return is_finished(position, end, states)


@inlined
def is_finished(position: Any, end: Any, states: Bits32) -> bool:
    """Return whether a rANS decoder is at the end of its code: no word left, and every state where encoders start."""
    is_different = position != end
    for i in range(LANES):
        is_different |= states[i] != np.uint32(MIN_STATE)
    return not is_different
