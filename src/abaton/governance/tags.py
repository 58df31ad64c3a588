"""Tags: names for people that say nothing to those who do not hold the key.

A tag is HMAC-SHA-256(key, purpose and parts), cut to 130 bits and written as 26 letters and digits. The same person
has the same tag in one registry, and two registries with different keys cannot be matched.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from abaton.errors import SettingsError

_TAG = re.compile(r"[A-Z2-7]{26}\Z")
_NAME = re.compile(r"[!-~]{1,200}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def tag(key: bytes, purpose: str, *parts: str) -> str:
    """The tag of something under a key; every part counts with its length, so no two lists of parts run together.

    >>> tag(b"k" * 32, "subject", "heart", "4711") == tag(b"k" * 32, "subject", "heart4", "711")
    False
    """
    if len(key) < 32:
        raise SettingsError(
            "a key for tags needs 32 random bytes", remedy="make one with 'abaton records key'"
        )
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose, *parts):
        raw = part.encode("utf-8", "surrogatepass")
        made.update(len(raw).to_bytes(8, "big") + raw)
    return letters(made.digest())


def letters(raw: bytes) -> str:
    """The first 130 bits as 26 letters and digits (base32).

    >>> letters(bytes(32))
    'AAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.b32encode(raw[:20]).decode()[:26]


def is_tag(text: object) -> bool:
    """Whether something has the form of a tag."""
    return isinstance(text, str) and _TAG.match(text) is not None


def is_digest(text: object) -> bool:
    """Whether something has the form of a SHA-256 fingerprint."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def is_name(text: object) -> bool:
    """Whether something can be the identifier of a study or a site: 1 to 200 visible ASCII characters."""
    return isinstance(text, str) and _NAME.match(text) is not None
