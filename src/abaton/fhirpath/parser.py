"""FHIRPath as text: words, then a tree. What is not understood is refused when a view is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Literal:
    """A value written into the expression; ``{}`` is no value."""

    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """An element of what stands before it."""

    target: Node | None
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function on what stands before it."""

    target: Node | None
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """One item of a collection, counted from 0."""

    target: Node
    at: Node


@dataclass(frozen=True, slots=True)
class Variable:
    """A constant of the view, or one of ``%rowIndex``, ``%resource``, ``%context``."""

    name: str


@dataclass(frozen=True, slots=True)
class This:
    """What the expression is asked about."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Two operands and the sign between them."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Negative:
    """The opposite of a number."""

    operand: Node


Node = Literal | Member | Call | Index | Variable | This | Operation | Negative


class Moment(str):
    """A date, a time or both, as FHIR writes them; compared by what it means, not by its letters."""

    __slots__ = ()


# From weakest to strongest binding (FHIRPath 2.0, section "Operator Precedence").
_LEVELS = (
    ("implies",),
    ("or", "xor"),
    ("and",),
    ("in", "contains"),
    ("=", "~", "!=", "!~"),
    ("<=", "<", ">=", ">"),
    ("|",),
    ("is", "as"),
    ("+", "-", "&"),
    ("*", "/", "div", "mod"),
)
_WORDS = re.compile(
    r"""\s*(?:
      (?P<moment>@T?\d[\d\-:.T]*(?:Z|[+-]\d\d:\d\d)?)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<text>'(?:\\.|[^'\\])*')
    | (?P<variable>%(?:[A-Za-z_]\w*|`[^`]+`|'[^']+'))
    | (?P<this>\$this\b)
    | (?P<name>[A-Za-z_]\w*|`(?:\\.|[^`\\])+`)
    | (?P<sign><=|>=|!=|!~|[~=<>+\-*/&|().,\[\]{}])
    )""",
    re.X,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_LONGEST = 10_000
_DEEPEST = 60


def read(text: str) -> Node:
    """Understand an expression.

    Raises:
        SettingsError: It is not FHIRPath, or uses a part of it that views do not have.

    >>> read("name.family")
    Member(target=Member(target=None, name='name'), name='family')
    """
    if len(text) > _LONGEST:
        refuse(text, "it is too long")
    reader = _Reader(text)
    node = reader.expression(0)
    if reader.kind:
        refuse(text, f"'{reader.word}' is not expected at character {reader.start + 1}")
    return node


def refuse(text: str, why: str) -> NoReturn:
    """Refuse an expression."""
    raise SettingsError(
        f"the path '{text[:200]}' is not understood: {why}", remedy="see the FHIRPath subset in docs/views.md"
    )


class _Reader:
    """Recursive descent over the words of one expression."""

    def __init__(self, text: str) -> None:
        self.text, self.end, self.depth = text, 0, 0
        self.step()

    def step(self) -> None:
        match = _WORDS.match(self.text, self.end)
        if match is None or match.lastgroup is None:
            if self.text[self.end :].strip():
                refuse(self.text, f"character {self.end + 1} begins no word")
            self.kind, self.word, self.start = "", "", self.end
            return
        self.kind, self.word = match.lastgroup, match.group(match.lastgroup)
        self.start, self.end = match.start(match.lastgroup), match.end()

    def take(self, word: str) -> bool:
        if self.kind == "sign" and self.word == word:
            self.step()
            return True
        return False

    def need(self, word: str) -> None:
        if not self.take(word):
            refuse(self.text, f"'{word}' is expected at character {self.start + 1}")

    def expression(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.expression(level + 1)
        while self.kind in ("sign", "name") and self.word in _LEVELS[level]:
            sign = self.word
            self.step()
            left = Operation(sign, left, self.expression(level + 1))
        return left

    def unary(self) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            refuse(self.text, "it is nested too deeply")
        if self.take("-"):
            made: Node = Negative(self.unary())
        elif self.take("+"):
            made = self.unary()
        else:
            made = self.chain()
        self.depth -= 1
        return made

    def chain(self) -> Node:
        node = self.term()
        while True:
            if self.take("."):
                node = self.step_into(node)
            elif self.take("["):
                node = Index(node, self.expression(0))
                self.need("]")
            else:
                return node

    def term(self) -> Node:
        kind, word = self.kind, self.word
        if kind == "name" and word not in ("true", "false"):
            return self.step_into(None)
        self.step()
        if kind == "name":
            return Literal((word == "true",))
        if kind == "number":
            return Literal((float(word) if "." in word else int(word),))
        if kind == "text":
            return Literal((_unquoted(word),))
        if kind == "moment":
            return Literal((Moment(word.removeprefix("@").removeprefix("T")),))
        if kind == "variable":
            return Variable(word[1:].strip("`'"))
        if kind == "this":
            return This()
        if kind == "sign" and word == "(":
            node = self.expression(0)
            self.need(")")
            return node
        if kind == "sign" and word == "{":
            self.need("}")
            return Literal(())
        refuse(self.text, f"'{word}' is not expected" if word else "it ends too early")

    def step_into(self, target: Node | None) -> Node:
        if self.kind == "this" and target is None:
            return self.term()
        if self.kind != "name":
            refuse(self.text, f"a name is expected at character {self.start + 1}")
        name = _unquoted(self.word) if self.word.startswith("`") else self.word
        self.step()
        if not self.take("("):
            return Member(target, name)
        arguments: list[Node] = []
        while not self.take(")"):
            if arguments:
                self.need(",")
            arguments.append(self.expression(0))
        return Call(target, name, tuple(arguments))


def _unquoted(word: str) -> str:
    def plain(match: re.Match[str]) -> str:
        found = match[1]
        return chr(int(found[1:], 16)) if len(found) == 5 else _ESCAPES.get(found, found)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, word[1:-1])
