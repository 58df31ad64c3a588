"""Strict reading and writing of FHIR JSON.

Refused: anything that is not UTF-8, a byte order mark, XML, duplicate keys, numbers that are not finite, lone
surrogates, nesting deeper than 64, documents larger than the limit. The output bytes are the same without orjson.

Duplicate keys are detected by writing the parsed document again and comparing the bytes: equality up to white space
means that no key was lost. Otherwise (a number written differently) the key ends are counted on both sides, which is
exact unless a colon or quote is escaped; then the slow parser decides. The check costs a quarter of the parsing time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any, NoReturn

from abaton.errors import RefusedError

try:
    import orjson
except ImportError:  # a browser has the standard library only
    orjson = None  # type: ignore[assignment]

MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 64
_SMALL_BYTES = 8_192
_BESIDE_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[^\[\]{}"]+', re.DOTALL)


def parse(raw: bytes, *, where: str = "", limit: int = MAX_BYTES) -> dict[str, Any]:
    """Parse a FHIR JSON document strictly; refuse duplicate keys, invalid UTF-8 and deep nesting.

    >>> parse(b'{"resourceType": "Patient"}')
    {'resourceType': 'Patient'}
    """
    if len(raw) > limit:
        _refuse(f"the document is larger than {limit:,} bytes", where, "split it, or raise the limit")
    if raw[:1] != b"{":
        _check_start(raw, where)
    if (
        orjson is None and bracket_depth(raw) > 2 * MAX_DEPTH
    ):  # the recursive parser overflows a browser's stack
        _refuse_depth(where)
    document = _parse_fast(raw, where) if orjson is not None else _parse_slow(raw, where)
    if document.__class__ is not dict:
        _refuse("the document is not a JSON object", where, "give one FHIR resource per document")
    result: dict[str, Any] = document
    return result


def parse_all(texts: Sequence[bytes]) -> list[dict[str, Any] | RefusedError]:
    """Parse several FHIR JSON documents strictly; return the object or the refusal of each.

    Lines of a bulk export rarely contain white space, so all of them are written again at once. A complete object is
    never a prefix of another, so if the joined text is equal, every line is.

    >>> parse_all([b'{"a":1}', b'{"a":1,"a":2}'])[0]
    {'a': 1}
    """
    if orjson is not None and len(texts) > 1:
        try:
            documents = list(map(orjson.loads, texts))
            serialised, joined = orjson.dumps(_wrap_in_lists(documents, _WRAPPER_LISTS - 1)), b",".join(texts)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass
        else:
            same = len(serialised) == len(joined) + 2 * _WRAPPER_LISTS and serialised.startswith(
                joined, _WRAPPER_LISTS
            )
            if same and set(map(type, documents)) == {dict}:
                return documents
    return [_parse_or_error(raw) for raw in texts]


def _parse_or_error(raw: bytes) -> dict[str, Any] | RefusedError:
    try:
        return parse(raw)
    except RefusedError as error:
        return error


def _check_start(raw: bytes, where: str) -> None:
    if raw[:3] == b"\xef\xbb\xbf":
        _refuse("the document starts with a byte order mark", where, "save it as plain UTF-8")
    if raw[:64].lstrip().startswith(b"<"):
        _refuse(
            "the document is XML; only FHIR JSON is supported", where, "export the records as JSON or NDJSON"
        )


def bracket_depth(raw: bytes) -> int:
    """Return the nesting depth of the brackets of a JSON text, without parsing it.

    >>> bracket_depth(b'{"a": [{"b": "[[["}]}')
    3
    """
    brackets = _BESIDE_BRACKETS.sub(b"", raw)
    return max(accumulate(1 if sign in b"[{" else -1 for sign in brackets), default=0)


def check_depth(document: Any) -> None:
    """Refuse a parsed FHIR JSON document that is nested too deeply.

    >>> check_depth({"resourceType": "Patient"})
    """
    if _depth(document) > MAX_DEPTH:
        _refuse_depth("")


def dump(document: dict[str, Any]) -> bytes:
    """Return a FHIR document as compact JSON in UTF-8; the same bytes with and without orjson."""
    return orjson.dumps(document) if orjson is not None else _write(document).encode()


def _parse_fast(raw: bytes, where: str) -> Any:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "recursion" in str(error) or "nest" in str(error):
            _refuse_depth(where)
        _refuse_invalid(raw, where)
    serialised, wrappers = _serialise_bounded(document, raw, where)
    same = len(serialised) == len(raw) + 2 * wrappers and serialised.startswith(raw, wrappers)
    if not same and not _same_keys(raw, serialised[wrappers : len(serialised) - wrappers]):
        _parse_slow(raw, where)
    return document


def _serialise_bounded(document: Any, raw: bytes, where: str) -> tuple[bytes, int]:
    """Write a JSON document inside lists, so that orjson's depth limit enforces ours; return their number, too."""
    if len(raw) < _SMALL_BYTES and raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return orjson.dumps(document), 0
    # orjson has its own depth limit. Inside (its limit - ours) lists, a document that it can write is within our
    # limit, so one serialisation checks both keys and nesting.
    try:
        return orjson.dumps(_wrap_in_lists(document, _WRAPPER_LISTS)), _WRAPPER_LISTS
    except orjson.JSONEncodeError:
        _refuse_depth(where)


