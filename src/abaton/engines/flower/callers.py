"""Who asks at the gate: somebody who holds the key of a node that the centre has admitted, shown before any body.

Flower's nodes sign the time with their key in the head of every request. The SuperLink looks at that when it has read
the body; the gate looks first, by a list of keys that the centre keeps in a folder, a file for each node.

Invariants:
(1) a key that is not on the list admits nobody, and one that is taken off it admits nobody from the next request on;
(2) what is signed is no older than Flower itself takes it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from abaton.files import replacing

Headers = list[tuple[bytes, bytes]]

_OLDEST, _AHEAD = 305.0, 5.0
"""Seconds: what Flower's SuperLink takes."""
_LONGEST = 4096


def enter_key(folder: Path, node: int, public: bytes) -> None:
    """Put the public key of a node, as OpenSSH writes it, on a centre's list."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(folder / f"{node}.pem", mode=0o600) as begun:
        begun.write_bytes(_pem(serialization.load_ssh_public_key(public)))


def drop_key(folder: Path, node: int) -> None:
    """Take the key of a node off the list."""
    (folder / f"{node}.pem").unlink(missing_ok=True)


class Callers:
    """Those who may ask.

    Args:
        folder: The list of keys.
        now: The time.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder, self._now = folder, now
        self._seen: tuple[int, ...] = ()
        self._known: dict[bytes, ec.EllipticCurvePublicKey] = {}

    def admit(self, headers: Headers) -> bool:
        """Whether the headers of a request show the key of a node on the list."""
        told = dict(headers)
        try:
            named, signature = (
                base64.b64decode(told[name][:_LONGEST], validate=True)
                for name in (b"flwr-public-key", b"flwr-signature")
            )
            stamp = told[b"flwr-timestamp"].decode("ascii")
            age = (self._now() - datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            return False
        key = self._keys().get(named)
        if key is None or not -_AHEAD < age < _OLDEST:
            return False
        try:
            key.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def _keys(self) -> dict[bytes, ec.EllipticCurvePublicKey]:
        """The keys on the list, read anew when it has changed."""
        try:
            files = sorted(self._folder.glob("*.pem"))
            seen = tuple(part for file in files for part in (file.stat().st_ino, file.stat().st_mtime_ns))
            if seen != self._seen:
                found = [file.read_bytes() for file in files]
                self._known = {text: _key(text) for text in found}
                self._seen = seen
        except FileNotFoundError:  # taken off the list just now: the next request sees it
            return {}
        return self._known


def _pem(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key(text: bytes) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(text)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key
