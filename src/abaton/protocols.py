"""Parts of your own: whether an object is a part of some kind, and what it lacks if it is none.

A kind of part (a model, a codec, a pacing, a weighting, a robust mix, a server optimiser) is a Protocol. Whoever
inherits from it writes only the methods without a default; any other object with all its members is as good.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from abaton.errors import SettingsError


def require(part: object, kind: type, *, name: str, where: str, known: str) -> None:
    """Refuse an object that is no part of a kind, with what it lacks.

    Args:
        part: What was given.
        kind: The Protocol it must keep to.
        name: What the setting is called.
        where: Where it was given.
        known: What can be used instead, in words.

    >>> from abaton.codecs import Codec, Raw
    >>> require(Raw(), Codec, name="codec", where="federation", known="a codec line")
    >>> require(3, Codec, name="codec", where="federation", known="a codec line")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    abaton.errors.SettingsError: codec is 3, which has no accumulator, code, ... (federation): use a codec line, or ...
    """
    if isinstance(part, type):
        wrong = f"a class: {part.__qualname__}() would be a part"
        raise SettingsError(f"{name} is {part!r}, {wrong}", where=where, remedy=f"use {known}")
    if lacks := missing(part, kind):
        raise SettingsError(
            f"{name} is {part!r}, which has no {', '.join(lacks)}",
            where=where,
            remedy=f"use {known}, or a subclass of {_path(kind)}",
        )


def missing(part: object, kind: type) -> list[str]:
    """The members of a kind that an object does not have, or whose arguments are others."""
    found = []
    for name, taken in _members(kind):
        # A property is not asked for its value, which may be costly, or wrong.
        if inspect.getattr_static(part, name, None) is None and not hasattr(part, name):
            found.append(name)
        elif taken is not None and not _takes(getattr(part, name), taken):
            found.append(f"{name}({', '.join(taken)})")
    return found


@cache
def _members(kind: type) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """Each member's name, and what it is called with if it is a method."""
    named = {**vars(kind), **getattr(kind, "__annotations__", {})}
    return tuple(
        (name, tuple(inspect.signature(member).parameters)[1:] if inspect.isfunction(member) else None)
        for name, member in sorted(named.items())
        if not name.startswith("_")
    )


def _takes(method: Any, names: tuple[str, ...]) -> bool:
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*names)
    except TypeError:
        return False
    except ValueError:  # compiled code does not tell what it takes
        return True
    return True


def _path(kind: type) -> str:
    """Where a kind is imported from: its room."""
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"
