"""Plain tables as nested FHIR extensions, and back, without loss.

A table becomes an extension whose children are named like its keys; a list becomes children that are all
named ``item``; text becomes ``valueString``, truth values ``valueBoolean``, numbers ``valueInteger`` or
``valueDecimal``.
"""

from __future__ import annotations

from typing import Any

_ITEM = "item"
_VALUES = ("valueString", "valueBoolean", "valueInteger", "valueDecimal")


def to_extension(url: str, value: Any) -> dict[str, Any]:
    """A plain value as an extension.

    >>> to_extension("k", {"a": 1})
    {'url': 'k', 'extension': [{'url': 'a', 'valueInteger': 1}]}
    """
    if isinstance(value, dict):
        return {"url": url, "extension": [to_extension(key, item) for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"url": url, "extension": [to_extension(_ITEM, item) for item in value]}
    if isinstance(value, bool):
        return {"url": url, "valueBoolean": value}
    if isinstance(value, int) and abs(value) < 2**31:
        return {"url": url, "valueInteger": value}
    return {"url": url, "valueDecimal" if isinstance(value, int | float) else "valueString": value}


def from_extension(extension: dict[str, Any]) -> Any:
    """The plain value of an extension that :func:`to_extension` made.

    Raises:
        ValueError: The extension is not of that form.
    """
    children = extension.get("extension")
    if children is None:
        found = [extension[name] for name in _VALUES if name in extension]
        if len(found) != 1 or not isinstance(found[0], str | bool | int | float):
            raise ValueError("an extension without one plain value")
        return found[0]
    if not isinstance(children, list) or not all(_named(child) for child in children):
        raise ValueError("an extension with nameless children")
    if all(child["url"] == _ITEM for child in children):
        return [from_extension(child) for child in children]
    made = {child["url"]: from_extension(child) for child in children}
    if len(made) < len(children):
        raise ValueError("an extension with two children of one name")
    return made


def _named(child: Any) -> bool:
    return isinstance(child, dict) and isinstance(child.get("url"), str)
