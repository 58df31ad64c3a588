"""Keys: an Ed25519 pair to sign and an X25519 pair to be sealed to, in a ring that remembers older ones.

A ring belongs to somebody (a site, a research centre, a data controller). Its newest keys are in use; older sealing
keys stay, only to open what was sealed to them. Every change is told in a statement signed by the key before and the
key after, so that whoever trusted the first key can follow to the newest.

Public keys are in a file for everybody; private keys are encrypted with a passphrase and readable by their owner alone.
A private key file is JSON: ``format``, ``public`` (the ring), ``scrypt`` (salt and cost), ``nonce`` and
``sealed``: AES-256-GCM, under the key that scrypt makes of the passphrase, of the secrets; the public part and the
cost are authenticated with it, so nothing in the file can be exchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from abaton.canonical_json import canonical
from abaton.errors import AbatonError, SettingsError
from abaton.atomic_files import replacing
from abaton.governance.signed_statements import Statement, Verify, check, state
from abaton.governance.identifiers import Denied, RefusalCode, is_name, letters

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


_PRIME = 2**255 - 19
_CURVE = -121665 * pow(121666, -1, _PRIME) % _PRIME  # the d of edwards25519, RFC 8032


def _proves_nothing(raw: bytes) -> bool:
    """Whether a public key is one of the few points of small order: some signatures without a secret hold under those.

    Such a point is 0 or itself its inverse (y is 0, 1 or -1), or twice it has a y of 0, which is an equation in y.
    """
    y = int.from_bytes(raw, "little") % 2**255
    square = y * y
    return y * (square - 1) * (_CURVE * square * square + 2 * square - 1) % _PRIME == 0


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
            raise Denied(RefusalCode.MALFORMED, f"a public key of kind {self.kind} has another length")
        if self.kind is Kind.SIGN and _proves_nothing(self.raw):
            raise Denied(RefusalCode.MALFORMED, "a public key under which anybody can sign")

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
            raise Denied(RefusalCode.MALFORMED, "this is not a public key") from None


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
            raise Denied(RefusalCode.TAMPERED, "this was not sealed to this key in this context") from None

    @cached_property
    def _opening(self) -> X25519PrivateKey | MLKEM768X25519PrivateKey:
        ordinary = X25519PrivateKey.from_private_bytes(self.secret[-32:])
        if self.public.kind is Kind.SEAL:
            return ordinary
        return MLKEM768X25519PrivateKey(MLKEM768PrivateKey.from_seed_bytes(self.secret[:64]), ordinary)

    def __repr__(self) -> str:
        return f"PrivateKey({self.id})"


def verifier(keys: list[PublicKey]) -> Callable[[str], Verify | None]:
    """A look-up of signature checks among some keys, for :func:`abaton.governance.signed_statements.check`."""
    known = {key.id: key.verify for key in keys if key.kind is Kind.SIGN}
    return known.get


ROTATION = "key-rotation"
FORMAT = "abaton-keys/1"


@dataclass(frozen=True, slots=True)
class PublicRing:
    """Somebody's public keys, the newest last, and the statements that lead from the first to the newest."""

    name: str
    keys: tuple[PublicKey, ...]
    rotations: tuple[Statement, ...] = ()

    @property
    def signing(self) -> PublicKey:
        """The signing key in use."""
        return self._in_use({Kind.SIGN})

    @property
    def sealing(self) -> PublicKey:
        """The key to seal to now."""
        return self._in_use({Kind.SEAL, Kind.HYBRID})

    def _in_use(self, kinds: set[Kind]) -> PublicKey:
        return next(key for key in reversed(self.keys) if key.kind in kinds and not key.until)

    def key(self, key_id: str) -> PublicKey | None:
        """A key by its fingerprint."""
        return next((key for key in self.keys if key.id == key_id), None)

    def accepts(self, key_id: str, since: str) -> PublicKey:
        """The sealing key with a fingerprint, if it is in use or was until some moment; older ones are refused.

        An attacker who has an old private key gains nothing by having people seal to it: what arrives for a
        key that was retired before ``since`` is not taken.
        """
        found = self.key(key_id)
        if found is None or found.kind is Kind.SIGN:
            raise Denied(RefusalCode.UNKNOWN_KEY, "it is sealed to a key that is not ours", where=self.name)
        if found.until and found.until < since:
            raise Denied(
                RefusalCode.RETIRED_KEY, "it is sealed to a key that is no longer taken", where=self.name
            )
        return found

    def row(self) -> dict[str, Any]:
        """The ring as JSON, to be given to anybody."""
        keys = [key.row() for key in self.keys]
        return {"format": FORMAT, "name": self.name, "keys": keys, "rotations": list(self.rotations)}

    @classmethod
    def read(cls, row: Any, *, trusted: str = "") -> Self:
        """A ring from JSON, checked from its first key to its newest.

        Args:
            row: What was given.
            trusted: The fingerprint of a signing key that is known already and must be among its keys.
        """
        try:
            if row["format"] != FORMAT or not is_name(row["name"]) or not isinstance(row["rotations"], list):
                raise TypeError
            ring = cls(row["name"], tuple(map(PublicKey.read, row["keys"])), tuple(row["rotations"]))
            ring._check()
        except (KeyError, TypeError, StopIteration):
            raise Denied(RefusalCode.MALFORMED, "these are not somebody's public keys") from None
        if trusted and all(key.id != trusted for key in ring.keys):
            raise Denied(
                RefusalCode.FORGED, "these keys do not follow from the one that is trusted", where=ring.name
            )
        return ring

    def _check(self) -> None:
        signers = [key for key in self.keys if key.kind is Kind.SIGN]
        if len({key.id for key in self.keys}) < len(self.keys) or self.sealing.until or self.signing.until:
            raise TypeError
        if len(signers) != len(self.rotations) + 1 or len(self.keys) != 2 * len(signers):
            raise Denied(RefusalCode.FORGED, "a change of keys is not told by a statement", where=self.name)
        for before, after, told in zip(signers, signers[1:], self.rotations, strict=False):
            body = check(told, ROTATION, verifier([before]))
            if check(body.get("after"), ROTATION, verifier([after])) != _change(self, before, after):
                raise Denied(
                    RefusalCode.FORGED, "a change of keys is not the one that was signed", where=self.name
                )
            if before.until != after.since:
                raise Denied(RefusalCode.FORGED, "an old key claims to be in use", where=self.name)


