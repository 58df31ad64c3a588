"""What sites say, read with care: every number is checked before anything is made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abaton.control.messages import Counts
from abaton.errors import PayloadError

_MOST = 1 << 53  # whole numbers beyond are not exact in JSON
_COUNTS = 1 << 16
_NAMES = 64


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a node says it is."""

    site: str
    evaluates: bool
    examples: int
    labels: Counts
    group: str


@dataclass(frozen=True, slots=True)
class Trained:
    """What a site says about its training."""

    steps: int
    examples: int
    loss: float | None
    score: Counts
    cohort: str = ""


def introduction(about: Mapping[str, Any]) -> Introduction:
    """Who a node is, from its answer to a query."""
    if about.get("role") not in ("train", "evaluate"):
        raise _unreadable()
    return Introduction(
        _text(about, "site"),
        about["role"] == "evaluate",
        _whole(about.get("examples")),
        counts(about.get("labels")),
        _text(about, "group", empty=True),
    )


def trained(about: Mapping[str, Any]) -> Trained:
    """What is said of a training.

    >>> trained({"steps": 8, "examples": 40, "loss": 0.5, "score": [1, 2]})
    Trained(steps=8, examples=40, loss=0.5, score=(1.0, 2.0), cohort='')
    >>> trained({"steps": 8, "examples": 40, "loss": float("nan"), "score": []})
    Traceback (most recent call last):
    abaton.errors.PayloadError: an answer is not readable (network): ...
    """
    loss = about.get("loss")
    return Trained(
        _whole(about.get("steps")),
        _whole(about.get("examples")),
        None if loss is None else _number(loss),
        counts(about.get("score")),
        _cohort(about.get("cohort", "")),
    )


def _cohort(said: object) -> str:
    """The fingerprint of whose records were trained on; empty if the site's learner is not bound to consents."""
    if not isinstance(said, str) or not re.fullmatch(r"(?:[0-9a-f]{64})?", said):
        raise _unreadable()
    return said


def counts(said: object) -> Counts:
    """What an evaluator counted: finite numbers, not too many."""
    if not isinstance(said, Sequence) or isinstance(said, str) or len(said) > _COUNTS:
        raise _unreadable()
    return tuple(map(_number, said))


def holds(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that a site says it holds; nothing if it does not say so readably."""
    said = about.get("holds")
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        return ()
    return tuple(said[-_NAMES:])


def _number(said: object) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        raise _unreadable()
    return float(said)


def _whole(said: object) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said <= _MOST:
        raise _unreadable()
    return said


def _text(about: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    said = about.get(name)
    if not isinstance(said, str) or len(said) > 200 or not (said or empty):
        raise _unreadable()
    return said


def _unreadable() -> PayloadError:
    return PayloadError(
        "an answer is not readable", where="network", remedy="check that the site runs the same Abaton"
    )
