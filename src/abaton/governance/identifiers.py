"""Registry pseudonyms, identifiers and digests.

A registry pseudonym is HMAC-SHA-256 over purpose and parts, truncated to 130 bits and written in base32 (26
characters). One subject has one pseudonym per registry; registries with different keys cannot be matched.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from abaton.errors import SettingsError

_PSEUDONYM = re.compile(r"[A-Z2-7]{26}\Z")
_NAME = re.compile(r"[!-~]{1,200}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def registry_pseudonym(key: bytes, purpose: str, *parts: str) -> str:
    """Return the registry pseudonym of `parts` under a key; parts are length-prefixed, so lists never collide.

    >>> key = b"k" * 32
    >>> registry_pseudonym(key, "subject", "heart", "4711") == registry_pseudonym(key, "subject", "heart4", "711")
    False
    """
    if len(key) < 32:
        raise SettingsError(
            f"a registry key has {len(key)} bytes, not 32 or more",
            remedy="create one with 'abaton records key'",
        )
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        mac.update(len(raw).to_bytes(8, "big") + raw)
    return base32_text(mac.digest())


def base32_text(raw: bytes) -> str:
    """Return the first 130 bits as 26 base32 characters, the form of a registry identifier.

    >>> base32_text(bytes(32))
    'AAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.b32encode(raw[:20]).decode()[:26]


def is_pseudonym(text: object) -> bool:
    """Return whether a text has the form of a registry pseudonym."""
    return isinstance(text, str) and _PSEUDONYM.match(text) is not None


def is_digest(text: object) -> bool:
    """Return whether an identifier has the form of a SHA-256 digest in hexadecimal."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def is_name(text: object) -> bool:
    """Return whether a text is a valid study or site identifier: 1 to 200 visible ASCII characters."""
    return isinstance(text, str) and _NAME.match(text) is not None
