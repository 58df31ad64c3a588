"""Strict JSON parser: text that two readers could understand differently is refused, with its line and column."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from abaton.errors import SettingsError

_MAX_DEPTH = 100
_MAX_KEY_LENGTH = 200
_MAX_VALUES = 100_000
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"(?P<key>\s*+:)?|[\[{\]},]', re.DOTALL)


class StrictJsonError(SettingsError):
    """Text is not strict JSON; `line` and `column` start at 1 and are None if unknown."""

    def __init__(
        self, what: str, *, where: str, remedy: str, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.line, self.column = line, column


def parse_json_object(text: str, file: str) -> dict[str, Any]:
    """Parse one JSON object strictly: refuse duplicate keys and other ambiguous text, with line and column.

    Nesting, length of keys and number of values are limited before parsing. No error contains anything of the text.

    Raises:
        StrictJsonError: It is malformed, ambiguous (a duplicate key, a number that is not finite) or exceeds a limit.
    """
    if text.startswith("\ufeff"):
        _refuse(file, "the file begins with a byte order mark", "save it as UTF-8 without one", 1, 1)
    _check_limits(text, file)
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        _refuse(file, f"this is not JSON: {message}", "correct the line", error.lineno, error.colno)
    except _AmbiguousError as error:
        _refuse(file, str(error), "remove it")
    except ValueError:
        _refuse(file, "the JSON contains a number with too many digits", "shorten it")
    if not isinstance(content, dict):
        _refuse(file, "this is not a JSON object", "write one between { and }", 1, 1)
    return content


class _AmbiguousError(Exception):
    """Two readers could understand the text differently."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise _AmbiguousError("a key occurs twice in one object")
    return content


def _not_finite(name: str) -> NoReturn:
    raise _AmbiguousError(f"{name} is not a JSON number")


def _check_limits(text: str, file: str) -> None:
    """Refuse a JSON text that is nested too deeply, or has too many values or a key that is too long."""
    depth = values = 0
    for token in _TOKEN.finditer(text):
        if token["key"]:
            if token.start("key") - token.start() - 2 > _MAX_KEY_LENGTH:
                _refuse_limit(text, token, file, "a key is too long", f"{_MAX_KEY_LENGTH} characters")
            continue
        sign = text[token.start()]
        values += sign in "[{,"
        depth += (sign in "[{") - (sign in "]}")
        if depth > _MAX_DEPTH:
            _refuse_limit(text, token, file, "the JSON is nested too deeply", f"{_MAX_DEPTH} levels")
        if values > _MAX_VALUES:
            _refuse_limit(text, token, file, "the JSON has too many values", f"{_MAX_VALUES:,}")


def _refuse_limit(text: str, token: re.Match[str], file: str, what: str, limit: str) -> NoReturn:
    line = text.count("\n", 0, token.start()) + 1
    _refuse(file, what, f"use at most {limit}", line, token.start() - text.rfind("\n", 0, token.start()))


def _refuse(
    file: str, what: str, remedy: str, line: int | None = None, column: int | None = None
) -> NoReturn:
    raise StrictJsonError(what, where=file, remedy=remedy, line=line, column=column)
