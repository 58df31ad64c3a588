"""Key sets: an Ed25519 pair for signing and an X25519 (or hybrid) pair for sealing, with their history.

A key set belongs to a site, a research centre or a data controller. The latest keys are in use; older sealing keys
are kept only to open what was sealed to them. Each rotation is a statement signed by the old and the new signing key,
so a party that trusts the first key can follow to the latest.

A private key file (:mod:`abaton.governance.key_files`) is JSON with ``format``, ``public`` (the key set), ``scrypt``
(salt and cost), ``nonce`` and ``sealed``: the secrets under AES-256-GCM with a key derived from the passphrase. The
public part and the cost are authenticated data, so nothing in the file can be exchanged.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from abaton.errors import SettingsError
from abaton.governance.identifiers import base32_text, is_name
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.governance.signed_statements import Statement, Verify, sign_statement, verify_statement

RandomBytes = Callable[[int], bytes]
"""Source of random bytes, such as ``secrets.token_bytes``."""


class KeyKind(StrEnum):
    """Algorithm of a key."""

    SIGN = "ed25519"
    SEAL = "x25519"
    HYBRID = "mlkem768-x25519"


_KEMS = {KeyKind.SEAL: KEM.X25519, KeyKind.HYBRID: KEM.MLKEM768_X25519}
_PUBLIC_BYTES = {KeyKind.SIGN: 32, KeyKind.SEAL: 32, KeyKind.HYBRID: 1184 + 32}
_SECRET_BYTES = {KeyKind.SIGN: 32, KeyKind.SEAL: 32, KeyKind.HYBRID: 64 + 32}


_PRIME = 2**255 - 19
_CURVE = -121665 * pow(121666, -1, _PRIME) % _PRIME  # d of edwards25519, RFC 8032


def _has_small_order(raw: bytes) -> bool:
    """Return whether a public key is a point of small order, under which some signatures verify without a secret.

    Such a point is 0 or its own inverse (y is 0, 1 or -1), or its double has y = 0, which gives an equation in y.
    """
    y = int.from_bytes(raw, "little") % 2**255
    square = y * y
    return y * (square - 1) * (_CURVE * square * square + 2 * square - 1) % _PRIME == 0


def _suite(kind: KeyKind) -> Suite:
    return Suite(_KEMS[kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True)
class PublicKey:
    """Public half of a key.

    Args:
        kind: Algorithm of the key.
        raw: Its bytes; a hybrid key is the ML-KEM-768 key followed by the X25519 key.
        since: Time of creation.
        until: Time at which it was replaced; empty while it is in use.
    """

    kind: KeyKind
    raw: bytes
    since: str
    until: str = ""

    def __post_init__(self) -> None:
        if len(self.raw) != _PUBLIC_BYTES[self.kind]:
            raise DeniedError(
                RefusalCode.MALFORMED,
                f"the public key has {len(self.raw)} bytes, not {_PUBLIC_BYTES[self.kind]} as for {self.kind}",
            )
        if self.kind is KeyKind.SIGN and _has_small_order(self.raw):
            raise DeniedError(
                RefusalCode.MALFORMED, "the public key has small order, so signatures prove nothing"
            )

    @cached_property
    def id(self) -> str:
        """Fingerprint of the public key: its kind and 130 bits of SHA-256, for comparison by people."""
        return (
            f"{self.kind}:{base32_text(hashlib.sha256(self.kind.encode() + bytes([0]) + self.raw).digest())}"
        )

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether a signature of the data was made with the private half of this public key."""
        if self.kind is not KeyKind.SIGN:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def wrap(self, secret: bytes, info: bytes) -> bytes:
        """Encrypt a short secret to this public key's holder (HPKE, RFC 9180, base mode), bound to `info`."""
        if self.kind is KeyKind.SIGN:
            raise SettingsError(
                "the key is a signing key, not a sealing key", remedy="use the recipient's sealing key"
            )
        return _suite(self.kind).encrypt(secret, self._kem_key, info)

    @cached_property
    def _kem_key(self) -> X25519PublicKey | MLKEM768X25519PublicKey:
        ordinary = X25519PublicKey.from_public_bytes(self.raw[-32:])
        if self.kind is KeyKind.SEAL:
            return ordinary
        return MLKEM768X25519PublicKey(MLKEM768PublicKey.from_public_bytes(self.raw[:-32]), ordinary)

    def row(self) -> dict[str, Any]:
        """Return the public key as a JSON object."""
        raw = base64.b64encode(self.raw).decode()
        return {"kind": self.kind.value, "public": raw, "since": self.since, "until": self.until}

    @classmethod
    def read(cls, row: Any) -> Self:
        """Return the public key of a JSON object."""
        try:
            since, until = row["since"], row["until"]
            if not (isinstance(since, str) and isinstance(until, str)):
                raise TypeError
            return cls(KeyKind(row["kind"]), base64.b64decode(row["public"], validate=True), since, until)
        except (KeyError, TypeError, ValueError):
            raise DeniedError(RefusalCode.MALFORMED, "the public key is malformed") from None


