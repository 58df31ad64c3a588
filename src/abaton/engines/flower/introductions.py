"""What nodes say of themselves, read with care: who they are, and which models they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from abaton.control.messages import Counts
from abaton.engines.answers import counts, unreadable, whole

_NAMES = 64


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a node says it is."""

    site: str
    evaluates: bool
    examples: int
    labels: Counts
    group: str


def introduction(about: Mapping[str, Any]) -> Introduction:
    """Who a node is, from its answer to a query."""
    if about.get("role") not in ("train", "evaluate"):
        raise unreadable()
    return Introduction(
        _text(about, "site"),
        about["role"] == "evaluate",
        whole(about.get("examples")),
        counts(about.get("labels")),
        _text(about, "group", empty=True),
    )


def holds(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that a site says it holds; nothing if it does not say so readably."""
    said = about.get("holds")
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        return ()
    return tuple(said[-_NAMES:])


def _text(about: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    said = about.get(name)
    if not isinstance(said, str) or len(said) > 200 or not (said or empty):
        raise unreadable()
    return said
