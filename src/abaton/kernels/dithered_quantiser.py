"""Kernels of the dithered quantiser: round to a randomly shifted grid and code the outcomes with rANS.

Four rANS states are interleaved: value i of the stream uses state i mod 4. A state is 64 bits, at least 2^32,
and is renormalised by 32 bits; frequencies sum to 2^16 (Duda 2013). The encoder runs backwards
over the outcomes, the decoder forwards. The decoder cannot leave its tables: an outcome is searched only
between the two ends of a stratum, and decoding stops at the end of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import fill
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.rotation import rotate_block
from abaton.kernels.walsh_hadamard import GROUP, Floats

Int64s = NDArray[np.int64]
Ints = NDArray[np.int32]
Bits32 = NDArray[np.uint32]
States = NDArray[np.uint64]

STATES = 4
MIN_STATE = np.uint64(1 << 32)  # lower bound of a state
HALF, LOW = np.uint64(32), np.uint64(0xFFFF)
SHIFT = np.uint64(16)  # frequencies sum to 2^16


@inlined
def _dither(random: int) -> Any:
    """Return a value between -½ and ½ from the upper 23 of 32 random bits; exact in float32."""
    return (np.float32(random >> np.uint32(9)) + np.float32(0.5)) * np.float32(2.0**-23) - np.float32(0.5)


@kernel
def quantise(
    x: Floats, blocks: Int64s, step: Any, strata: int, count: int, keys: Any, z: Floats, random: Bits32,
    norms: NDArray[np.float64], outcomes: Ints, outlier_indices: Int64s, excess: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Rotate all blocks and round them with dither; return the number of outcomes and of outliers.

    An outcome is the start of its frequencies in a list of ``count``; see ``codecs/ecdq.py``.
    """
    outcome_count = outliers = 0
    pairs = random.view(np.uint64)  # two random values each, the lower half first
    start_of, last = count // 2 - 1, count - strata - 1
    shift = np.uint32(32 - round(np.log2(strata)))
    for b in range(len(blocks)):
        start, size = blocks[b, 3], blocks[b, 2]
        norms[b], scale = rotate_block(
            x, blocks[b, 0], blocks[b, 1], z, 0, size, start // GROUP, (keys[0], keys[1])
        )
        if norms[b] == 0.0 or not np.isfinite(norms[b]):
            continue
        inverse = np.float32(np.float64(scale) / step)
        for first in range(0, size, GROUP):
            fill(pairs, (start + first) // GROUP, (keys[2], keys[3]))
            outside: Any = False
            for i in range(GROUP):
                q = np.int32(np.floor(z[first + i] * inverse + _dither(random[i]) + np.float32(0.5)))
                k = strata * q - np.int32(random[i] >> shift) + np.int32(start_of)
                outcomes[outcome_count + i] = k
                outside |= (k < 0) | (k > last)
            if outside:
                for i in range(GROUP):
                    k, beyond = outcomes[outcome_count + i], 0
                    if k < 0:
                        beyond = -((strata - 1 - k) // strata)
                    elif k > last:
                        beyond = (k - last + strata - 1) // strata
                    if beyond != 0:
                        outcomes[outcome_count + i] = k - beyond * strata
                        outlier_indices[outliers], excess[outliers] = start + first + i, np.float32(beyond)
                        outliers += 1
            outcome_count += GROUP
    return outcome_count, outliers


@kernel
def write(
    outcomes: Ints, outcome_count: int, cumulative: Ints, strata: int, states: States, stream: Bits32
) -> int:
    """Code the dithered outcomes with rANS at the end of ``stream``; return the position where the code begins."""
    states[:] = MIN_STATE
    position = stream.size
    for i in range(outcome_count - STATES, -1, -STATES):
        for lane in range(STATES - 1, -1, -1):
            k, state = outcomes[i + lane], states[lane]
            low = np.uint64(cumulative[k])
            size = np.uint64(cumulative[k + strata]) - low
            if state >> np.uint64(48) >= size:
                position -= 1
                stream[position] = np.uint32(state)
                state >>= HALF
            states[lane] = ((state // size) << SHIFT) + state % size + low
    return position


@inlined
def _decode_outcome(state: Any, stratum: Any, cumulative: Ints, guess: Ints, strata: int) -> Any:
    """Return the dithered outcome of a rANS state, as the start of its frequencies, and the state without it.

    The search runs upwards from the closest start of this stratum at or below the guess. The last
    ``strata`` entries are larger than any slot, so it ends inside the list.
    """
    slot, start, first = np.int64(state & LOW), cumulative.size // 2 - 1 - np.int64(stratum), strata - 1
    k = np.int64(guess[slot >> 6])
    k = max(k - ((k - start) & first), start & first)
    k = k + strata if cumulative[k + strata] <= slot else k
    while cumulative[k + strata] <= slot:
        k += strata
    low = cumulative[k]
    return k, np.uint64(cumulative[k + strata] - low) * (state >> SHIFT) + np.uint64(slot - low)


@inlined
def _refill(state: Any, stream: Bits32, position: int) -> Any:
    """Return the rANS state, with 32 more bits if below the minimum, and the next position in the stream."""
    if state < MIN_STATE:
        return (state << HALF) | np.uint64(stream[position]), position + 1
    return state, position


@kernel
def read(
    stream: Bits32, states: States, blocks: Int64s, norms: NDArray[np.float64], cumulative: Ints, guess: Ints,
    strata: int, keys: Any, random: Bits32, values: Floats,
) -> bool:  # fmt: skip
    """Decode the rANS stream of all blocks with a norm to q - u; return False unless it is exactly one code.

    ``stream`` has four words more than the code, the most that the four states read before a check.
    """
    position, end, power = 0, stream.size - STATES, np.int32(round(np.log2(strata)))
    shift, start = np.uint32(32 - power), np.int32(cumulative.size // 2 - 1)
    outcomes, pairs = np.empty(GROUP, np.int32), random.view(np.uint64)
    a, b, c, d = states[0], states[1], states[2], states[3]
    for block in range(len(blocks)):
        if norms[block] == 0.0:
            continue
        for first in range(blocks[block, 3], blocks[block, 3] + blocks[block, 2], GROUP):
            fill(pairs, first // GROUP, keys)
            for i in range(0, GROUP, STATES):
                outcomes[i], a = _decode_outcome(a, random[i] >> shift, cumulative, guess, strata)
                outcomes[i + 1], b = _decode_outcome(b, random[i + 1] >> shift, cumulative, guess, strata)
                outcomes[i + 2], c = _decode_outcome(c, random[i + 2] >> shift, cumulative, guess, strata)
                outcomes[i + 3], d = _decode_outcome(d, random[i + 3] >> shift, cumulative, guess, strata)
                a, position = _refill(a, stream, position)
                b, position = _refill(b, stream, position)
                c, position = _refill(c, stream, position)
                d, position = _refill(d, stream, position)
                if position > end:
                    return False
            for i in range(GROUP):
                q = (outcomes[i] + np.int32(random[i] >> shift) - start) >> power
                values[first + i] = np.float32(q) - _dither(random[i])
    return position == end and a == MIN_STATE and b == MIN_STATE and c == MIN_STATE and d == MIN_STATE


@kernel
def accumulate(values: Floats, blocks: Int64s, factors: NDArray[np.float64], total: Floats) -> None:
    """Add factor · dithered value to ``total`` for all blocks whose factor is not zero."""
    for b in range(len(blocks)):
        factor = np.float32(factors[b])
        if factors[b] != 0.0:
            for i in range(blocks[b, 3], blocks[b, 3] + blocks[b, 2]):
                total[i] += factor * values[i]
