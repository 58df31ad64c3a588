"""Strict JSON parser: text that two readers could understand differently is refused, with its line and column."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from abaton.errors import SettingsError

_MAX_DEPTH = 100


class StrictJsonError(SettingsError):
    """Text is not strict JSON; `line` and `column` start at 1 and are None if unknown."""

    def __init__(
        self, what: str, *, where: str, remedy: str, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.line, self.column = line, column


def parse_json_object(text: str, file: str) -> dict[str, Any]:
    """Parse one JSON object strictly: refuse duplicate keys and other ambiguous text, with line and column.

    Raises:
        StrictJsonError: It is malformed, ambiguous (a duplicate key, a number that is not finite) or too deeply nested.
    """
    too_deep = "the JSON is nested too deeply", f"use at most {_MAX_DEPTH} levels"
    if text.startswith("\ufeff"):
        _refuse(file, "the file begins with a byte order mark", "save it as UTF-8 without one", 1, 1)
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        _refuse(file, f"this is not JSON: {message}", "correct the line", error.lineno, error.colno)
    except _AmbiguousError as error:
        _refuse(file, str(error), "remove it")
    except RecursionError:
        _refuse(file, *too_deep)
    except ValueError:
        _refuse(file, "the JSON contains a number with too many digits", "shorten it")
    if not isinstance(content, dict):
        _refuse(file, "this is not a JSON object", "write one between { and }", 1, 1)
    if _depth(content) > _MAX_DEPTH:
        _refuse(file, *too_deep)
    return content


class _AmbiguousError(Exception):
    """Two readers could understand the text differently."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise _AmbiguousError(f"the key '{duplicate}' occurs twice in one object")
    return content


def _not_finite(name: str) -> NoReturn:
    raise _AmbiguousError(f"{name} is not a JSON number")


def _depth(content: Any) -> int:
    depth, level = 0, [content]
    while level:
        depth += 1
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
    return depth


def _refuse(
    file: str, what: str, remedy: str, line: int | None = None, column: int | None = None
) -> NoReturn:
    raise StrictJsonError(what, where=file, remedy=remedy, line=line, column=column)
