"""What is written in vector instructions gives the bits of its plain twin."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs.quicfl import DEFAULT, codebooks, intervals_of
from abaton.kernels import codebook_quantiser as wide
from abaton.kernels import simd_fallback
from abaton.kernels.jit import kernel
from abaton.kernels.rotation import keyed
from abaton.kernels.simd import put_word
from abaton.kernels.topk import gathered
from abaton.kernels.walsh_hadamard import GROUP, aligned, sign, transform

ONE = np.float32(1)
KEYS, PRIVATE = keyed(123), keyed(456)


@kernel
def put_words(buffer, step, words):
    for i in range(words.size):
        put_word(buffer, i * step, words[i])


def normal(size: int) -> np.ndarray:
    space = aligned(size)
    space[:] = np.random.default_rng(size).normal(size=size)
    return space


@pytest.mark.parametrize("power", [8, 9, 12, 13, 16, 18])
def test_the_transform(power):
    x = normal(1 << power)
    y = x.copy()
    transform(x, 0, x.size, ONE)
    simd_fallback.transform(y, 0, y.size)
    np.testing.assert_array_equal(x, y)


def test_random_signs():
    x, a, b = normal(4096), aligned(4096), aligned(4096)
    sign(x, 0, a, 0, x.size, 5, np.float32(0.7), KEYS)
    simd_fallback.sign(x, b, x.size, 5, np.float32(0.7), KEYS)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_quantising_and_adding(bits):
    books, ends = codebooks(bits, DEFAULT[bits]), intervals_of(bits, DEFAULT[bits])
    low, width = (np.asarray(end, np.float32) for end in ends)
    z, size, keys = normal(8 * GROUP), 8 * GROUP, (*KEYS, *PRIVATE)
    words, masks = np.empty((2, size * bits // 32), np.uint32), np.empty((2, size // 64), np.uint64)
    scale = np.float32(1.1)
    wide.write(
        z, size, words[0], 0, masks[0], 3, books.intervals, books.rows, books.edge, scale, bits, books.cells, keys
    )  # fmt: skip
    simd_fallback.write(z, size, words[1], 0, masks[1], 3, low, width, books.edge, scale, bits, keys)
    np.testing.assert_array_equal(words[0], words[1])
    np.testing.assert_array_equal(masks[0], masks[1])
    assert masks.any()
    sums = [normal(size), normal(size)]
    wide.add(words[0], 0, sums[0], 0, size, 3, books.codewords, books.rows, bits, KEYS)
    simd_fallback.add(words[0], 0, sums[1], 0, size, 3, books.codewords, books.rows, bits, KEYS)
    np.testing.assert_array_equal(sums[0], sums[1])


def test_gathering():
    bits = normal(10_000).view(np.uint32)
    threshold = int(np.float32(2).view(np.uint32))
    found = [(np.empty(bits.size + 64, np.uint32), np.empty(bits.size + 64, np.uint32)) for _ in range(2)]
    counts = (
        gathered(bits, np.array([[0, bits.size]]), threshold, *found[0]),
        simd_fallback.gather(bits, threshold, *found[1]),
    )
    assert counts[0] == counts[1] > 100
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a[: counts[0]], b[: counts[0]])


def test_words_wherever_they_lie():
    words = np.random.default_rng(1).integers(0, 1 << 63, 100).astype(np.uint64)
    buffers = np.zeros((2, 8 + 3 * 100), np.uint8)
    put_words(buffers[0], 3, words)
    simd_fallback.put_words(buffers[1], 3, words)
    np.testing.assert_array_equal(*buffers)
    assert buffers.any()