def _wrap_in_lists(document: Any, lists: int) -> Any:
    for _ in range(lists):
        document = [document]
    return document


def _orjson_max_depth() -> int:
    """Return the largest number of nested JSON lists that orjson writes."""
    node: list[Any] = []
    for depth in range(1, 100_000):
        try:
            orjson.dumps(node)
        except orjson.JSONEncodeError:
            return depth - 1
        node = [node]
    raise RuntimeError("this orjson has no limit on nesting: use one that has")


_WRAPPER_LISTS = 0 if orjson is None else _orjson_max_depth() - MAX_DEPTH


def _same_keys(raw: bytes, serialised: bytes) -> bool:
    """Return whether JSON differs only in white space, number forms and escapes, so no key was lost."""
    dense, serialised_dense = raw.translate(None, b" \t\n\r"), serialised.translate(None, b" ")
    if dense == serialised_dense:
        return True
    if b"\\u002" in raw or b"\\u003" in raw:
        return False
    return dense.count(b'":') == serialised_dense.count(b'":')


def _parse_slow(raw: bytes, where: str) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        _refuse("the document is not valid UTF-8", where, "export it again as UTF-8")
    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique_keys(where),
            parse_constant=lambda _: _refuse("the document contains NaN or Infinity", where, "remove it"),
            parse_float=lambda digits: _finite(float(digits), where),
            parse_int=_parse_integer,
        )
    except json.JSONDecodeError as error:
        _refuse("the document is not valid JSON", f"{where} line {error.lineno}".strip(), "export it again")
    except RecursionError:
        _refuse_depth(where)
    if _depth(document) > MAX_DEPTH:
        _refuse_depth(where)
    if "\\u" in text and _SURROGATE.search(text):
        try:
            _write(document).encode()
        except UnicodeEncodeError:
            _refuse("the document contains a lone surrogate", where, "export it again as UTF-8")
    return document


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _unique_keys(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) != len(items):
            _refuse("an object has a duplicate key", where, "remove one of the values")
        return table

    return pairs


def _finite(number: float, where: str) -> float:
    if number in (float("inf"), float("-inf")):
        _refuse("the document contains a number that is not finite", where, "correct the number")
    return number


def _parse_integer(digits: str) -> int | float:
    # orjson reads integers beyond 64 bits as floats; do the same, so that both parsers give the same bytes.
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
    """Return a JSON number as orjson writes it: with one more decimal before the exponent than Python."""
    text = repr(number)
    if not text.endswith("e-05"):
        return text.replace("e-0", "e-")
    digits = text[:-4].replace(".", "").lstrip("-")
    return f"{'-' * (number < 0)}0.0000{digits}"


def _refuse_invalid(raw: bytes, where: str) -> NoReturn:
    _parse_slow(raw, where)
    _refuse("the document is not valid JSON", where, "export it again")


def _refuse_depth(where: str) -> NoReturn:
    _refuse(f"the document is nested more than {MAX_DEPTH} levels deep", where, "reduce the nesting")


def _refuse(what: str, where: str, remedy: str) -> NoReturn:
    raise RefusedError(what, where=where, remedy=remedy) from None
