"""Keys of secure sums: hashes, key derivation, pair secrets and Shamir's secret sharing.

Hashes are SHA-256 over length-prefixed parts, so no two lists of parts collide. Keys are derived with HKDF-SHA-256
(RFC 5869). Shares are points of a polynomial over the integers modulo 2^255 - 19.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**255 - 19
SHARE_BYTES = 32
SHARE_DIGEST_BYTES = 16
SEED_BYTES = 31  # a seed of 31 bytes is smaller than the prime
_WIDE_BYTES = 64  # reduced modulo the prime, the distance to uniform is below 2^-256


def _join_parts(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def hash_parts(*parts: bytes) -> bytes:
    """Return the SHA-256 digest of length-prefixed parts.

    >>> hash_parts(b"ab", b"c") == hash_parts(b"a", b"bc")
    False
    """
    return hashlib.sha256(_join_parts(parts)).digest()


def derive_key(secret: bytes, salt: bytes, *info: bytes, length: int = 32) -> bytes:
    """Return a key derived from a secret with HKDF; `info` parts are length-prefixed."""
    return HKDF(SHA256(), length, salt, _join_parts(info)).derive(secret)


def derive_number(secret: bytes, salt: bytes, *info: bytes) -> int:
    """Return a number modulo :data:`PRIME`, derived from a secret."""
    return int.from_bytes(derive_key(secret, salt, *info, length=_WIDE_BYTES), "little") % PRIME


def exchange_key(secret: bytes) -> X25519PrivateKey:
    """Return the X25519 key of a site's secret of a run."""
    return X25519PrivateKey.from_private_bytes(derive_key(secret, b"", b"exchange"))


def pair_secret(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the Diffie-Hellman secret of two sites.

    Raises:
        ValueError: The other key is a point of small order.
    """
    return own.exchange(X25519PublicKey.from_public_bytes(other))


def share_at(coefficients: Sequence[int], holder: int) -> int:
    """Return the share of a holder: the polynomial at `holder`, which is 1 or more.

    >>> share_at([7, 3], 2)
    13
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * holder + coefficient) % PRIME
    return value


def lagrange_weights(holders: Sequence[int]) -> list[int]:
    """Return the weights with which the shares of these holders add up to the shared secret.

    >>> coefficients = [7, 3, 5]
    >>> weights = lagrange_weights([1, 4, 6])
    >>> sum(w * share_at(coefficients, j) for w, j in zip(weights, [1, 4, 6])) % PRIME
    7
    """
    weights = []
    for j in holders:
        numerator = denominator = 1
        for other in holders:
            if other != j:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - j) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def self_mask_key(seed: bytes, context_digest: bytes) -> bytes:
    """Return the key of a self mask's stream."""
    return derive_key(seed, context_digest, b"self-mask-stream")


def seed_commitment(context_digest: bytes, site: str, seed: bytes) -> bytes:
    """Return the commitment to the seed of a site's self mask."""
    return hash_parts(b"seed", context_digest, site.encode(), seed)


def share_digest(context_digest: bytes, dealer: str, holder: str, share: bytes) -> bytes:
    """Return the digest with which the centre checks a revealed share."""
    return hash_parts(b"share", context_digest, dealer.encode(), holder.encode(), share)[:SHARE_DIGEST_BYTES]


def share_pad(secret: bytes, context_digest: bytes, dealer: str, holder: str) -> int:
    """Return the number that encrypts one share between two sites, used once."""
    return derive_number(secret, context_digest, b"share", dealer.encode(), holder.encode())
