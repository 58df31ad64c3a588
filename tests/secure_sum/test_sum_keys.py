"""Check secret sharing and key derivation against independent formulas."""

from __future__ import annotations

import hashlib
import hmac
import itertools

from hypothesis import given
from hypothesis import strategies as st

from abaton.secure_sum.sum_keys import (
    PRIME,
    derive_key,
    derive_number,
    exchange_key,
    hash_parts,
    lagrange_weights,
    pair_secret,
    share_at,
)


@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=5), st.data())
def test_any_threshold_of_shares_gives_the_secret(coefficients, data):
    t = len(coefficients)
    holders = data.draw(st.lists(st.integers(1, 50), min_size=t, max_size=t, unique=True))
    shares = [sum(a * j**i for i, a in enumerate(coefficients)) % PRIME for j in holders]
    assert [share_at(coefficients, j) for j in holders] == shares
    weights = lagrange_weights(holders)
    assert sum(w * s for w, s in zip(weights, shares, strict=True)) % PRIME == coefficients[0]


def test_fewer_shares_leave_every_secret_possible():
    # For t - 1 shares there is, for every secret, a polynomial through them: shares alone exclude none.
    coefficients, holders = [1234, 77, 99], (2, 5)
    for secret in (0, 1, 1234, PRIME - 1):
        points = [(0, secret), *((j, share_at(coefficients, j)) for j in holders)]
        third = lagrange_interpolated(points, 7)
        weights = lagrange_weights([2, 5, 7])
        shares = [share_at(coefficients, 2), share_at(coefficients, 5), third]
        assert sum(w * s for w, s in zip(weights, shares, strict=True)) % PRIME == secret


def lagrange_interpolated(points, x):
    total = 0
    for j, (xj, yj) in enumerate(points):
        factor = yj
        for k, (xk, _) in enumerate(points):
            if k != j:
                factor = factor * (x - xk) * pow(xj - xk, -1, PRIME) % PRIME
        total += factor
    return total % PRIME


def test_parts_are_length_prefixed():
    lists = [(b"a", b"bc"), (b"ab", b"c"), (b"abc",), (b"abc", b""), (b"", b"abc")]
    assert len({hash_parts(*parts) for parts in lists}) == len(lists)
    assert len({derive_key(b"secret", b"", *parts) for parts in lists}) == len(lists)


def test_key_derivation_is_rfc_5869():
    secret, salt = b"secret", b"salt" * 8
    info = (5).to_bytes(8, "big") + b"share" + (1).to_bytes(8, "big") + b"x"
    pseudorandom_key = hmac.digest(salt, secret, hashlib.sha256)
    first = hmac.digest(pseudorandom_key, info + b"\1", hashlib.sha256)
    second = hmac.digest(pseudorandom_key, first + info + b"\2", hashlib.sha256)
    assert derive_key(secret, salt, b"share", b"x", length=64) == first + second
    assert derive_number(secret, salt, b"share", b"x") == int.from_bytes(first + second, "little") % PRIME


def test_pairs_have_equal_secrets_and_different_pairs_different_ones():
    keys = [exchange_key(bytes([i]) * 32) for i in range(4)]
    public = [key.public_key().public_bytes_raw() for key in keys]
    result = {
        frozenset((i, j)): {pair_secret(keys[i], public[j]), pair_secret(keys[j], public[i])}
        for i, j in itertools.combinations_with_replacement(range(4), 2)
    }
    assert all(len(secrets) == 1 for secrets in result.values())
    assert len({next(iter(secrets)) for secrets in result.values()}) == len(result) == 10
