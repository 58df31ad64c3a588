"""Reading and writing JSON without surprises: what is doubtful is refused whole.

Refused: anything that is not UTF-8, a byte order mark, XML, a key twice in one object, numbers that are not
finite, lone surrogates, nesting deeper than 64, documents larger than the limit. Without orjson the same
bytes come out.

A duplicate key hides from a fast parser, which keeps the last one. It cannot hide from this: what was parsed
is written again, and if that gives the same bytes but for spacing, nothing was lost. If not (a number written
otherwise), the ends of keys are counted on both sides, which is exact unless a colon or quote is written as
an escape; then the slow parser decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any, NoReturn

from abaton.errors import Refused

try:
    import orjson
except ImportError:  # a phone has the standard library only
    orjson = None  # type: ignore[assignment]

MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 64
_SMALL = 8_192
_BESIDE_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[^\[\]{}"]+', re.DOTALL)


def parse(raw: bytes, *, where: str = "", limit: int = MAX_BYTES) -> dict[str, Any]:
    """The object in a JSON document, or a refusal that says why.

    >>> parse(b'{"resourceType": "Patient"}')
    {'resourceType': 'Patient'}
    """
    if len(raw) > limit:
        _refuse(f"the document is larger than {limit:,} bytes", where, "split it, or raise the limit")
    if raw[:1] != b"{":
        _look_at_start(raw, where)
    if (
        orjson is None and nesting(raw) > 2 * MAX_DEPTH
    ):  # a browser's stack does not survive Python's own parser
        _too_deep(where)
    document = _fast(raw, where) if orjson is not None else _slow(raw, where)
    if document.__class__ is not dict:
        _refuse("the document is not a JSON object", where, "give one FHIR resource per document")
    made: dict[str, Any] = document
    return made


def parse_all(raws: Sequence[bytes]) -> list[dict[str, Any] | Refused]:
    """The object in each of several documents, or why it is refused.

    Lines of a bulk export are nearly always written without spaces: then all of them are written again at once. One
    complete object cannot be the beginning of another, so if the whole is the same, so is every line of it.

    >>> parse_all([b'{"a":1}', b'{"a":1,"a":2}'])[0]
    {'a': 1}
    """
    if orjson is not None and len(raws) > 1:
        try:
            made = list(map(orjson.loads, raws))
            again, whole = orjson.dumps(_around(made, _AROUND - 1)), b",".join(raws)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass
        else:
            same = len(again) == len(whole) + 2 * _AROUND and again.startswith(whole, _AROUND)
            if same and set(map(type, made)) == {dict}:
                return made
    return [_parsed(raw) for raw in raws]


def _parsed(raw: bytes) -> dict[str, Any] | Refused:
    try:
        return parse(raw)
    except Refused as error:
        return error


def _look_at_start(raw: bytes, where: str) -> None:
    if raw[:3] == b"\xef\xbb\xbf":
        _refuse("the document starts with a byte order mark", where, "save it as plain UTF-8")
    if raw[:64].lstrip().startswith(b"<"):
        _refuse("this is XML; only FHIR JSON is read", where, "export the records as JSON or NDJSON")


def nesting(raw: bytes) -> int:
    """How deeply the brackets of a JSON text are nested, found without walking into it.

    >>> nesting(b'{"a": [{"b": "[[["}]}')
    3
    """
    brackets = _BESIDE_BRACKETS.sub(b"", raw)
    return max(accumulate(1 if sign in b"[{" else -1 for sign in brackets), default=0)


def bounded(document: Any) -> None:
    """Refuse a document that is nested too deeply, before anything walks into it.

    >>> bounded({"resourceType": "Patient"})
    """
    if _depth(document) > MAX_DEPTH:
        _too_deep("")


def dump(document: dict[str, Any]) -> bytes:
    """A document as compact JSON in UTF-8; the same bytes with and without orjson."""
    return orjson.dumps(document) if orjson is not None else _write(document).encode()


def _fast(raw: bytes, where: str) -> Any:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "recursion" in str(error) or "nest" in str(error):
            _too_deep(where)
        _broken(raw, where)
    again, around = _again(document, raw, where)
    same = len(again) == len(raw) + 2 * around and again.startswith(raw, around)
    if not same and not _same_keys(raw, again[around : len(again) - around]):
        _slow(raw, where)
    return document


def _again(document: Any, raw: bytes, where: str) -> tuple[bytes, int]:
    """A document written again, and how many lists are around it; one that is nested too deeply is refused."""
    if len(raw) < _SMALL and raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return orjson.dumps(document), 0
    # orjson writes no deeper than a limit of its own: with that many lists around it less ours, what it
    # still writes is within ours. So one writing looks at keys and nesting both.
    try:
        return orjson.dumps(_around(document, _AROUND)), _AROUND
    except orjson.JSONEncodeError:
        _too_deep(where)


def _around(document: Any, lists: int) -> Any:
    for _ in range(lists):
        document = [document]
    return document


def _deepest() -> int:
    """How many lists within lists orjson writes at most."""
    node: list[Any] = []
    for depth in range(1, 100_000):
        try:
            orjson.dumps(node)
        except orjson.JSONEncodeError:
            return depth - 1
        node = [node]
    raise RuntimeError("this orjson has no limit on nesting: use one that has")


_AROUND = 0 if orjson is None else _deepest() - MAX_DEPTH


def _same_keys(raw: bytes, again: bytes) -> bool:
    """Whether nothing but spacing and the form of numbers and escapes differs, so that no key was lost."""
    dense, dense_again = raw.translate(None, b" \t\n\r"), again.translate(None, b" ")
    if dense == dense_again:
        return True
    if b"\\u002" in raw or b"\\u003" in raw:
        return False
    return dense.count(b'":') == dense_again.count(b'":')


def _slow(raw: bytes, where: str) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        _refuse("the document is not valid UTF-8", where, "export it again as UTF-8")
    try:
        document = json.loads(
            text,
            object_pairs_hook=_pairs(where),
            parse_constant=lambda _: _refuse("the document holds NaN or Infinity", where, "remove it"),
            parse_float=lambda digits: _finite(float(digits), where),
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        _refuse("the document is not valid JSON", f"{where} line {error.lineno}".strip(), "export it again")
    except RecursionError:
        _too_deep(where)
    if _depth(document) > MAX_DEPTH:
        _too_deep(where)
    if "\\u" in text and _SURROGATE.search(text):
        try:
            _write(document).encode()
        except UnicodeEncodeError:
            _refuse("the document holds half a surrogate pair", where, "export it again as UTF-8")
    return document


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _pairs(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) != len(items):
            _refuse("a key occurs twice in one object", where, "correct the document; it has two meanings")
        return made

    return pairs


def _finite(number: float, where: str) -> float:
    if number in (float("inf"), float("-inf")):
        _refuse("the document holds a number that is not finite", where, "correct the number")
    return number


def _whole(digits: str) -> int | float:
    # orjson reads whole numbers beyond 64 bits as floats: do the same, so that both write the same bytes.
    number = int(digits) if len(digits) < 25 else 1 << 70
    return number if -(1 << 63) <= number < 1 << 64 else float(digits)


def _depth(document: Any) -> int:
    level, depth = [document], 0
    while level and depth <= MAX_DEPTH:
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        depth += 1
    return depth


def _write(node: Any) -> str:
    if node.__class__ is str:
        return encode_basestring(node)
    if node.__class__ is dict:
        return "{" + ",".join([f"{encode_basestring(k)}:{_write(v)}" for k, v in node.items()]) + "}"
    if node.__class__ is list:
        return "[" + ",".join([_write(child) for child in node]) + "]"
    if node is True or node is False:
        return "true" if node else "false"
    if node.__class__ is float:
        return _decimal(node)
    return "null" if node is None else repr(node)


def _decimal(number: float) -> str:
    """A float as orjson writes it: one more place before the exponent than Python's own form."""
    text = repr(number)
    if not text.endswith("e-05"):
        return text.replace("e-0", "e-")
    digits = text[:-4].replace(".", "").lstrip("-")
    return f"{'-' * (number < 0)}0.0000{digits}"


def _broken(raw: bytes, where: str) -> NoReturn:
    _slow(raw, where)
    _refuse("the document is not valid JSON", where, "export it again")


def _too_deep(where: str) -> NoReturn:
    _refuse(f"the document is nested more than {MAX_DEPTH} levels deep", where, "no FHIR record needs that")


def _refuse(what: str, where: str, remedy: str) -> NoReturn:
    raise Refused(what, where=where, remedy=remedy) from None
