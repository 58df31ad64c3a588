"""SIMD kernels return the same bits as their scalar fallbacks."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs.quicfl import DEFAULT_SHARED_BITS, codebooks, message_intervals
from abaton.kernels import codebook_quantiser, simd_fallback
from abaton.kernels.jit import kernel
from abaton.kernels.rotation import derive_key
from abaton.kernels.simd import put_word
from abaton.kernels.topk import gather
from abaton.kernels.walsh_hadamard import GROUP, aligned, sign, transform

ONE = np.float32(1)
KEYS, PRIVATE = derive_key(123), derive_key(456)


@kernel
def put_words(buffer, step, random_words):
    for i in range(random_words.size):
        put_word(buffer, i * step, random_words[i])


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
    books, bounds = (
        codebooks(bits, DEFAULT_SHARED_BITS[bits]),
        message_intervals(bits, DEFAULT_SHARED_BITS[bits]),
    )
    low, width = (np.asarray(bound, np.float32) for bound in bounds)
    z, size, keys = normal(8 * GROUP), 8 * GROUP, (*KEYS, *PRIVATE)
    packed, masks = np.empty((2, size * bits // 32), np.uint32), np.empty((2, size // 64), np.uint64)
    scale = np.float32(1.1)
    codebook_quantiser.write(
        z, size, packed[0], 0, masks[0], 3, books.intervals, books.row_count, books.edge, scale, bits, books.cells, keys
    )  # fmt: skip
    simd_fallback.write(z, size, packed[1], 0, masks[1], 3, low, width, books.edge, scale, bits, keys)
    np.testing.assert_array_equal(packed[0], packed[1])
    np.testing.assert_array_equal(masks[0], masks[1])
    assert masks.any()
    sums = [normal(size), normal(size)]
    codebook_quantiser.add(packed[0], 0, sums[0], 0, size, 3, books.codewords, books.row_count, bits, KEYS)
    simd_fallback.add(packed[0], 0, sums[1], 0, size, 3, books.codewords, books.row_count, bits, KEYS)
    np.testing.assert_array_equal(sums[0], sums[1])


def test_gathering():
    bits = normal(10_000).view(np.uint32)
    threshold = int(np.float32(2).view(np.uint32))
    gathered = [(np.empty(bits.size + 64, np.uint32), np.empty(bits.size + 64, np.uint32)) for _ in range(2)]
    counts = (
        gather(bits, np.array([[0, bits.size]]), threshold, *gathered[0]),
        simd_fallback.gather(bits, threshold, *gathered[1]),
    )
    assert counts[0] == counts[1] > 100
    for a, b in zip(*gathered, strict=True):
        np.testing.assert_array_equal(a[: counts[0]], b[: counts[0]])


def test_unaligned_words():
    random_words = np.random.default_rng(1).integers(0, 1 << 63, 100).astype(np.uint64)
    buffers = np.zeros((2, 8 + 3 * 100), np.uint8)
    put_words(buffers[0], 3, random_words)
    simd_fallback.put_words(buffers[1], 3, random_words)
    np.testing.assert_array_equal(*buffers)
    assert buffers.any()
