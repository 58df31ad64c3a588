"""Line numbers of the keys of a TOML text.

``tomllib`` returns values without positions. This scanner reads the same text after ``tomllib`` has accepted it and
records the line of every key: ``("criteria", 1, "low")`` is the key ``low`` of the second ``[[criteria]]``.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from dataclasses import dataclass, field

from abaton.strict_toml import STRING_PATTERN

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_STRING = re.compile(STRING_PATTERN)
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")


def key_lines(source: str) -> dict[KeyPath, int]:
    r"""Return the line number on which every key, table and list item of a TOML text begins.

    >>> key_lines('[study]\nid = "a"\n')[("study", "id")]
    2
    """
    scan = _Scanner(source.replace("\r\n", "\n"))
    scan.run()
    return scan.lines


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line number of a TOML key or of its closest enclosing table; 1 if there is none."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 1


@dataclass
class _Scanner:
    text: str
    position: int = 0
    table: KeyPath = ()
    lines: dict[KeyPath, int] = field(default_factory=dict)
    lengths: dict[KeyPath, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.line_ends = [match.start() for match in re.finditer("\n", self.text)]

    def run(self) -> None:
        self.skip(_SPACE)
        while self.position < len(self.text):
            if self.text.startswith("[[", self.position):
                self.header(2)
            elif self.text.startswith("[", self.position):
                self.header(1)
            else:
                self.pair(self.table)
            self.skip(_SPACE)

    def header(self, brackets: int) -> None:
        start = self.position
        self.position += brackets
        names = self.names()
        self.position += brackets
        path: KeyPath = ()
        for name in names[:-1]:
            path = self.current_table((*path, name))
            self.record(path, start)
        path = (*path, names[-1])
        if brackets == 2:
            self.record(path, start)
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
        self.record(path, start)
        self.table = path

    def current_table(self, path: KeyPath) -> KeyPath:
        """Return the TOML table that the scanner opened last if the path names a list of tables."""
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def pair(self, parent: KeyPath) -> None:
        start = self.position
        path = parent
        for name in self.names():
            path = (*path, name)
            self.record(path, start)
        self.position += 1  # the sign '='
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        if self.text.startswith("[", self.position):
            self.items(path)
        elif self.text.startswith("{", self.position):
            self.inline(path)
        elif not self.skip(_STRING):
            self.skip(_BARE_VALUE)

    def items(self, path: KeyPath) -> None:
        self.position += 1
        index = 0
        self.skip(_SPACE)
        while not self.text.startswith("]", self.position):
            self.record((*path, index), self.position)
            self.value((*path, index))
            index += 1
            self.separator()
        self.position += 1

    def inline(self, path: KeyPath) -> None:
        self.position += 1
        self.skip(_SPACE)
        while not self.text.startswith("}", self.position):
            self.pair(path)
            self.separator()
        self.position += 1

    def separator(self) -> None:
        self.skip(_SPACE)
        if self.text.startswith(",", self.position):
            self.position += 1
            self.skip(_SPACE)

    def names(self) -> list[str]:
        """Scan a dotted TOML key and return its parts; quotes are resolved by ``tomllib``."""
        names: list[str] = []
        while True:
            self.skip(_BLANK)
            start = self.position
            self.skip(_KEY)
            raw = self.text[start : self.position]
            names.append(raw if raw[0] not in "\"'" else next(iter(tomllib.loads(f"{raw}=0"))))
            self.skip(_BLANK)
            if not self.text.startswith(".", self.position):
                return names
            self.position += 1

    def skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        length = len(match.group()) if match else 0
        self.position += length
        return length

    def record(self, path: KeyPath, position: int) -> None:
        self.lines.setdefault(path, bisect_left(self.line_ends, position) + 1)