def _change(ring: PublicRing, before: PublicKey, after: PublicKey) -> dict[str, Any]:
    """What a change of keys says: which keys came, after which."""
    new = [replace(key, until="").row() for key in ring.keys if key.since == after.since]
    return {"name": ring.name, "before": before.id, "keys": new}


@dataclass(frozen=True, slots=True)
class Ring:
    """Somebody's keys with their secrets."""

    public: PublicRing
    secrets: tuple[PrivateKey, ...]

    @classmethod
    def new(cls, name: str, draw: Draw, when: str, *, hybrid: bool = False) -> Self:
        """Make the first keys.

        Args:
            name: Whose keys they are.
            draw: A source of random bytes.
            when: The time now.
            hybrid: Whether sealing also withstands a quantum computer (X25519 with ML-KEM-768).

        >>> import secrets
        >>> Ring.new("site-a", secrets.token_bytes, "2026-01-01T00:00:00Z").public.signing.id[:8]
        'ed25519:'
        """
        if not is_name(name):
            raise SettingsError("a name of keys is 1 to 200 visible characters", remedy="choose another name")
        keys = _pair(draw, when, hybrid=hybrid)
        return cls(PublicRing(name, tuple(key.public for key in keys)), keys)

    @property
    def signing(self) -> PrivateKey:
        """The signing key in use."""
        return self._secret(self.public.signing)

    def opening(self, key_id: str) -> PrivateKey:
        """The secret of a sealing key, old or new."""
        found = self.public.key(key_id)
        if found is None or found.kind is Kind.SIGN:
            raise Denied(
                RefusalCode.UNKNOWN_KEY, "it is sealed to a key that is not ours", where=self.public.name
            )
        return self._secret(found)

    def _secret(self, key: PublicKey) -> PrivateKey:
        for secret in self.secrets:
            if secret.id == key.id:
                return secret
        raise Denied(
            RefusalCode.UNKNOWN_KEY, "the secret of this key is not in this file", where=self.public.name
        )

    def signing_only(self) -> Self:
        """The same keys without the secrets that open anything: for a service that only signs."""
        return type(self)(self.public, (self.signing,))

    def rotated(self, draw: Draw, when: str, *, hybrid: bool = False) -> Self:
        """New keys in use, the old sealing keys kept for opening, and the change signed by both signing keys."""
        if when <= self.public.signing.since:
            raise SettingsError("new keys cannot be older than those in use", remedy="check the clock")
        if self.public.sealing.kind is Kind.HYBRID and not hybrid:
            raise SettingsError("new keys would be weaker than those in use", remedy="keep --hybrid")
        before, pair = self.signing, _pair(draw, when, hybrid=hybrid)
        retired = tuple(key if key.until else replace(key, until=when) for key in self.public.keys)
        ring = PublicRing(self.public.name, (*retired, *(key.public for key in pair)), self.public.rotations)
        after = state(pair[0], ROTATION, _change(ring, before.public, pair[0].public))
        told = state(before, ROTATION, {"after": after})
        kept = tuple(
            PrivateKey(ring.key(secret.id) or secret.public, secret.secret)
            for secret in self.secrets
            if secret.public.kind is not Kind.SIGN  # an old signing key must never sign again
        )
        return type(self)(replace(ring, rotations=(*ring.rotations, told)), (*kept, *pair))

    def __repr__(self) -> str:
        return f"Ring({self.public.name})"


