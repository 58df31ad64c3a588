"""How a run is named by a person: its name, a part of it, its number, or `latest`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from abaton.errors import SettingsError

LATEST = "latest"
_NUMBER = re.compile(r"#?([0-9]+)")
_SHOWN = 5  # candidates that a refusal names


def place_of(names: Sequence[str], text: str, where: str) -> int:
    """Which of some runs is meant, the oldest first; its number is its place, counted from 1.

    A whole name always means that run, then `latest`, then a number (`3` or `#3`), then any part that one name has.

    >>> place_of(["heart-01", "heart-02"], "#2", "store"), place_of(["heart-01", "lungs"], "lun", "store")
    (1, 1)

    Raises:
        SettingsError: None is meant, or more than one.
    """
    if text in names:
        return names.index(text)
    if text == LATEST and names:
        return len(names) - 1
    if (number := _NUMBER.fullmatch(text)) and 1 <= int(number[1]) <= len(names):
        return int(number[1]) - 1
    found = [place for place, name in enumerate(names) if text and text in name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError(
            f"there is no run '{text}'", where=where, remedy="list the runs with 'abaton runs'"
        )
    shown = ", ".join(f"{names[place]} (#{place + 1})" for place in found[-_SHOWN:])
    more = f" and {len(found) - _SHOWN} older ones" if len(found) > _SHOWN else ""
    raise SettingsError(
        f"'{text}' fits {len(found)} runs", where=where, remedy=f"name one of {shown}{more}, or its number"
    )
