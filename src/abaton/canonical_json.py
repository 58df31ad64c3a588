"""RFC 8785 canonical JSON and its SHA-256 digest, so that equal content has an equal digest and can be signed.

The library ``rfc8785`` writes the JSON Canonicalization Scheme: no white space, object keys sorted by UTF-16 code
units, shortest escapes, numbers as in ECMAScript, UTF-8. Properties:

1. equal content gives equal bytes, independent of the order of keys and of 65 or 65.0;
2. a JSON reader returns the same content, numbers as 64-bit floating point;
3. values without an exact JSON form (NaN, infinities, integers beyond 2^53, lone surrogates, keys that are not strings)
   raise an error that does not contain the value.
"""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from abaton.errors import SettingsError


def to_canonical_json(data: Any) -> bytes:
    """Encode data as canonical JSON.

    >>> to_canonical_json({"b": [1.0, True, None], "a": "e"})
    b'{"a":"e","b":[1,true,null]}'
    """
    try:
        return rfc8785.dumps(data)
    except rfc8785.IntegerDomainError:
        what, remedy = "an integer beyond 2^53 has no exact form in JSON", "write it as a string"
    except rfc8785.FloatDomainError:
        what, remedy = "a number that is not finite has no form in JSON", "remove it"
    except RecursionError:
        what, remedy = "a value is nested too deeply", "reduce the nesting"
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        what, remedy = "a value has no form in JSON", "use valid Unicode strings, numbers, lists and objects"
    raise SettingsError(what, remedy=remedy)


def canonical_digest(data: Any) -> str:
    """Return the SHA-256 digest of the canonical JSON, as 64 hexadecimal digits.

    >>> canonical_digest({"a": 1}) == canonical_digest({"a": 1.0})
    True
    """
    return hashlib.sha256(to_canonical_json(data)).hexdigest()
