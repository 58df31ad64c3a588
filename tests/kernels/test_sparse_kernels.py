"""The sparse kernels compared with NumPy, on typical and unusual inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.kernels import bit_packing, context_coder, golomb_rice
from abaton.kernels.topk import top_k
from abaton.kernels.vector_ops import block_magnitudes, expand_indices, segment_values


def largest_indices(x: np.ndarray, segments: list[tuple[int, int]], k: int) -> np.ndarray:
    indices = np.concatenate([np.arange(a, b) for a, b in segments])
    best = indices[np.argsort(-np.abs(x[indices]), kind="stable")[:k]]
    return np.sort(best[x[best] != 0])


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 20_000, 70_000])
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "lognormal", "sorted", "one"])
def test_top_k_equals_a_stable_sort(size: int, kind: str):
    rng = np.random.default_rng(size)
    x = {
        "normal": rng.standard_normal(size),
        "ties": rng.integers(-3, 4, size),
        "zeros": np.zeros(size),
        "lognormal": np.exp(3 * rng.standard_normal(size)),
        "sorted": np.sort(rng.standard_normal(size)),
        "one": np.ones(size),
    }[kind].astype(np.float32)
    for segments in ([(0, size)], [(size // 4, size // 2), (size // 2 + 1, size)]):
        segments = [(a, b) for a, b in segments if a < b]
        total = sum(b - a for a, b in segments)
        for k in {min(1, total), total // 1000, total // 100, total // 10, total - total // 3, total}:
            indices, bits, magnitude_sum = top_k(
                x.view(np.uint32), np.array(segments, np.int64).reshape(-1, 2), k
            )
            expected = largest_indices(x, segments, k) if total else np.zeros(0)
            np.testing.assert_array_equal(indices, expected)
            np.testing.assert_array_equal(bits, x.view(np.uint32)[indices])
            assert magnitude_sum == pytest.approx(np.abs(x[indices]).astype(np.float64).sum())


def test_sum_is_not_finite_if_a_value_is_not():
    x = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        x[777] = value
        assert not np.isfinite(top_k(x.view(np.uint32), np.array([[0, x.size]]), 50)[2])


@given(st.sets(st.integers(0, 5000)), st.integers(0, 14), st.integers(0, 1))
def test_golomb_rice_round_trip(indices: set[int], width: int, signed: int):
    sorted_indices = np.array(sorted(indices), np.uint32)
    negative = sorted_indices % 3 == 0
    buffer = np.empty(golomb_rice.max_bytes(len(indices), 5001, width), np.uint8)
    code = buffer[: golomb_rice.write(sorted_indices, negative, width, signed, buffer)].copy()
    decoded, signs = np.empty(len(indices), np.uint32), np.empty(len(indices), np.bool_)
    assert golomb_rice.read(code, width, signed, 5001, decoded, signs) == len(code)
    np.testing.assert_array_equal(decoded, sorted_indices)
    if signed:
        np.testing.assert_array_equal(signs, negative)


@given(st.binary(max_size=60), st.integers(0, 31), st.integers(0, 40))
def test_golomb_rice_accepts_or_refuses_any_bytes(code: bytes, width: int, count: int):
    indices, negative = np.zeros(count, np.uint32), np.zeros(count, np.bool_)
    used = golomb_rice.read(np.frombuffer(code, np.uint8), width, 1, 1000, indices, negative)
    assert -1 <= used <= len(code)
    if used >= 0:
        assert (indices < 1000).all()
        assert (np.diff(indices.astype(np.int64)) > 0).all()


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_context_coder_round_trip(rows: int, columns: int, density: float, seed: int):
    rng = np.random.default_rng(seed)
    matrices = [np.flatnonzero(rng.random(rows * columns) < density).astype(np.int64) for _ in range(3)]
    signs = [rng.choice(np.array([-1, 1], np.int8), len(m)) for m in matrices]
    buffer = np.empty(10_000, np.uint8)
    coder, model, input_counts = context_coder.new_writer(), context_coder.new_model(), np.zeros(0, np.int64)
    for m, s in zip(matrices, signs, strict=True):
        _, input_counts = context_coder.code_matrix(
            coder, buffer, model, (rows, columns), m.copy(), s.copy(), len(m), input_counts
        )
    code = buffer[: coder[context_coder.OFFSET]].tobytes() + context_coder.finish_code(coder)
    buffer_copy = np.frombuffer(code, np.uint8).copy()
    coder, model, input_counts = (
        context_coder.new_reader(buffer_copy),
        context_coder.new_model(),
        np.zeros(0, np.int64),
    )
    for m, s in zip(matrices, signs, strict=True):
        indices, decoded_signs = np.empty(len(m), np.int64), np.empty(len(m), np.int8)
        count, input_counts = context_coder.code_matrix(
            coder, buffer_copy, model, (rows, columns), indices, decoded_signs, 0, input_counts
        )
        assert count == len(m)
        np.testing.assert_array_equal(indices, m)
        np.testing.assert_array_equal(decoded_signs, s)
    assert code[coder[context_coder.OFFSET] :] == context_coder.finish_code(coder)


@given(st.sets(st.integers(0, 99)), st.integers(1, 12))
def test_bit_packing_round_trip(indices: set[int], kernels: int):
    size = 100
    sorted_indices = np.array(sorted(indices), np.uint32)
    negative = sorted_indices % 2 == 1
    decoded, signs = np.empty(len(sorted_indices), np.uint32), np.empty(len(sorted_indices), np.bool_)
    assert bit_packing.read_trits(
        bit_packing.write_trits(sorted_indices, negative, size), size, decoded, signs
    ) == len(sorted_indices)
    np.testing.assert_array_equal(decoded, sorted_indices)
    np.testing.assert_array_equal(signs, negative)
    assert (
        bit_packing.unpack_indices(
            bit_packing.pack_indices(sorted_indices, negative, 7), 7, size, decoded, signs
        )
        == 0
    )
    np.testing.assert_array_equal(decoded, sorted_indices)
    ids = np.arange(0, 3 * kernels, 3, dtype=np.uint32)
    sorted_indices = sorted_indices[sorted_indices < 9 * kernels]
    code = bit_packing.write_kernels(ids, 6, 9, sorted_indices, sorted_indices % 2 == 1)
    decoded_ids, decoded, signs = (
        np.empty(kernels, np.uint32),
        np.empty(size, np.uint32),
        np.empty(size, np.bool_),
    )
    assert bit_packing.read_kernels(code, 6, 9, 3 * kernels, decoded_ids, decoded, signs) == len(
        sorted_indices
    )
    np.testing.assert_array_equal(decoded_ids, ids)
    np.testing.assert_array_equal(decoded[: len(sorted_indices)], sorted_indices)


def test_expand_indices_inverts_segment_values():
    segments = np.array([[3, 7], [10, 11], [20, 30]])
    indices = np.uint32([0, 3, 6, 7, 10, 15, 29, 40])
    compact_indices, negative = segment_values(
        indices, np.arange(8, dtype=np.uint32) << np.uint32(29), segments
    )
    assert compact_indices.tolist() == [0, 3, 4, 14]
    assert negative.tolist() == [False, False, True, True]
    assert expand_indices(compact_indices, segments).tolist() == [3, 6, 10, 29]


@pytest.mark.parametrize("size", [1, 3, 9, 25])
def test_block_magnitudes(size: int):
    x = np.random.default_rng(0).standard_normal(size * 37).astype(np.float32)
    np.testing.assert_allclose(block_magnitudes(x, size), np.abs(x).reshape(-1, size).sum(1), rtol=1e-5)
