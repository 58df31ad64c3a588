"""Keyed counter-based random words: the streams of ``simd`` in scalar loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined
from abaton.kernels.simd import FIRST, GOLDEN, SECOND


@inlined
def random_word(counter: Any, key: Any, other: Any) -> Any:
    """Return the random word of one counter and two key words, as ``simd.hash_counters`` does."""
    state = np.uint64(counter) * np.uint64(GOLDEN) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state ^= np.uint64(other)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    return state ^ (state >> np.uint64(31))


@inlined
def fill(random: NDArray[np.uint64], block: int, keys: Any) -> None:
    """Fill ``random`` with the ``block``-th group of words of a counter-based random stream."""
    first = block * random.size
    for i in range(random.size):
        random[i] = random_word(first + i, keys[0], keys[1])