@dataclass(frozen=True)
class PrivateKey:
    """Private half of a key."""

    public: PublicKey
    secret: bytes

    @classmethod
    def new(cls, kind: KeyKind, random_bytes: RandomBytes, since: str) -> Self:
        """Create a private key from random bytes."""
        return cls.of(kind, random_bytes(_SECRET_BYTES[kind]), since)

    @classmethod
    def of(cls, kind: KeyKind, secret: bytes, since: str, until: str = "") -> Self:
        """Return the private key of its secret bytes (for a hybrid key the ML-KEM seed, then the X25519 key)."""
        if len(secret) != _SECRET_BYTES[kind]:
            raise SettingsError(
                f"the {kind} secret has {len(secret)} bytes, not {_SECRET_BYTES[kind]}",
                remedy="restore the key file",
            )
        if kind is KeyKind.SIGN:
            raw = Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        else:
            raw = X25519PrivateKey.from_private_bytes(secret[-32:]).public_key().public_bytes_raw()
        if kind is KeyKind.HYBRID:
            raw = MLKEM768PrivateKey.from_seed_bytes(secret[:64]).public_key().public_bytes_raw() + raw
        return cls(PublicKey(kind, raw, since, until), secret)

    @property
    def id(self) -> str:
        """Fingerprint of the private key's public half."""
        return self.public.id

    def sign(self, data: bytes) -> bytes:
        """Sign the data with this private key (Ed25519)."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(data)

    def unwrap(self, wrapped: bytes, info: bytes) -> bytes:
        """Decrypt a short secret that was encrypted to this private key (HPKE) with the same `info`."""
        try:
            return _suite(self.public.kind).decrypt(wrapped, self._kem_key, info)
        except (InvalidTag, ValueError):
            raise DeniedError(
                RefusalCode.TAMPERED, "the data were not sealed to this key in this context"
            ) from None

    @cached_property
    def _kem_key(self) -> X25519PrivateKey | MLKEM768X25519PrivateKey:
        ordinary = X25519PrivateKey.from_private_bytes(self.secret[-32:])
        if self.public.kind is KeyKind.SEAL:
            return ordinary
        return MLKEM768X25519PrivateKey(MLKEM768PrivateKey.from_seed_bytes(self.secret[:64]), ordinary)

    def __repr__(self) -> str:
        return f"PrivateKey({self.id})"


def verifier(keys: list[PublicKey]) -> Callable[[str], Verify | None]:
    """Return a lookup of the keys' verification functions, as signed statements need it."""
    known = {key.id: key.verify for key in keys if key.kind is KeyKind.SIGN}
    return known.get


ROTATION = "key-rotation"
FORMAT = "abaton-keys/1"


