"""Kernels of the dithered quantiser: round to a grid that is shifted at random, and code it with rANS.

Four rANS states take turns: number i of the stream uses state i mod 4. A state is 64 bits, at least 2^32,
and gives or takes 32 bits at a time; frequencies add up to 2^16 (Duda 2013). The encoder runs backwards
over the outcomes, the decoder forwards. The decoder cannot leave its tables: an outcome is only ever looked
for between the two ends of a stratum, and it stops where the stream ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.counter_rng import fill
from abaton.kernels.jit import inlined, kernel
from abaton.kernels.rotation import spin
from abaton.kernels.walsh_hadamard import GROUP, Floats

Wholes = NDArray[np.int64]
Ints = NDArray[np.int32]
Words = NDArray[np.uint32]
States = NDArray[np.uint64]

STATES = 4
LOWEST = np.uint64(1 << 32)  # of a state
HALF, LOW = np.uint64(32), np.uint64(0xFFFF)
SHIFT = np.uint64(16)  # frequencies add up to 2^16


@inlined
def _dither(random: int) -> Any:
    """A number between -½ and ½ from the upper 23 of 32 random bits; exact in float32."""
    return (np.float32(random >> np.uint32(9)) + np.float32(0.5)) * np.float32(2.0**-23) - np.float32(0.5)


@kernel
def quantise(
    x: Floats, blocks: Wholes, step: Any, strata: int, count: int, keys: Any, z: Floats, random: Words,
    norms: NDArray[np.float64], outcomes: Ints, places: Wholes, excess: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Rotate and round all blocks; the answer is how many outcomes and how many outliers there are.

    An outcome is where its frequencies begin in a list of ``count``; see ``codecs/ecdq.py``.
    """
    used = found = 0
    pairs = random.view(np.uint64)  # two random numbers each, the lower half first
    start_of, last = count // 2 - 1, count - strata - 1
    shift = np.uint32(32 - round(np.log2(strata)))
    for b in range(len(blocks)):
        place, size = blocks[b, 3], blocks[b, 2]
        norms[b], scale = spin(x, blocks[b, 0], blocks[b, 1], z, 0, size, place // GROUP, (keys[0], keys[1]))
        if norms[b] == 0.0 or not np.isfinite(norms[b]):
            continue
        inverse = np.float32(np.float64(scale) / step)
        for first in range(0, size, GROUP):
            fill(pairs, (place + first) // GROUP, (keys[2], keys[3]))
            outside: Any = False
            for i in range(GROUP):
                q = np.int32(np.floor(z[first + i] * inverse + _dither(random[i]) + np.float32(0.5)))
                k = strata * q - np.int32(random[i] >> shift) + np.int32(start_of)
                outcomes[used + i] = k
                outside |= (k < 0) | (k > last)
            if outside:
                for i in range(GROUP):
                    k, beyond = outcomes[used + i], 0
                    if k < 0:
                        beyond = -((strata - 1 - k) // strata)
                    elif k > last:
                        beyond = (k - last + strata - 1) // strata
                    if beyond != 0:
                        outcomes[used + i] = k - beyond * strata
                        places[found], excess[found] = place + first + i, np.float32(beyond)
                        found += 1
            used += GROUP
    return used, found


@kernel
def write(outcomes: Ints, used: int, cumulative: Ints, strata: int, states: States, stream: Words) -> int:
    """Code the outcomes; the answer is where in ``stream`` the code begins (it ends at the end)."""
    states[:] = LOWEST
    at = stream.size
    for i in range(used - STATES, -1, -STATES):
        for lane in range(STATES - 1, -1, -1):
            k, state = outcomes[i + lane], states[lane]
            low = np.uint64(cumulative[k])
            size = np.uint64(cumulative[k + strata]) - low
            if state >> np.uint64(48) >= size:
                at -= 1
                stream[at] = np.uint32(state)
                state >>= HALF
            states[lane] = ((state // size) << SHIFT) + state % size + low
    return at


@inlined
def _next(state: Any, stratum: Any, cumulative: Ints, guess: Ints, strata: int) -> Any:
    """The outcome at the top of a state, as where its frequencies begin, and the state without it.

    From the nearest beginning of this stratum at or below the guess, up while the slot lies beyond. The last
    ``strata`` entries are larger than any slot, so this ends inside the list.
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
def _filled(state: Any, stream: Words, at: int) -> Any:
    """A state with 32 more bits if it ran low, and where the stream goes on."""
    if state < LOWEST:
        return (state << HALF) | np.uint64(stream[at]), at + 1
    return state, at


@kernel
def read(
    stream: Words, states: States, blocks: Wholes, norms: NDArray[np.float64], cumulative: Ints, guess: Ints,
    strata: int, keys: Any, random: Words, values: Floats,
) -> bool:  # fmt: skip
    """Decode all blocks with a norm to q - u; false if the stream is not exactly one such code.

    ``stream`` has four words more than the code: as many as one turn of the states can take.
    """
    at, end, power = 0, stream.size - STATES, np.int32(round(np.log2(strata)))
    shift, start = np.uint32(32 - power), np.int32(cumulative.size // 2 - 1)
    outcomes, pairs = np.empty(GROUP, np.int32), random.view(np.uint64)
    a, b, c, d = states[0], states[1], states[2], states[3]
    for block in range(len(blocks)):
        if norms[block] == 0.0:
            continue
        for first in range(blocks[block, 3], blocks[block, 3] + blocks[block, 2], GROUP):
            fill(pairs, first // GROUP, keys)
            for i in range(0, GROUP, STATES):
                outcomes[i], a = _next(a, random[i] >> shift, cumulative, guess, strata)
                outcomes[i + 1], b = _next(b, random[i + 1] >> shift, cumulative, guess, strata)
                outcomes[i + 2], c = _next(c, random[i + 2] >> shift, cumulative, guess, strata)
                outcomes[i + 3], d = _next(d, random[i + 3] >> shift, cumulative, guess, strata)
                a, at = _filled(a, stream, at)
                b, at = _filled(b, stream, at)
                c, at = _filled(c, stream, at)
                d, at = _filled(d, stream, at)
                if at > end:
                    return False
            for i in range(GROUP):
                q = (outcomes[i] + np.int32(random[i] >> shift) - start) >> power
                values[first + i] = np.float32(q) - _dither(random[i])
    return at == end and a == LOWEST and b == LOWEST and c == LOWEST and d == LOWEST


@kernel
def accumulate(values: Floats, blocks: Wholes, factors: NDArray[np.float64], total: Floats) -> None:
    """Total += factor · value for all blocks whose factor is not zero."""
    for b in range(len(blocks)):
        factor = np.float32(factors[b])
        if factors[b] != 0.0:
            for i in range(blocks[b, 3], blocks[b, 3] + blocks[b, 2]):
                total[i] += factor * values[i]
