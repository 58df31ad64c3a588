"""Drawing lots that come out the same everywhere: chance is a function of a key, never of a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache


def uniform(*key: object) -> float:
    """A number from 0 up to 1 that depends on the key alone.

    >>> uniform("seed", 7) == uniform("seed", 7) != uniform("seed", 8)
    True
    """
    return _word(key) / 2**64


def sample(names: Sequence[str], count: int, *key: object) -> list[str]:
    """Some of the names, each with the same chance, in the order in which they were drawn."""
    pool = list(names)
    for i in range(count):
        # The bias of a 64-bit remainder is below 2^-40 for any number of learners that fits in memory.
        j = i + _word((*key, i)) % (len(pool) - i)
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


@lru_cache(maxsize=256)
def round_key(seed: int, version: int) -> bytes:
    """The key of all codecs' common randomness for updates that start from a version of the community model."""
    return hashlib.blake2b(f"round\x1f{seed}\x1f{version}".encode(), digest_size=32).digest()


def _word(key: tuple[object, ...]) -> int:
    text = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
