"""One way to write data as bytes, so that equal content has an equal fingerprint and can be signed.

The form is RFC 8785 (JSON Canonicalization Scheme), written by the library ``rfc8785``: no white space, object keys
sorted by their UTF-16 code units, the shortest escapes, numbers as ECMAScript writes them, UTF-8. Laws:

1. equal content gives equal bytes, whatever the order of keys and whether 65 was written as 65.0;
2. a JSON reader gets back what was written, numbers as 64-bit floating point;
3. what has no exact form in JSON (NaN, infinities, integers beyond 2^53, lone surrogates, keys that are not
   text) is refused, never approximated, and what it was is not repeated in the error.
"""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from abaton.errors import SettingsError


def canonical(data: Any) -> bytes:
    """Write data as the one sequence of bytes that stands for its content.

    >>> canonical({"b": [1.0, True, None], "a": "e"})
    b'{"a":"e","b":[1,true,null]}'
    """
    try:
        return rfc8785.dumps(data)
    except rfc8785.IntegerDomainError:
        what, remedy = "an integer beyond 2^53 is not kept exactly by JSON", "write it as text"
    except rfc8785.FloatDomainError:
        what, remedy = "a number that is not finite has no form in JSON", "leave it out"
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        what, remedy = "this has no form in JSON", "give whole text, numbers, and lists and objects of them"
    raise SettingsError(what, remedy=remedy)


def digest(data: Any) -> str:
    """The SHA-256 fingerprint of data's content, as 64 hexadecimal digits.

    >>> digest({"a": 1}) == digest({"a": 1.0})
    True
    """
    return hashlib.sha256(canonical(data)).hexdigest()
