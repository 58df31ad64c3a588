"""What somebody's own code does, as a digest: an edited class is another one, whatever it is called."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

# told apart by the software's versions
_KNOWN = {"abaton", "numpy", "torch", "sklearn", "pydantic"} | sys.stdlib_module_names

_PLAIN = (bool, int, float, str, bytes, type(None))


def own_code(things: Iterable[object], *, settings: bool = False) -> str:
    """A digest of what the classes of some objects do; nothing if none of the classes is your own.

    Args:
        things: The objects.
        settings: Whether their plain attributes count, too, and which functions they hold.

    >>> class Mine:
    ...     __module__ = "mine"
    ...     def forward(self, x: float) -> float:
    ...         return x + 1
    >>> class Edited:
    ...     __module__ = "mine"
    ...     def forward(self, x: float) -> float:
    ...         return x + 2
    >>> own_code([1, "two"]), own_code([Mine()]) == own_code([Mine()]), own_code([Mine()]) == own_code([Edited()])
    ('', True, False)
    """
    found: list[str] = []
    for thing in things:
        own = [cls for cls in type(thing).__mro__ if cls.__module__.partition(".")[0] not in _KNOWN]
        parts: list[Mapping[str, Any]] = [vars(cls) for cls in own]
        if own and settings:
            parts.append(getattr(thing, "__dict__", {}))
        found += [words for part in parts for words in _told(part)]
    return hashlib.sha256("\x1f".join(found).encode()).hexdigest()[:16] if found else ""


def _told(part: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(part.items()):
        if (code := _code(value)) is not None:
            yield f"{name} {_words(code)}"
        elif isinstance(value, _PLAIN) and not name.startswith("_"):
            yield f"{name} {value!r}"
        elif isinstance(value, BuiltinFunctionType):
            yield f"{name} {value.__qualname__}"


def _code(part: object) -> CodeType | None:
    inner = getattr(part, "fget", None) or getattr(part, "__func__", None) or part
    return inner.__code__ if isinstance(inner, FunctionType) else None


def _words(code: CodeType) -> str:
    """What a function does: its instructions, names and constants, without where it stands."""
    constants = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            constants.append(_words(each))
        elif isinstance(each, frozenset):  # their order changes from process to process
            constants.append(repr(sorted(map(repr, each))))
        else:
            constants.append(repr(each))
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return f"{code.co_code.hex()} {names} {constants}"
