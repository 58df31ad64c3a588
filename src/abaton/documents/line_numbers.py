"""Where in a TOML file each key stands, so that an error can name the line a person has to change.

``tomllib`` gives values without places. This scan walks the same text, after ``tomllib`` has accepted it, and
notes the line of every key: ``("criteria", 1, "low")`` is the key ``low`` of the second ``[[criteria]]``.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'[\s\S]*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.S)
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")
_PLAIN = re.compile(r"[^,\]}#\n]+")


def line_numbers(source: str) -> dict[KeyPath, int]:
    r"""The line on which every key, table and list item of a TOML text begins, counted from 1.

    >>> line_numbers('[study]\nid = "a"\n')[("study", "id")]
    2
    """
    scan = _Scan(source.replace("\r\n", "\n"))
    scan.run()
    return scan.lines


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of a key, or of the nearest part around it that is in the file; 1 if nothing is."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 1


@dataclass
class _Scan:
    text: str
    at: int = 0
    table: KeyPath = ()
    lines: dict[KeyPath, int] = field(default_factory=dict)
    lengths: dict[KeyPath, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ends = [match.start() for match in re.finditer("\n", self.text)]

    def run(self) -> None:
        self.skip(_SPACE)
        while self.at < len(self.text):
            if self.text.startswith("[[", self.at):
                self.header(2)
            elif self.text.startswith("[", self.at):
                self.header(1)
            else:
                self.pair(self.table)
            self.skip(_SPACE)

    def header(self, brackets: int) -> None:
        start = self.at
        self.at += brackets
        names = self.names()
        self.at += brackets
        path: KeyPath = ()
        for name in names[:-1]:
            path = self.last((*path, name))
            self.note(path, start)
        path = (*path, names[-1])
        if brackets == 2:
            self.note(path, start)
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            path = (*path, index)
        self.note(path, start)
        self.table = path

    def last(self, path: KeyPath) -> KeyPath:
        """A path through a list of tables means the table that was opened last."""
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def pair(self, within: KeyPath) -> None:
        start = self.at
        path = within
        for name in self.names():
            path = (*path, name)
            self.note(path, start)
        self.at += 1  # the sign '='
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        if self.text.startswith("[", self.at):
            self.items(path)
        elif self.text.startswith("{", self.at):
            self.inline(path)
        elif not self.skip(_STRING):
            self.skip(_PLAIN)

    def items(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        self.skip(_SPACE)
        while not self.text.startswith("]", self.at):
            self.note((*path, index), self.at)
            self.value((*path, index))
            index += 1
            self.separator()
        self.at += 1

    def inline(self, path: KeyPath) -> None:
        self.at += 1
        self.skip(_SPACE)
        while not self.text.startswith("}", self.at):
            self.pair(path)
            self.separator()
        self.at += 1

    def separator(self) -> None:
        self.skip(_SPACE)
        if self.text.startswith(",", self.at):
            self.at += 1
            self.skip(_SPACE)

    def names(self) -> list[str]:
        """The parts of a dotted key, with their quotes resolved by ``tomllib`` itself."""
        names: list[str] = []
        while True:
            self.skip(_BLANK)
            start = self.at
            self.skip(_KEY)
            raw = self.text[start : self.at]
            names.append(raw if raw[0] not in "\"'" else next(iter(tomllib.loads(f"{raw}=0"))))
            self.skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return names
            self.at += 1

    def skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        length = len(match.group()) if match else 0
        self.at += length
        return length

    def note(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, bisect_left(self.ends, at) + 1)
