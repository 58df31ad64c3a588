"""The controller's memory as plain values, so that a checkpoint can hold it, and back again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from immutables import Map

from abaton.control import accountant, adaptive, decay, messages, state
from abaton.errors import StoreError


def to_plain(value: Any) -> Any:
    """A state, or anything in one, as values that JSON can hold.

    >>> from_plain(to_plain(state.State(version=3))) == state.State(version=3)
    True
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "is": type(value).__name__,
            **{f.name: to_plain(getattr(value, f.name)) for f in fields(value)},
        }
    if isinstance(value, accountant.Round | state.State | state.Contribution):
        return {
            "is": type(value).__name__,
            **{name: to_plain(part) for name, part in zip(value._fields, value, strict=True)},
        }
    if isinstance(value, Map | dict):
        kind = "Map" if isinstance(value, Map) else "dict"
        return {"is": kind, "items": [[to_plain(k), to_plain(v)] for k, v in sorted(value.items())]}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, frozenset):
        return {"is": "frozenset", "items": sorted(value)}
    return value


def from_plain(plain: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(plain, list):
        return tuple(from_plain(item) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind = plain["is"]
    if kind in ("Map", "dict"):
        pairs = {from_plain(k): from_plain(v) for k, v in plain["items"]}
        return Map(pairs) if kind == "Map" else pairs
    if kind == "frozenset":
        return frozenset(plain["items"])
    try:
        return _KINDS[kind](**{name: from_plain(value) for name, value in plain.items() if name != "is"})
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"the checkpoint holds a '{kind}' that this version does not know",
            remedy="resume with the version of Abaton that wrote it, or remove the checkpoint",
        ) from error


def _classes(module: ModuleType) -> Iterator[type]:
    return (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__)


_KINDS: dict[str, type] = {
    c.__name__: c for m in (accountant, adaptive, decay, messages, state) for c in _classes(m)
}
