"""Random words from a keyed counter, one number after the other: the streams of ``lanes``, in ordinary loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import inlined
from abaton.kernels.simd import FIRST, GOLDEN, SECOND


@inlined
def random_word(counter: Any, key: Any, other: Any) -> Any:
    """The hash of ``lanes.hashed`` for one counter."""
    state = np.uint64(counter) * np.uint64(GOLDEN) + np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
    state ^= np.uint64(other)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
    return state ^ (state >> np.uint64(31))


@inlined
def fill(words: NDArray[np.uint64], number: int, keys: Any) -> None:
    """As many random words as fit, the ``number``-th such filling of a stream."""
    first = number * words.size
    for i in range(words.size):
        words[i] = random_word(first + i, keys[0], keys[1])
