"""Rings of keys: those in use, the older ones, and the signed story of how one followed the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from abaton.errors import SettingsError
from abaton.governance.keys import Draw, Kind, PrivateKey, PublicKey, verifier
from abaton.governance.refusals import Code, Denied
from abaton.governance.statements import Statement, check, state
from abaton.governance.tags import is_name

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
            raise Denied(Code.UNKNOWN_KEY, "it is sealed to a key that is not ours", where=self.name)
        if found.until and found.until < since:
            raise Denied(Code.RETIRED_KEY, "it is sealed to a key that is no longer taken", where=self.name)
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
            raise Denied(Code.MALFORMED, "these are not somebody's public keys") from None
        if trusted and all(key.id != trusted for key in ring.keys):
            raise Denied(
                Code.FORGED, "these keys do not follow from the one that is trusted", where=ring.name
            )
        return ring

    def _check(self) -> None:
        signers = [key for key in self.keys if key.kind is Kind.SIGN]
        if len({key.id for key in self.keys}) < len(self.keys) or self.sealing.until or self.signing.until:
            raise TypeError
        if len(signers) != len(self.rotations) + 1 or len(self.keys) != 2 * len(signers):
            raise Denied(Code.FORGED, "a change of keys is not told by a statement", where=self.name)
        for before, after, told in zip(signers, signers[1:], self.rotations, strict=False):
            body = check(told, ROTATION, verifier([before]))
            if check(body.get("after"), ROTATION, verifier([after])) != _change(self, before, after):
                raise Denied(Code.FORGED, "a change of keys is not the one that was signed", where=self.name)
            if before.until != after.since:
                raise Denied(Code.FORGED, "an old key claims to be in use", where=self.name)


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
            raise Denied(Code.UNKNOWN_KEY, "it is sealed to a key that is not ours", where=self.public.name)
        return self._secret(found)

    def _secret(self, key: PublicKey) -> PrivateKey:
        for secret in self.secrets:
            if secret.id == key.id:
                return secret
        raise Denied(Code.UNKNOWN_KEY, "the secret of this key is not in this file", where=self.public.name)

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
