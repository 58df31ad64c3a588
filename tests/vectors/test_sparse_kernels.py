"""The sparse kernels against plain numpy, on usual and unusual inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.kernels import bit_packing, context_coder, golomb_rice
from abaton.kernels.topk import largest
from abaton.kernels.vector_ops import inside, magnitudes, outside


def chosen(x: np.ndarray, stretches: list[tuple[int, int]], k: int) -> np.ndarray:
    places = np.concatenate([np.arange(a, b) for a, b in stretches])
    best = places[np.argsort(-np.abs(x[places]), kind="stable")[:k]]
    return np.sort(best[x[best] != 0])


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 20_000, 70_000])
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "lognormal", "sorted", "one"])
def test_largest_is_a_stable_sort(size: int, kind: str):
    rng = np.random.default_rng(size)
    x = {
        "normal": rng.standard_normal(size),
        "ties": rng.integers(-3, 4, size),
        "zeros": np.zeros(size),
        "lognormal": np.exp(3 * rng.standard_normal(size)),
        "sorted": np.sort(rng.standard_normal(size)),
        "one": np.ones(size),
    }[kind].astype(np.float32)
    for stretches in ([(0, size)], [(size // 4, size // 2), (size // 2 + 1, size)]):
        stretches = [(a, b) for a, b in stretches if a < b]
        total = sum(b - a for a, b in stretches)
        for k in {min(1, total), total // 1000, total // 100, total // 10, total - total // 3, total}:
            places, bits, summed = largest(x.view(np.uint32), np.array(stretches, np.int64).reshape(-1, 2), k)
            expected = chosen(x, stretches, k) if total else np.zeros(0)
            np.testing.assert_array_equal(places, expected)
            np.testing.assert_array_equal(bits, x.view(np.uint32)[places])
            assert summed == pytest.approx(np.abs(x[places]).astype(np.float64).sum())


def test_the_sum_tells_of_what_is_not_finite():
    x = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        x[777] = value
        assert not np.isfinite(largest(x.view(np.uint32), np.array([[0, x.size]]), 50)[2])


@given(st.sets(st.integers(0, 5000)), st.integers(0, 14), st.integers(0, 1))
def test_rice_reads_what_it_wrote(places: set[int], width: int, signed: int):
    sorted_places = np.array(sorted(places), np.uint32)
    negative = sorted_places % 3 == 0
    buffer = np.empty(golomb_rice.longest(len(places), 5001, width), np.uint8)
    code = buffer[: golomb_rice.write(sorted_places, negative, width, signed, buffer)].copy()
    again, signs = np.empty(len(places), np.uint32), np.empty(len(places), np.bool_)
    assert golomb_rice.read(code, width, signed, 5001, again, signs) == len(code)
    np.testing.assert_array_equal(again, sorted_places)
    if signed:
        np.testing.assert_array_equal(signs, negative)


@given(st.binary(max_size=60), st.integers(0, 31), st.integers(0, 40))
def test_rice_survives_any_bytes(code: bytes, width: int, count: int):
    places, negative = np.zeros(count, np.uint32), np.zeros(count, np.bool_)
    used = golomb_rice.read(np.frombuffer(code, np.uint8), width, 1, 1000, places, negative)
    assert -1 <= used <= len(code)
    if used >= 0:
        assert (places < 1000).all()
        assert (np.diff(places.astype(np.int64)) > 0).all()


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_the_context_coder_reads_what_it_wrote(rows: int, columns: int, density: float, seed: int):
    rng = np.random.default_rng(seed)
    matrices = [np.flatnonzero(rng.random(rows * columns) < density).astype(np.int64) for _ in range(3)]
    signs = [rng.choice(np.array([-1, 1], np.int8), len(m)) for m in matrices]
    buffer = np.empty(10_000, np.uint8)
    coder, model, feeds = context_coder.writer(), context_coder.model(), np.zeros(0, np.int64)
    for m, s in zip(matrices, signs, strict=True):
        _, feeds = context_coder.code_matrix(
            coder, buffer, model, (rows, columns), m.copy(), s.copy(), len(m), feeds
        )
    code = buffer[: coder[context_coder.PLACE]].tobytes() + context_coder.ending(coder)
    data = np.frombuffer(code, np.uint8).copy()
    coder, model, feeds = context_coder.reader(data), context_coder.model(), np.zeros(0, np.int64)
    for m, s in zip(matrices, signs, strict=True):
        places, found = np.empty(len(m), np.int64), np.empty(len(m), np.int8)
        count, feeds = context_coder.code_matrix(coder, data, model, (rows, columns), places, found, 0, feeds)
        assert count == len(m)
        np.testing.assert_array_equal(places, m)
        np.testing.assert_array_equal(found, s)
    assert code[coder[context_coder.PLACE] :] == context_coder.ending(coder)


@given(st.sets(st.integers(0, 99)), st.integers(1, 12))
def test_trits_and_fields_are_read_back(places: set[int], kernels: int):
    size = 100
    told = np.array(sorted(places), np.uint32)
    negative = told % 2 == 1
    again, signs = np.empty(len(told), np.uint32), np.empty(len(told), np.bool_)
    assert bit_packing.read_trits(bit_packing.write_trits(told, negative, size), size, again, signs) == len(
        told
    )
    np.testing.assert_array_equal(again, told)
    np.testing.assert_array_equal(signs, negative)
    assert bit_packing.read_places(bit_packing.write_places(told, negative, 7), 7, size, again, signs) == 0
    np.testing.assert_array_equal(again, told)
    ids = np.arange(0, 3 * kernels, 3, dtype=np.uint32)
    told = told[told < 9 * kernels]
    code = bit_packing.write_kernels(ids, 6, 9, told, told % 2 == 1)
    found, again, signs = np.empty(kernels, np.uint32), np.empty(size, np.uint32), np.empty(size, np.bool_)
    assert bit_packing.read_kernels(code, 6, 9, 3 * kernels, found, again, signs) == len(told)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_array_equal(again[: len(told)], told)


def test_places_inside_and_outside_are_inverse():
    stretches = np.array([[3, 7], [10, 11], [20, 30]])
    places = np.uint32([0, 3, 6, 7, 10, 15, 29, 40])
    told, negative = inside(places, np.arange(8, dtype=np.uint32) << np.uint32(29), stretches)
    assert told.tolist() == [0, 3, 4, 14]
    assert negative.tolist() == [False, False, True, True]
    assert outside(told, stretches).tolist() == [3, 6, 10, 29]


@pytest.mark.parametrize("size", [1, 3, 9, 25])
def test_magnitudes(size: int):
    x = np.random.default_rng(0).standard_normal(size * 37).astype(np.float32)
    np.testing.assert_allclose(magnitudes(x, size), np.abs(x).reshape(-1, size).sum(1), rtol=1e-5)
