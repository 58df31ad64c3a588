"""Digest of user-defined code, which changes when a class is edited."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

# identified by the software versions of a run
_VERSIONED = {"abaton", "numpy", "torch", "sklearn", "pydantic"} | sys.stdlib_module_names

_SIMPLE_TYPES = (bool, int, float, str, bytes, type(None))


def user_code_digest(objects: Iterable[object], *, settings: bool = False) -> str:
    """Return a digest of the code of the objects' user-defined classes; empty if there are none.

    Args:
        objects: The objects.
        settings: Whether to include their simple attributes and functions.

    >>> class Mine:
    ...     __module__ = "mine"
    ...     def forward(self, x: float) -> float:
    ...         return x + 1
    >>> class Edited:
    ...     __module__ = "mine"
    ...     def forward(self, x: float) -> float:
    ...         return x + 2
    >>> user_code_digest([1, "two"]), user_code_digest([Mine()]) == user_code_digest([Mine()])
    ('', True)
    >>> user_code_digest([Mine()]) == user_code_digest([Edited()])
    False
    """
    descriptions: list[str] = []
    for instance in objects:
        user_classes = [
            cls for cls in type(instance).__mro__ if cls.__module__.partition(".")[0] not in _VERSIONED
        ]
        namespaces: list[Mapping[str, Any]] = [vars(cls) for cls in user_classes]
        if user_classes and settings:
            namespaces.append(getattr(instance, "__dict__", {}))
        descriptions += [
            description for namespace in namespaces for description in _describe_members(namespace)
        ]
    return hashlib.sha256("\x1f".join(descriptions).encode()).hexdigest()[:16] if descriptions else ""


def _describe_members(namespace: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(namespace.items()):
        if (code := _code(value)) is not None:
            yield f"{name} {_describe_code(code)}"
        elif isinstance(value, _SIMPLE_TYPES) and not name.startswith("_"):
            yield f"{name} {value!r}"
        elif isinstance(value, BuiltinFunctionType):
            yield f"{name} {value.__qualname__}"


def _code(member: object) -> CodeType | None:
    function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
    return function.__code__ if isinstance(function, FunctionType) else None


def _describe_code(code: CodeType) -> str:
    """Return the instructions, names and constants of a function for the code digest, without its location."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_describe_code(constant))
        elif isinstance(constant, frozenset):  # its order differs between processes
            constants.append(repr(sorted(map(repr, constant))))
        else:
            constants.append(repr(constant))
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return f"{code.co_code.hex()} {names} {constants}"
