import numpy as np
import pytest
from scipy.linalg import hadamard

from abaton.kernels.rotation import backward, derive_key, forward
from abaton.kernels.walsh_hadamard import aligned, rotate, sign, transform

ONE = np.float32(1)
KEYS = derive_key(123)


def normal(size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.mark.parametrize("power", range(8, 13))
def test_transform_is_multiplication_by_the_hadamard_matrix(power):
    x = normal(1 << power)
    expected = hadamard(1 << power).astype(np.float64) @ x
    transform(x, 0, x.size, ONE)
    np.testing.assert_allclose(x, expected, atol=1e-3)


@pytest.mark.parametrize("power", range(8, 21))
def test_transform_twice_gives_the_vector_times_its_size(power):
    x = normal(1 << power)
    y = x.copy()
    transform(y, 0, y.size, ONE)
    transform(y, 0, y.size, ONE)
    np.testing.assert_allclose(y / y.size, x, atol=1e-5)


def test_transform_changes_only_its_segment_at_any_offset():
    space = normal(2048)
    before = space.copy()
    transform(space, 3, 256, ONE)
    np.testing.assert_array_equal(space[:3], before[:3])
    np.testing.assert_array_equal(space[259:], before[259:])
    np.testing.assert_allclose(space[3:259], hadamard(256) @ before[3:259], atol=1e-3)


def test_rotation_is_signs_then_transform():
    x, rotated, signed = normal(4096), aligned(4096), aligned(4096)
    rotate(x, 0, rotated, 0, 4096, 7, np.float32(0.5), KEYS, ONE)
    sign(x, 0, signed, 0, 4096, 7, np.float32(0.5), KEYS)
    np.testing.assert_array_equal(np.abs(signed), np.abs(x) / 2)
    transform(signed, 0, 4096, ONE)
    np.testing.assert_array_equal(rotated, signed)


def test_signs_are_even_and_differ_between_keys_and_groups():
    ones, a, b = np.ones(1 << 16, np.float32), aligned(1 << 16), aligned(1 << 16)
    sign(ones, 0, a, 0, ones.size, 0, ONE, KEYS)
    assert abs(a.mean()) < 0.02
    for keys, group in ((derive_key(124), 0), (KEYS, 128)):
        sign(ones, 0, b, 0, ones.size, group, ONE, keys)
        assert abs((a * b).mean()) < 0.02


@pytest.mark.parametrize(("length", "size"), [(512, 512), (1000, 1024), (1, 1024), (65536, 65536)])
@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e-30, 1e25, 3e38])
def test_backward_undoes_forward(length, size, scale):
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(normal(length) * np.float32(scale), -3.4e38, 3.4e38).astype(np.float32)
    z, result = aligned(size), np.empty(length, np.float32)
    norm = forward(x, 0, length, z, 0, size, 0, KEYS)
    assert norm == pytest.approx(np.sqrt((x.astype(np.float64) ** 2).sum()), rel=1e-5)
    if norm:
        assert (z.astype(np.float64) ** 2).sum() == pytest.approx(size, rel=1e-3)
        backward(z, 0, size, 0, KEYS, norm / size, result, 0, length)
        np.testing.assert_allclose(result, x, rtol=0, atol=max(1e-5 * np.abs(x).max(), 2e-45))


def test_forward_of_zeros_is_zeros():
    z = aligned(1024)
    assert forward(np.zeros(1024, np.float32), 0, 1024, z, 0, 1024, 0, KEYS) == 0
    assert not z.any()
