"""Check modular vectors against Python's integers and rational numbers."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import example, given
from hypothesis import strategies as st

from abaton.errors import SettingsError
from abaton.secure_sum import SumSegment, max_magnitude
from abaton.secure_sum.modular_vectors import (
    SEGMENT_BITS,
    ModularSum,
    decode_exact,
    encode_exact,
    payload_bytes,
    values_from_bytes,
    values_to_bytes,
)

UNIT = Fraction(1, 1 << 128)
KEY = bytes(range(32))


def stream(key: bytes, count: int) -> bytes:
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(count))


def container_bytes(bits: int) -> int:
    return next(size for size in (1, 2, 4, 8, 32) if bits <= 8 * size)


# The float with the exponent of the lowest bit that is still a multiple of 2^-128.
exact_floats = st.floats(min_value=-1e30, max_value=1e30).filter(
    lambda value: (Fraction(value) / UNIT).denominator == 1
)


@given(st.lists(exact_floats, min_size=1, max_size=50), st.randoms(use_true_random=False))
@example([2.0**-76, -(2.0**-128), 1e30, -1e30], __import__("random").Random(0))
def test_exact_sums_equal_fsum_in_any_order(numbers, random):
    encoded = [encode_exact(np.array([number]), 50)[0] for number in numbers]
    random.shuffle(encoded)
    assert decode_exact([sum(encoded)]).tolist() == [fsum(numbers)]


@given(st.floats(allow_nan=False, allow_infinity=False, width=64).filter(lambda value: abs(value) < 2.0**120))
@example(5e-324)
@example(2.0**-129)
@example(3 * 2.0**-129)
@example(-(2.0**-77) * (1 + 2.0**-52))
def test_every_float_is_encoded_within_half_a_unit(number):
    (integer,) = encode_exact(np.array([number]), 50)
    error = abs(integer * UNIT - Fraction(number))
    assert error <= UNIT / 2
    if abs(number) >= 2.0**-76 or number == 0:
        assert error == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 2.0**127, -(2.0**126)])
def test_values_that_are_not_finite_or_could_wrap_are_refused(value):
    with pytest.raises(SettingsError, match="not finite or too large") as caught:
        encode_exact(np.array([1.0, value]), 3)
    assert str(value) not in str(caught.value)


def test_a_sum_of_limits_never_wraps():
    for bits in SEGMENT_BITS:
        for sites in range(1, 51):
            limit = max_magnitude(bits, sites)
            assert sites * limit <= (1 << (bits - 1)) - 1 < sites * (limit + 1)


@pytest.mark.parametrize("bits", sorted(SEGMENT_BITS - {256}))
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_integers_of_all_sites_are_summed_as_python_does(bits, size):
    rng = np.random.default_rng(bits * 1000 + size)
    segment = SumSegment(name="x", size=size, bits=bits)
    sites = 1 if bits < 4 else 5
    limit = max_magnitude(bits, sites)
    vectors = rng.integers(-limit, limit, (sites, size), endpoint=True)
    vectors[:, 0] = limit
    vectors[:, -1] = -limit
    total = ModularSum([segment])
    for vector in vectors:
        one = ModularSum([segment])
        one.add_values({"x": vector}, sites)
        payload = one.to_payload()
        assert len(payload) == payload_bytes([segment])
        total.add_payload(payload)
    values, in_range = total.to_values(sites, sites)
    assert in_range
    assert values["x"].tolist() == [sum(column) for column in vectors.T.tolist()]


@pytest.mark.parametrize("bits", sorted(SEGMENT_BITS))
@pytest.mark.parametrize("size", [1, 3, 8, 70_001])
def test_streams_are_added_modulo_two_to_the_bits(bits, size):
    if bits == 256 and size > 10_000:
        size = 9000  # still more than one chunk
    segments = [SumSegment(name="a", size=5, bits=16), SumSegment(name="x", size=size, bits=bits)]
    total = ModularSum(segments)
    total.add_stream(KEY)
    total.add_stream(KEY)
    total.add_stream(KEY[::-1], negative=True)
    width = container_bytes(bits)
    plus, minus = (stream(key, 10 + size * width)[10:] for key in (KEY, KEY[::-1]))

    def expected(index):
        first, second = (
            int.from_bytes(raw[index * width : (index + 1) * width], "little") for raw in (plus, minus)
        )
        return (2 * first - second) % (1 << bits)

    payload = total.to_payload()[10:]
    for index in {0, size // 2, size - 1}:
        if bits % 8 == 0:
            result = int.from_bytes(payload[index * width : (index + 1) * width], "little")
        else:
            group = int.from_bytes(payload[index // 8 * bits : (index // 8 + 1) * bits], "little")
            result = group >> (index % 8 * bits) & ((1 << bits) - 1)
        assert result == expected(index)
    total.add_stream(KEY, negative=True)
    total.add_stream(KEY, negative=True)
    total.add_stream(KEY[::-1])
    assert not any(total.to_payload())


@given(st.lists(st.floats(min_value=-1e30, max_value=1e30), min_size=1, max_size=9))
def test_exact_values_come_back_after_masks(numbers):
    vector = np.array(numbers)
    segment = SumSegment(name="x", size=len(numbers), bits=256)
    total = ModularSum([segment])
    total.add_values({"x": vector}, 10)
    clear = total.to_payload()
    total.add_stream(KEY)
    payload = total.to_payload()
    assert payload != clear
    other = ModularSum([segment])
    other.add_payload(payload)
    other.add_stream(KEY, negative=True)
    values, in_range = other.to_values(10, 10)
    assert in_range
    assert values["x"].tolist() == decode_exact(encode_exact(vector, 10)).tolist()


def test_values_of_another_type_size_name_or_range_are_refused():
    segments = [SumSegment(name="x", size=2, bits=8), SumSegment(name="y", size=1, bits=256)]
    valid = {"x": np.array([1, 2]), "y": np.array([0.5])}
    ModularSum(segments).add_values(valid, 3)
    for changed, what in [
        ({"x": np.array([1, 43])}, "not finite or too large"),
        ({"x": np.array([-43, 1])}, "not finite or too large"),
        ({"x": np.array([1.0, 2.0])}, "another type"),
        ({"y": np.array([1])}, "another type"),
        ({"x": np.array([1, 2, 3])}, "another size"),
        ({"z": np.array([1])}, "do not match the segments"),
    ]:
        with pytest.raises(SettingsError, match=what):
            ModularSum(segments).add_values({**valid, **changed}, 3)


def test_a_sum_beyond_honest_contributions_is_noticed():
    segment = SumSegment(name="x", size=1, bits=8)
    for value, holds in [(63, True), (64, False), (-64, False)]:
        total = ModularSum([segment])
        total.add_payload(int(value).to_bytes(1, "little", signed=True))
        assert total.to_values(6, 3)[1] is holds  # three sites of at most 21


def test_stored_values_are_the_same_bits():
    values = {"b": np.array([1, -(2**63)]), "a": np.array([0.1, -0.0, 5e-324]), "ä": np.zeros(0)}
    result = values_from_bytes(values_to_bytes(values))
    assert {name: (v.dtype, v.tobytes()) for name, v in values.items()} == {
        name: (v.dtype, v.tobytes()) for name, v in result.items()
    }
    with pytest.raises(SettingsError, match="not a vector"):
        values_to_bytes({"x": np.zeros(3, np.float32)})
