"""Keys: an Ed25519 pair to sign and an X25519 pair to be sealed to, in a ring that remembers older ones.

A ring belongs to somebody (a site, a research centre, a data controller). Its newest keys are in use; older sealing
keys stay, only to open what was sealed to them. Every change is told in a statement signed by the key before and the
key after, so that whoever trusted the first key can follow to the newest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
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
from abaton.governance.refusals import Code, Denied
from abaton.governance.statements import Verify
from abaton.governance.tags import letters

Draw = Callable[[int], bytes]
"""A source of random bytes, such as ``secrets.token_bytes``."""


class Kind(StrEnum):
    """What a key can do."""

    SIGN = "ed25519"
    SEAL = "x25519"
    HYBRID = "mlkem768-x25519"


_KEMS = {Kind.SEAL: KEM.X25519, Kind.HYBRID: KEM.MLKEM768_X25519}
_PUBLIC_BYTES = {Kind.SIGN: 32, Kind.SEAL: 32, Kind.HYBRID: 1184 + 32}
_SECRET_BYTES = {Kind.SIGN: 32, Kind.SEAL: 32, Kind.HYBRID: 64 + 32}


def _suite(kind: Kind) -> Suite:
    return Suite(_KEMS[kind], KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True)
class PublicKey:
    """The half of a key that everybody may know.

    Args:
        kind: What it can do.
        raw: Its bytes; a hybrid key is the ML-KEM-768 key followed by the X25519 key.
        since: When it was made.
        until: When a newer one took its place; empty while it is in use.
    """

    kind: Kind
    raw: bytes
    since: str
    until: str = ""

    def __post_init__(self) -> None:
        if len(self.raw) != _PUBLIC_BYTES[self.kind]:
            raise Denied(Code.MALFORMED, f"a public key of kind {self.kind} has another length")

    @cached_property
    def id(self) -> str:
        """The key's fingerprint: its kind and 130 bits of SHA-256, which is what people compare."""
        return f"{self.kind}:{letters(hashlib.sha256(self.kind.encode() + bytes([0]) + self.raw).digest())}"

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether a signature of some bytes was made with this key's other half."""
        if self.kind is not Kind.SIGN:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def wrap(self, secret: bytes, info: bytes) -> bytes:
        """Seal a short secret to this key's holder (HPKE, RFC 9180, base mode), bound to some context."""
        if self.kind is Kind.SIGN:
            raise SettingsError("nothing can be sealed to a signing key", remedy="use the sealing key")
        return _suite(self.kind).encrypt(secret, self._sealing, info)

    @cached_property
    def _sealing(self) -> X25519PublicKey | MLKEM768X25519PublicKey:
        ordinary = X25519PublicKey.from_public_bytes(self.raw[-32:])
        if self.kind is Kind.SEAL:
            return ordinary
        return MLKEM768X25519PublicKey(MLKEM768PublicKey.from_public_bytes(self.raw[:-32]), ordinary)

    def row(self) -> dict[str, Any]:
        """The key as JSON."""
        raw = base64.b64encode(self.raw).decode()
        return {"kind": self.kind.value, "public": raw, "since": self.since, "until": self.until}

    @classmethod
    def read(cls, row: Any) -> Self:
        """A key from JSON."""
        try:
            since, until = row["since"], row["until"]
            if not (isinstance(since, str) and isinstance(until, str)):
                raise TypeError
            return cls(Kind(row["kind"]), base64.b64decode(row["public"], validate=True), since, until)
        except (KeyError, TypeError, ValueError):
            raise Denied(Code.MALFORMED, "this is not a public key") from None


@dataclass(frozen=True)
class PrivateKey:
    """The half of a key that only its holder has."""

    public: PublicKey
    secret: bytes

    @classmethod
    def new(cls, kind: Kind, draw: Draw, since: str) -> Self:
        """Make a key from random bytes."""
        return cls.of(kind, draw(_SECRET_BYTES[kind]), since)

    @classmethod
    def of(cls, kind: Kind, secret: bytes, since: str, until: str = "") -> Self:
        """The key that belongs to its secret bytes (for a hybrid key the ML-KEM seed, then the X25519 key)."""
        if len(secret) != _SECRET_BYTES[kind]:
            raise SettingsError(f"a secret of kind {kind} has another length", remedy="restore the key file")
        if kind is Kind.SIGN:
            raw = Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        else:
            raw = X25519PrivateKey.from_private_bytes(secret[-32:]).public_key().public_bytes_raw()
        if kind is Kind.HYBRID:
            raw = MLKEM768PrivateKey.from_seed_bytes(secret[:64]).public_key().public_bytes_raw() + raw
        return cls(PublicKey(kind, raw, since, until), secret)

    @property
    def id(self) -> str:
        """The key's fingerprint."""
        return self.public.id

    def sign(self, data: bytes) -> bytes:
        """The Ed25519 signature of some bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(data)

    def unwrap(self, wrapped: bytes, info: bytes) -> bytes:
        """Open a short secret that was sealed to this key, in the same context."""
        try:
            return _suite(self.public.kind).decrypt(wrapped, self._opening, info)
        except (InvalidTag, ValueError):
            raise Denied(Code.TAMPERED, "this was not sealed to this key in this context") from None

    @cached_property
    def _opening(self) -> X25519PrivateKey | MLKEM768X25519PrivateKey:
        ordinary = X25519PrivateKey.from_private_bytes(self.secret[-32:])
        if self.public.kind is Kind.SEAL:
            return ordinary
        return MLKEM768X25519PrivateKey(MLKEM768PrivateKey.from_seed_bytes(self.secret[:64]), ordinary)

    def __repr__(self) -> str:
        return f"PrivateKey({self.id})"


def verifier(keys: list[PublicKey]) -> Callable[[str], Verify | None]:
    """A look-up of signature checks among some keys, for :func:`abaton.governance.statements.check`."""
    known = {key.id: key.verify for key in keys if key.kind is Kind.SIGN}
    return known.get
