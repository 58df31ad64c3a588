"""Key files: public keys for everybody, private keys encrypted with a passphrase and readable by their owner alone.

A private key file is JSON: ``format``, ``public`` (the ring), ``scrypt`` (salt and cost), ``nonce`` and
``sealed``: AES-256-GCM, under the key that scrypt makes of the passphrase, of the secrets; the public part and the
cost are authenticated with it, so nothing in the file can be exchanged.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from abaton.canonical import canonical
from abaton.errors import AbatonError, SettingsError
from abaton.files import replacing
from abaton.governance.keys import Draw, PrivateKey
from abaton.governance.rings import PublicRing, Ring

FORMAT = "abaton-private-keys/1"
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
        "format": FORMAT,
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
        if row["format"] != FORMAT or not 2 <= n <= _MOST_COST or n & (n - 1):
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
        return PublicRing.read(row["public"] if row.get("format") == FORMAT else row, trusted=trusted)
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