@dataclass(frozen=True, slots=True)
class PublicKeySet:
    """Public keys of one owner, latest last, with the rotation statements that link them."""

    name: str
    keys: tuple[PublicKey, ...]
    rotations: tuple[Statement, ...] = ()

    @property
    def signing_key(self) -> PublicKey:
        """Signing key in use of the public key set."""
        return self._in_use({KeyKind.SIGN})

    @property
    def sealing_key(self) -> PublicKey:
        """Sealing key in use of the public key set."""
        return self._in_use({KeyKind.SEAL, KeyKind.HYBRID})

    def _in_use(self, kinds: set[KeyKind]) -> PublicKey:
        return next(key for key in reversed(self.keys) if key.kind in kinds and not key.until)

    def key(self, key_id: str) -> PublicKey | None:
        """Return a key of the public key set by fingerprint."""
        return next((key for key in self.keys if key.id == key_id), None)

    def accepted_sealing_key(self, key_id: str, since: str) -> PublicKey:
        """Return the key set's sealing key with a fingerprint if it is in use or was replaced after `since`.

        An old private key is useless to an attacker, because envelopes to a key retired before ``since`` are refused.
        """
        key = self.key(key_id)
        if key is None or key.kind is KeyKind.SIGN:
            raise DeniedError(
                RefusalCode.UNKNOWN_KEY,
                "the envelope is sealed to an unknown key",
                where=self.name,
            )
        if key.until and key.until < since:
            raise DeniedError(
                RefusalCode.RETIRED_KEY,
                "the envelope is sealed to a retired key",
                where=self.name,
            )
        return key

    def row(self) -> dict[str, Any]:
        """Return the public key set as a JSON object."""
        keys = [key.row() for key in self.keys]
        return {"format": FORMAT, "name": self.name, "keys": keys, "rotations": list(self.rotations)}

    @classmethod
    def read(cls, row: Any, *, trusted: str = "") -> Self:
        """Return the public key set of a JSON object after verifying all key rotations.

        Args:
            row: The JSON object.
            trusted: Fingerprint of a known signing key that must be in the set.
        """
        try:
            if row["format"] != FORMAT or not is_name(row["name"]) or not isinstance(row["rotations"], list):
                raise TypeError
            key_set = cls(row["name"], tuple(map(PublicKey.read, row["keys"])), tuple(row["rotations"]))
            key_set._check()
        except (KeyError, TypeError, StopIteration):
            raise DeniedError(RefusalCode.MALFORMED, "the public key set is malformed") from None
        if trusted and all(key.id != trusted for key in key_set.keys):
            raise DeniedError(
                RefusalCode.FORGED, "the keys do not follow from the trusted key", where=key_set.name
            )
        return key_set

    def _check(self) -> None:
        signers = [key for key in self.keys if key.kind is KeyKind.SIGN]
        if (
            len({key.id for key in self.keys}) < len(self.keys)
            or self.sealing_key.until
            or self.signing_key.until
        ):
            raise TypeError
        if len(signers) != len(self.rotations) + 1 or len(self.keys) != 2 * len(signers):
            raise DeniedError(RefusalCode.FORGED, "a key rotation has no signed statement", where=self.name)
        for before, after, rotation in zip(signers, signers[1:], self.rotations, strict=False):
            body = verify_statement(rotation, ROTATION, verifier([before]))
            if verify_statement(body.get("after"), ROTATION, verifier([after])) != _rotation_body(
                self, before, after
            ):
                raise DeniedError(
                    RefusalCode.FORGED, "a key rotation differs from its signed statement", where=self.name
                )
            if before.until != after.since:
                raise DeniedError(RefusalCode.FORGED, "a replaced key is marked as in use", where=self.name)


