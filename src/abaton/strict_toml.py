"""Strict TOML parser: limits are checked before parsing, and errors have line and column but no content.

``tomllib`` keeps every prefix of a dotted key, so memory grows with the square of its parts: a key of 40,000 parts in
80 kB takes more than 6 GB. The scanner here reads the text once and stops at what is too large. It follows the strings
and comments of TOML, so up to the first syntax error it sees the same keys as ``tomllib``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from abaton.errors import SettingsError

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Size limit of a document; a study with its protocol as PDF is far below."""
MAX_LEVELS = 64
"""Limit of nested tables and lists, including the parts of dotted keys and headers."""
MAX_KEY_LENGTH = 200
"""Limit of one part of a key, in characters."""
MAX_VALUES = 100_000
"""Limit of keys, parts of keys, list items and tables."""

STRING_PATTERN = "|".join(
    (
        r'"""(?:[^"\\]++|\\[\s\S]|"(?!""))*+"{3,5}',
        r"'{3}(?:[^']++|'(?!''))*+'{3,5}",
        r'"(?:[^"\\\n]++|\\.)*+"',
        r"'[^'\n]*+'",
    )
)
"""Regular expression of a TOML string of any kind; it never goes back, so it takes no memory per character."""
_TOKEN = re.compile(
    rf"(?P<name>{STRING_PATTERN}|[^\s\"'#\[\]{{}},=.]++)"
    r"|(?P<end>(?:#[^\n]*+)?\n(?:\s++|#[^\n]*+)*+)|#[^\n]*+|(?P<sign>[\[\]{},=.])"
)
# Messages of tomllib that contain a key, and what replaces them.
_KEY_MESSAGES = (
    (re.compile("Cannot declare .* twice"), "a table is declared twice"),
    (re.compile("Cannot mutate immutable namespace .*"), "a table is extended that is complete"),
    (re.compile("Duplicate inline table key .*"), "an inline table has a key twice"),
)


class StrictTomlError(SettingsError):
    """Text is not TOML or exceeds a limit; `line` and `column` start at 1, and `column` is None if unknown."""

    def __init__(self, what: str, *, where: str, remedy: str, line: int, column: int | None = None) -> None:
        super().__init__(what, where=f"{where}, line {line}", remedy=remedy)
        self.line, self.column = line, column


def parse_toml_table(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML text whose size, nesting, keys and number of values are within the limits.

    Raises:
        StrictTomlError: It is malformed or exceeds a limit; the message contains nothing of the text.

    >>> parse_toml_table("a.b = 1", "a.toml")
    {'a': {'b': 1}}
    """
    _check_limits(text, file)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, remedy, line, column = *_syntax_message(error), *_syntax_position(error, text)
    except (ValueError, RecursionError):  # the limit of Python on the digits of an integer
        what, remedy, line, column = "the TOML contains a number with too many digits", "shorten it", 1, None
    raise StrictTomlError(what, where=file, remedy=remedy, line=line, column=column)


def _syntax_message(error: tomllib.TOMLDecodeError) -> tuple[str, str]:
    message = str(error).rpartition(" (at ")[0] or str(error)
    for pattern, replacement in _KEY_MESSAGES:
        if pattern.fullmatch(message):
            return f"this is not TOML: {replacement}", "correct the line"
    return f"this is not TOML: {message[:1].lower()}{message[1:]}", "correct the line"


def _syntax_position(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, int | None]:
    position = re.search(r"\(at line (\d+), column (\d+)\)$", str(error))
    return (int(position[1]), int(position[2])) if position else (text.count("\n") + 1, None)


def _check_limits(text: str, file: str) -> None:
    if len(text) > MAX_DOCUMENT_BYTES:
        remedy = f"use at most {MAX_DOCUMENT_BYTES >> 20} MiB"
        raise StrictTomlError("the document is too large", where=file, remedy=remedy, line=1)
    scan = _LimitScan()
    for token in _TOKEN.finditer(text):
        scan.read(token)
        if problem := scan.problem():
            what, remedy = problem
            line = text.count("\n", 0, token.start()) + 1
            raise StrictTomlError(what, where=file, remedy=remedy, line=line)


@dataclass(slots=True)
class _LimitScan:
    """State of the scan of a TOML text: parts of its header, of the enclosing keys, and of the current key."""

    values: int = 0
    header_parts: int = 0
    parts: int = 0
    enclosing: list[int] = field(default_factory=list)
    enclosing_parts: int = 0
    name_length: int = 0
    is_line_start: bool = True
    is_header: bool = False
    key_length: int = 0

    def read(self, token: re.Match[str]) -> None:
        kind = token.lastgroup
        if kind == "name":
            self.name_length, self.is_line_start = token.end() - token.start(), False
        elif kind == "end":
            self.name_length = 0
            if not self.enclosing or self.is_header:
                self.finish_line()
        elif kind == "sign":
            self.read_sign(token[0])

    def finish_line(self) -> None:
        if self.is_header:
            self.header_parts = self.parts
        self.enclosing.clear()
        self.enclosing_parts = self.parts = 0
        self.is_line_start, self.is_header = True, False

    def read_sign(self, sign: str) -> None:
        if self.is_line_start:
            self.is_header = sign == "["
            self.is_line_start = False
            self.header_parts = 0 if self.is_header else self.header_parts
        if sign in ".=" or (self.is_header and sign == "]"):
            self.key_length = self.name_length
            self.parts += 1 if self.name_length else 0
        self.name_length = 0
        self.values += sign not in "]}"
        if self.is_header:
            return
        if sign in "[{":
            self.enclosing.append(self.parts + 1)
            self.enclosing_parts += self.parts + 1
            self.parts = 0
        elif sign in "]}" and self.enclosing:
            self.enclosing_parts -= self.enclosing.pop()
            self.parts = 0
        elif sign == ",":
            self.parts = 0

    def problem(self) -> tuple[str, str] | None:
        if self.header_parts + self.enclosing_parts + self.parts > MAX_LEVELS:
            return "the TOML is nested too deeply", f"use at most {MAX_LEVELS} levels"
        if self.key_length > MAX_KEY_LENGTH:
            return "a key is too long", f"use at most {MAX_KEY_LENGTH} characters"
        if self.values > MAX_VALUES:
            return "the document has too many keys and values", f"use at most {MAX_VALUES:,}"
        return None