def _pair(draw: Draw, when: str, *, hybrid: bool) -> tuple[PrivateKey, PrivateKey]:
    seal = PrivateKey.new(Kind.HYBRID if hybrid else Kind.SEAL, draw, when)
    return PrivateKey.new(Kind.SIGN, draw, when), seal


FILE_FORMAT = "abaton-private-keys/1"
COST = {"n": 2**17, "r": 8, "p": 1}
_MOST_COST = 2**20
_LARGEST = 1 << 20


def lock(ring: Ring, passphrase: bytes, draw: Draw, *, n: int = COST["n"]) -> bytes:
    """A ring as the content of a key file."""
    if len(passphrase) < 8:
        raise SettingsError(
            "the passphrase is too short", remedy="use at least 8 characters, better a sentence"
        )
    salt, nonce = draw(16), draw(12)
    head = {
        "format": FILE_FORMAT,
        "public": ring.public.row(),
        "scrypt": {**COST, "n": n, "salt": base64.b64encode(salt).decode()},
    }
    secrets = {secret.id: base64.b64encode(secret.secret).decode() for secret in ring.secrets}
    sealed = AESGCM(_stretch(passphrase, salt, n)).encrypt(nonce, canonical(secrets), canonical(head))
    body = {"nonce": base64.b64encode(nonce).decode(), "sealed": base64.b64encode(sealed).decode()}
    return (json.dumps({**head, **body}, indent=2) + "\n").encode()


def unlock(content: bytes, passphrase: bytes, *, where: str = "") -> Ring:
    """The ring in a key file's content; a wrong passphrase or a changed file is refused."""
    row = _parse(content, where)
    try:
        n, salt = int(row["scrypt"]["n"]), base64.b64decode(row["scrypt"]["salt"])
        if row["format"] != FILE_FORMAT or not 2 <= n <= _MOST_COST or n & (n - 1):
            raise ValueError
        head = {key: row[key] for key in ("format", "public", "scrypt")}
        cipher = AESGCM(_stretch(passphrase, salt, n))
        nonce, sealed = base64.b64decode(row["nonce"]), base64.b64decode(row["sealed"])
        secrets = json.loads(cipher.decrypt(nonce, sealed, canonical(head)))
        public = PublicRing.read(row["public"])
        kept = [(public.key(name), base64.b64decode(raw)) for name, raw in sorted(secrets.items())]
        return Ring(public, tuple(PrivateKey.of(k.kind, raw, k.since, k.until) for k, raw in kept if k))
    except InvalidTag:
        raise SettingsError(
            "the key file does not open", where=where, remedy="check the passphrase, or restore the file"
        ) from None
    except (KeyError, TypeError, ValueError):
        raise _foreign(where) from None


def read_public(path: Path, *, trusted: str = "") -> PublicRing:
    """Somebody's public keys, from a public or a private key file."""
    row = _parse(_read(path), str(path))
    try:
        return PublicRing.read(row["public"] if row.get("format") == FILE_FORMAT else row, trusted=trusted)
    except (KeyError, AttributeError):
        raise _foreign(str(path)) from None


def read_ring(path: Path, passphrase: bytes) -> Ring:
    """The keys in a private key file that nobody else can read."""
    content = _read(path)
    if path.stat().st_mode & 0o077:
        raise SettingsError(
            "others can read the private keys", where=str(path), remedy=f"run 'chmod 600 {path.name}'"
        )
    return unlock(content, passphrase, where=str(path))


def write_ring(path: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a private key file with mode 0600, whole or not at all."""
    _write(path, content, 0o600, replace=replace)


def write_public(path: Path, ring: PublicRing, *, replace: bool = False) -> None:
    """Write a public key file."""
    _write(path, (json.dumps(ring.row(), indent=2) + "\n").encode(), 0o644, replace=replace)


def _write(path: Path, content: bytes, mode: int, *, replace: bool) -> None:
    if path.exists() and not replace:
        raise SettingsError("there is a file already", where=str(path), remedy="choose another place")
    try:
        with replacing(path, mode=mode) as begun:
            begun.write_bytes(content)
    except OSError as error:
        raise SettingsError(
            "the keys were not written", where=str(path), remedy=error.strerror or "choose another place"
        ) from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise SettingsError(
            "the keys cannot be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        raise _foreign(where) from None
    if not isinstance(row, dict):
        raise _foreign(where)
    return row


def _foreign(where: str) -> AbatonError:
    return SettingsError("this is not a key file", where=where, remedy="make one with 'abaton keys new'")


def _stretch(passphrase: bytes, salt: bytes, n: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=n, r=COST["r"], p=COST["p"]).derive(passphrase)
