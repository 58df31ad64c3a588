"""Check of a user-defined component against its protocol.

Models, codecs, schedulers, weightings, robust aggregators and server optimisers are protocols. A subclass implements
only the methods without a default; any other object with all members is accepted as well.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from abaton.errors import SettingsError


def require_protocol(component: object, protocol: type, *, name: str, where: str, known: str) -> None:
    """Raise a `SettingsError` for an object that does not implement a protocol, with the missing members.

    Args:
        component: The object.
        protocol: The protocol.
        name: Name of the setting.
        where: Location of the setting.
        known: Text with alternatives.

    >>> from abaton.codecs import Codec, RawCodec
    >>> require_protocol(RawCodec(), Codec, name="codec", where="federation", known="a codec spec")
    >>> require_protocol(3, Codec, name="codec", where="federation", known="a codec spec")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    abaton.errors.SettingsError: codec is 3, which has no accumulator, code, ... (federation): use a codec spec, or ...
    """
    if isinstance(component, type):
        raise SettingsError(
            f"{name} is the class {component.__qualname__}",
            where=where,
            remedy=f"use an instance such as {component.__qualname__}(), or {known}",
        )
    if missing := missing_members(component, protocol):
        raise SettingsError(
            f"{name} is {component!r}, which has no {', '.join(missing)}",
            where=where,
            remedy=f"use {known}, or a subclass of {_path(protocol)}",
        )


def missing_members(component: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object lacks, or that have other parameters."""
    missing = []
    for name, parameters in _members(protocol):
        # A property is not evaluated, which may be costly or fail.
        if inspect.getattr_static(component, name, None) is None and not hasattr(component, name):
            missing.append(name)
        elif parameters is not None and not _takes(getattr(component, name), parameters):
            missing.append(f"{name}({', '.join(parameters)})")
    return missing


@cache
def _members(protocol: type) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """Return the name of each member of a protocol, with its parameters if it is a method."""
    named = {**vars(protocol), **getattr(protocol, "__annotations__", {})}
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
    except ValueError:  # compiled code may have no signature
        return True
    return True


def _path(protocol: type) -> str:
    """Return the public import path of a protocol."""
    return f"{'.'.join(protocol.__module__.split('.')[:2])}.{protocol.__name__}"
