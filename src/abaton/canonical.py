"""One way to write data as bytes, so that equal content has an equal fingerprint and can be signed.

The form is RFC 8785 (JSON Canonicalization Scheme): no white space, object keys sorted by their UTF-16 code
units, the shortest escapes, numbers as ECMAScript writes them, UTF-8. Laws:

1. equal content gives equal bytes, whatever the order of keys and whether 65 was written as 65.0;
2. a JSON reader gets back what was written, numbers as 64-bit floating point;
3. what has no exact form in JSON (NaN, infinities, integers beyond 2^53, lone surrogates, keys that are not
   text) is refused, never approximated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from abaton.errors import SettingsError

_EXACT = 2**53 - 1  # the largest integer that every JSON reader keeps
_quote = json.encoder.encode_basestring  # escapes exactly what RFC 8785 section 3.2.2.2 asks for


def canonical(data: Any) -> bytes:
    """Write data as the one sequence of bytes that stands for its content.

    >>> canonical({"b": [1.0, True, None], "a": "e"})
    b'{"a":"e","b":[1,true,null]}'
    """
    try:
        return "".join(_parts(data)).encode()
    except UnicodeEncodeError:
        raise SettingsError("text with half a character cannot be fingerprinted", remedy="mend it") from None


def digest(data: Any) -> str:
    """The SHA-256 fingerprint of data's content, as 64 hexadecimal digits.

    >>> digest({"a": 1}) == digest({"a": 1.0})
    True
    """
    return hashlib.sha256(canonical(data)).hexdigest()


def _parts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield _quote(data)
    elif data is None:
        yield "null"
    elif isinstance(data, bool):
        yield "true" if data else "false"
    elif isinstance(data, int | float):
        yield _number(data)
    elif isinstance(data, Mapping):
        yield "{"
        plain = all(type(key) is str and key.isascii() for key in data)  # these sort as their code units do
        for i, key in enumerate(sorted(data) if plain else sorted(data, key=_order)):
            yield f"{',' if i else ''}{_quote(key)}:"
            yield from _parts(data[key])
        yield "}"
    elif isinstance(data, list | tuple) and all(type(item) is str for item in data):
        yield f"[{','.join(map(_quote, data))}]"  # a hundred thousand tags are written in one go
    elif isinstance(data, list | tuple):
        yield "["
        for i, item in enumerate(data):
            if i:
                yield ","
            yield from _parts(item)
        yield "]"
    else:
        raise SettingsError(
            f"a {type(data).__name__} has no form in JSON", remedy="give text, numbers or lists"
        )


def _order(key: object) -> bytes:
    if not isinstance(key, str):
        raise SettingsError("a key that is not text has no form in JSON", remedy="give text as keys")
    return key.encode("utf-16-be", "surrogatepass")


def _number(number: float) -> str:
    """A number as ECMAScript writes it (RFC 8785 section 3.2.2.3)."""
    if isinstance(number, int):
        if abs(number) > _EXACT:
            raise SettingsError(
                "an integer beyond 2^53 is not kept exactly by JSON", remedy="write it as text"
            )
        return str(number)
    if not math.isfinite(number):
        raise SettingsError("a number that is not finite has no form in JSON", remedy="leave it out")
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    digits, point = _shortest(abs(number))
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _shortest(number: float) -> tuple[str, int]:
    """The shortest digits that read back as the number, and where the point stands: 0.digits x 10^point."""
    mantissa, _, power = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(digits))
    return digits.rstrip("0"), point