def _rotation_body(key_set: PublicKeySet, before: PublicKey, after: PublicKey) -> dict[str, Any]:
    """Return the body of a key rotation statement: the new keys and the key they follow."""
    new = [replace(key, until="").row() for key in key_set.keys if key.since == after.since]
    return {"name": key_set.name, "before": before.id, "keys": new}


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys of one owner with their secrets."""

    public: PublicKeySet
    secrets: tuple[PrivateKey, ...]

    @classmethod
    def new(cls, name: str, random_bytes: RandomBytes, when: str, *, hybrid: bool = False) -> Self:
        """Create a key set with its first signing and sealing keys.

        Args:
            name: Owner of the keys.
            random_bytes: Source of random bytes.
            when: The current time.
            hybrid: Whether sealing also resists quantum computers (X25519 with ML-KEM-768).

        >>> import secrets
        >>> KeySet.new("site-a", secrets.token_bytes, "2026-01-01T00:00:00Z").public.signing_key.id[:8]
        'ed25519:'
        """
        if not is_name(name):
            raise SettingsError(
                f"the key set name '{name}' is not 1 to 200 visible ASCII characters",
                remedy="choose another name",
            )
        keys = _pair(random_bytes, when, hybrid=hybrid)
        return cls(PublicKeySet(name, tuple(key.public for key in keys)), keys)

    @property
    def signing_key(self) -> PrivateKey:
        """Private signing key in use of the key set."""
        return self._secret(self.public.signing_key)

    def opening_key(self, key_id: str) -> PrivateKey:
        """Return the private half of a sealing key of the key set, old or new."""
        key = self.public.key(key_id)
        if key is None or key.kind is KeyKind.SIGN:
            raise DeniedError(
                RefusalCode.UNKNOWN_KEY,
                "the envelope is sealed to an unknown key",
                where=self.public.name,
            )
        return self._secret(key)

    def _secret(self, key: PublicKey) -> PrivateKey:
        for secret in self.secrets:
            if secret.id == key.id:
                return secret
        raise DeniedError(
            RefusalCode.UNKNOWN_KEY,
            f"the key file does not contain the private key {key.id}",
            where=self.public.name,
        )

    def signing_only(self) -> Self:
        """Return the key set without opening secrets, for a service that only signs."""
        return type(self)(self.public, (self.signing_key,))

    def rotate(self, random_bytes: RandomBytes, when: str, *, hybrid: bool = False) -> Self:
        """Return a key set with new keys, old sealing keys for opening, and a rotation signed by both signing keys."""
        if when <= self.public.signing_key.since:
            raise SettingsError("the new keys are not later than those in use", remedy="check the clock")
        if self.public.sealing_key.kind is KeyKind.HYBRID and not hybrid:
            raise SettingsError("the new keys are not hybrid, but those in use are", remedy="keep --hybrid")
        before, pair = self.signing_key, _pair(random_bytes, when, hybrid=hybrid)
        retired = tuple(key if key.until else replace(key, until=when) for key in self.public.keys)
        public = PublicKeySet(
            self.public.name, (*retired, *(key.public for key in pair)), self.public.rotations
        )
        after = sign_statement(pair[0], ROTATION, _rotation_body(public, before.public, pair[0].public))
        rotation = sign_statement(before, ROTATION, {"after": after})
        retained = tuple(
            PrivateKey(public.key(secret.id) or secret.public, secret.secret)
            for secret in self.secrets
            if secret.public.kind is not KeyKind.SIGN  # a replaced signing key must not sign again
        )
        return type(self)(replace(public, rotations=(*public.rotations, rotation)), (*retained, *pair))

    def __repr__(self) -> str:
        return f"KeySet({self.public.name})"


def _pair(random_bytes: RandomBytes, when: str, *, hybrid: bool) -> tuple[PrivateKey, PrivateKey]:
    seal = PrivateKey.new(KeyKind.HYBRID if hybrid else KeyKind.SEAL, random_bytes, when)
    return PrivateKey.new(KeyKind.SIGN, random_bytes, when), seal
