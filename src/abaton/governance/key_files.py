"""Key files: passphrase encryption, reading and writing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from abaton.atomic_files import atomic_write
from abaton.canonical_json import to_canonical_json
from abaton.errors import AbatonError, SettingsError
from abaton.governance.keys import KeySet, PrivateKey, PublicKeySet, RandomBytes

FILE_FORMAT = "abaton-private-keys/1"


SCRYPT_COST = {"n": 2**17, "r": 8, "p": 1}


_MAX_COST = 2**20


_MAX_FILE_BYTES = 1 << 20


def encrypt_key_set(
    key_set: KeySet, passphrase: bytes, random_bytes: RandomBytes, *, n: int = SCRYPT_COST["n"]
) -> bytes:
    """Encrypt a key set with a passphrase and return the content of a private key file."""
    if len(passphrase) < 8:
        raise SettingsError(
            f"the passphrase has {len(passphrase)} bytes, fewer than 8",
            remedy="use at least 8 characters, preferably a sentence",
        )
    salt, nonce = random_bytes(16), random_bytes(12)
    header = {
        "format": FILE_FORMAT,
        "public": key_set.public.row(),
        "scrypt": {**SCRYPT_COST, "n": n, "salt": base64.b64encode(salt).decode()},
    }
    secrets = {secret.id: base64.b64encode(secret.secret).decode() for secret in key_set.secrets}
    sealed = AESGCM(_derive_key(passphrase, salt, n)).encrypt(
        nonce, to_canonical_json(secrets), to_canonical_json(header)
    )
    body = {"nonce": base64.b64encode(nonce).decode(), "sealed": base64.b64encode(sealed).decode()}
    return (json.dumps({**header, **body}, indent=2) + "\n").encode()


def decrypt_key_set(content: bytes, passphrase: bytes, *, where: str = "") -> KeySet:
    """Decrypt the key set of a private key file; a wrong passphrase or a changed file is refused."""
    row = _parse(content, where)
    try:
        n, salt = int(row["scrypt"]["n"]), base64.b64decode(row["scrypt"]["salt"])
        if row["format"] != FILE_FORMAT or not 2 <= n <= _MAX_COST or n & (n - 1):
            raise ValueError
        header = {key: row[key] for key in ("format", "public", "scrypt")}
        cipher = AESGCM(_derive_key(passphrase, salt, n))
        nonce, sealed = base64.b64decode(row["nonce"]), base64.b64decode(row["sealed"])
        secrets = json.loads(cipher.decrypt(nonce, sealed, to_canonical_json(header)))
        public = PublicKeySet.read(row["public"])
        keys = [(public.key(name), base64.b64decode(raw)) for name, raw in sorted(secrets.items())]
        return KeySet(public, tuple(PrivateKey.of(k.kind, raw, k.since, k.until) for k, raw in keys if k))
    except InvalidTag:
        raise SettingsError(
            "the passphrase is wrong or the key file was changed",
            where=where,
            remedy="check the passphrase, or restore the file",
        ) from None
    except (KeyError, TypeError, ValueError):
        raise _format_error(where) from None


def read_public(path: Path, *, trusted: str = "") -> PublicKeySet:
    """Return the public keys of a public or private key file."""
    row = _parse(_read(path), str(path))
    try:
        return PublicKeySet.read(row["public"] if row.get("format") == FILE_FORMAT else row, trusted=trusted)
    except (KeyError, AttributeError):
        raise _format_error(str(path)) from None


def read_key_set(path: Path, passphrase: bytes) -> KeySet:
    """Return the keys of a private key file that is readable by its owner only."""
    content = _read(path)
    if path.stat().st_mode & 0o077:
        raise SettingsError(
            "the private key file is readable by other users",
            where=str(path),
            remedy=f"run 'chmod 600 {path.name}'",
        )
    return decrypt_key_set(content, passphrase, where=str(path))


def write_key_set(path: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a private key file atomically with mode 0600."""
    _write(path, content, 0o600, replace=replace)


def write_public(path: Path, key_set: PublicKeySet, *, replace: bool = False) -> None:
    """Write a public key file atomically."""
    _write(path, (json.dumps(key_set.row(), indent=2) + "\n").encode(), 0o644, replace=replace)


def _write(path: Path, content: bytes, mode: int, *, replace: bool) -> None:
    if path.exists() and not replace:
        raise SettingsError("the file exists", where=str(path), remedy="choose another path")
    try:
        with atomic_write(path, mode=mode) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise SettingsError(
            "the key file could not be written",
            where=str(path),
            remedy=error.strerror or "choose another path",
        ) from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise SettingsError(
            "the key file could not be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        raise _format_error(where) from None
    if not isinstance(row, dict):
        raise _format_error(where)
    return row


def _format_error(where: str) -> AbatonError:
    return SettingsError(
        "the file is not a key file", where=where, remedy="create one with 'abaton keys new'"
    )


def _derive_key(passphrase: bytes, salt: bytes, n: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=n, r=SCRYPT_COST["r"], p=SCRYPT_COST["p"]).derive(passphrase)
