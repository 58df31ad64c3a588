"""A study as ``study.toml``: sections for people, codes in one line each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from typing import Any

from abaton.errors import SettingsError
from abaton.study.document import Study

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(study: Study) -> str:
    """The study as TOML text that reads back to the same study.

    What stands at its default is left out, except in identity and de-identification.
    """
    table = study.model_dump(exclude_defaults=True)
    whole = study.model_dump(include={"study", "deidentification"})
    plain: dict[str, Any] = _plain({**table, **whole})
    ordered = {name: plain[name] for name in Study.model_fields if name in plain}
    return "\n".join(_table(ordered, ())).strip() + "\n"


def _plain(value: Any) -> Any:
    """Only tables, lists, text, numbers, truth values and dates; what is absent or empty is left out."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, dict):
        made = {str(_plain(key)): _plain(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item is not None and item not in ("", [], {})}
    if isinstance(value, list | tuple):
        if any(item is None for item in value):
            raise SettingsError("a list with a gap has no form in TOML", remedy="export to a Bundle instead")
        return [_plain(item) for item in value]
    return value


def _table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own keys first, then the tables inside it."""
    inner = {key: value for key, value in table.items() if _needs_header(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        here = (*path, key)
        name = ".".join(_key(part) for part in here)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(value, list):
                yield f"\n[[{name}]]"
            elif not all(_needs_header(part) for part in item.values()):
                yield f"\n[{name}]"
            yield from _table(item, here)


def _needs_header(value: Any) -> bool:
    """Large tables and lists of large tables get a header; small ones stay in one line."""
    if isinstance(value, dict):
        return len(value) > 3 or any(isinstance(item, dict | list) for item in value.values()) or _long(value)
    is_tables = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
    return is_tables and any(_nested(item) for item in value)


def _nested(table: dict[str, Any]) -> bool:
    return len(table) > 4 or any(isinstance(item, dict | list) for item in table.values()) or _long(table)


def _long(table: dict[str, Any]) -> bool:
    return any(isinstance(item, str) and (len(item) > 80 or "\n" in item) for item in table.values())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        items = [_value(item) for item in value]
        if value and isinstance(value[0], dict):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return "[" + ", ".join(items) + "]"
    return str(int(value)) if value == int(value) else repr(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, except that DEL must be escaped too.
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if "\n" not in text:
        return quoted
    lines = quoted[1:-1].replace("\\n", "\n") if "\\\\n" not in quoted else None
    return f'"""\n{lines}"""' if lines is not None else quoted
