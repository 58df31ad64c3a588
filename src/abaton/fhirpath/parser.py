"""Parser of FHIRPath: tokens and syntax tree. Unsupported expressions are refused when a view is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class LiteralNode:
    """Literal; ``{}`` is the empty collection."""

    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class MemberNode:
    """Element of the target."""

    target: Node | None
    name: str


@dataclass(frozen=True, slots=True)
class CallNode:
    """Function call on the target."""

    target: Node | None
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class IndexNode:
    """Item of a collection by its index from 0."""

    target: Node
    index: Node


@dataclass(frozen=True, slots=True)
class VariableNode:
    """Constant of the view, or one of ``%rowIndex``, ``%resource``, ``%context``."""

    name: str


@dataclass(frozen=True, slots=True)
class ThisNode:
    """``$this``, the focus of the expression."""


@dataclass(frozen=True, slots=True)
class OperationNode:
    """Binary operation."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class NegationNode:
    """Negation of a number."""

    operand: Node


Node = (
    LiteralNode | MemberNode | CallNode | IndexNode | VariableNode | ThisNode | OperationNode | NegationNode
)


class TemporalLiteral(str):
    """Date, time or dateTime as FHIR text, compared by its meaning."""

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
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<temporal>@T?\d[\d\-:.T]*(?:Z|[+-]\d\d:\d\d)?)
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<text>'(?:\\.|[^'\\])*')
    | (?P<variable>%(?:[A-Za-z_]\w*|`[^`]+`|'[^']+'))
    | (?P<this>\$this\b)
    | (?P<name>[A-Za-z_]\w*|`(?:\\.|[^`\\])+`)
    | (?P<symbol><=|>=|!=|!~|[~=<>+\-*/&|().,\[\]{}])
    )""",
    re.X,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_MAX_LENGTH = 10_000
_MAX_DEPTH = 60


def parse_expression(text: str) -> Node:
    """Parse a FHIRPath expression to its syntax tree.

    Raises:
        SettingsError: The expression is not FHIRPath, or uses features that views do not support.

    >>> parse_expression("name.family")
    MemberNode(target=MemberNode(target=None, name='name'), name='family')
    """
    if len(text) > _MAX_LENGTH:
        refuse_expression(f"it has more than {_MAX_LENGTH:,} characters")
    reader = _Parser(text)
    node = reader.expression(0)
    if reader.lexeme_type:
        refuse_expression(f"the text at character {reader.start + 1} is not expected")
    return node


def refuse_expression(reason: str) -> NoReturn:
    """Raise the error for a FHIRPath expression that cannot be parsed or compiled; it does not contain the text."""
    raise SettingsError(
        f"the FHIRPath is invalid: {reason}", remedy="see the FHIRPath subset in docs/views.md"
    )


class _Parser:
    """Recursive-descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self.text, self.end, self.depth = text, 0, 0
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        if match is None or match.lastgroup is None:
            if self.text[self.end :].strip():
                refuse_expression(f"character {self.end + 1} does not start a token")
            self.lexeme_type, self.lexeme, self.start = "", "", self.end
            return
        self.lexeme_type, self.lexeme = match.lastgroup, match.group(match.lastgroup)
        self.start, self.end = match.start(match.lastgroup), match.end()

    def take(self, lexeme: str) -> bool:
        if self.lexeme_type == "symbol" and self.lexeme == lexeme:
            self.advance()
            return True
        return False

    def expect(self, lexeme: str) -> None:
        if not self.take(lexeme):
            refuse_expression(f"'{lexeme}' is expected at character {self.start + 1}")

    def expression(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.expression(level + 1)
        while self.lexeme_type in ("symbol", "name") and self.lexeme in _LEVELS[level]:
            operator = self.lexeme
            self.advance()
            left = OperationNode(operator, left, self.expression(level + 1))
        return left

    def unary(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            refuse_expression(f"it is nested more than {_MAX_DEPTH} levels deep")
        if self.take("-"):
            node: Node = NegationNode(self.unary())
        elif self.take("+"):
            node = self.unary()
        else:
            node = self.postfix()
        self.depth -= 1
        return node

    def postfix(self) -> Node:
        node = self.term()
        while True:
            if self.take("."):
                node = self.member_or_call(node)
            elif self.take("["):
                node = IndexNode(node, self.expression(0))
                self.expect("]")
            else:
                return node

    def term(self) -> Node:
        lexeme_type, lexeme = self.lexeme_type, self.lexeme
        if lexeme_type == "name" and lexeme not in ("true", "false"):
            return self.member_or_call(None)
        self.advance()
        if lexeme_type == "name":
            return LiteralNode((lexeme == "true",))
        if lexeme_type == "number":
            return LiteralNode((float(lexeme) if "." in lexeme else int(lexeme),))
        if lexeme_type == "text":
            return LiteralNode((_unquote(lexeme),))
        if lexeme_type == "temporal":
            return LiteralNode((TemporalLiteral(lexeme.removeprefix("@").removeprefix("T")),))
        if lexeme_type == "variable":
            return VariableNode(lexeme[1:].strip("`'"))
        if lexeme_type == "this":
            return ThisNode()
        if lexeme_type == "symbol" and lexeme == "(":
            node = self.expression(0)
            self.expect(")")
            return node
        if lexeme_type == "symbol" and lexeme == "{":
            self.expect("}")
            return LiteralNode(())
        where = f"the text before character {self.start + 1} is" if lexeme else "the end is"
        refuse_expression(f"{where} not expected")

    def member_or_call(self, target: Node | None) -> Node:
        if self.lexeme_type == "this" and target is None:
            return self.term()
        if self.lexeme_type != "name":
            refuse_expression(f"a name is expected at character {self.start + 1}")
        name = _unquote(self.lexeme) if self.lexeme.startswith("`") else self.lexeme
        self.advance()
        if not self.take("("):
            return MemberNode(target, name)
        arguments: list[Node] = []
        while not self.take(")"):
            if arguments:
                self.expect(",")
            arguments.append(self.expression(0))
        return CallNode(target, name, tuple(arguments))


def _unquote(lexeme: str) -> str:
    def unescape(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", unescape, lexeme[1:-1])
