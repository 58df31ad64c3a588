"""JSON read strictly: what two readers could understand differently is refused, with its line and column."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from abaton.documents.problems import DocumentError, Problem

_DEEPEST = 100


def parse(text: str, file: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        DocumentError: It is malformed, ambiguous (a key twice, a number that is not finite) or too deep.
    """
    if text.startswith("\ufeff"):
        _refuse(file, "the file begins with a byte order mark", "save it as UTF-8 without one", 1, 1)
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        said = error.msg[:1].lower() + error.msg[1:]
        _refuse(file, f"this is not JSON: {said}", "correct the line", error.lineno, error.colno)
    except _Ambiguous as error:
        _refuse(file, str(error), "remove it")
    except RecursionError:
        _refuse(file, "the JSON is nested too deeply", f"{_DEEPEST} levels are the limit")
    except ValueError:
        _refuse(file, "the JSON holds a number with too many digits", "shorten it")
    if not isinstance(content, dict):
        _refuse(file, "this is not a JSON object", "write one between { and }", 1, 1)
    if _depth(content) > _DEEPEST:
        _refuse(file, "the JSON is nested too deeply", f"{_DEEPEST} levels are the limit")
    return content


class _Ambiguous(Exception):
    """Two readers could understand the text differently."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Ambiguous(
            f"the key '{next(n for n in names if names.count(n) > 1)}' stands twice in one object"
        )
    return made


def _not_finite(name: str) -> NoReturn:
    raise _Ambiguous(f"{name} is not a JSON number")


def _depth(content: Any) -> int:
    deepest, layer = 0, [content]
    while layer:
        deepest += 1
        layer = [
            item
            for value in layer
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
    return deepest


def _refuse(
    file: str, what: str, remedy: str, line: int | None = None, column: int | None = None
) -> NoReturn:
    raise DocumentError([Problem(file, "", what, remedy, line, column)])
