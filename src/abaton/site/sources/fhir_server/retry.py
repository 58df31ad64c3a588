"""Time at the edge: how long an answer may take, how often it is asked for again, and how long to pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")
PAGE_TIME = 300.0
FILE_TIME = 6 * 3600.0
_LONGEST_PAUSE = 300.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the outside world has it; tests give another."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer may take, and how often it is asked for again."""

    timeout: float = 60.0
    retries: int = 5
    page_time: float = PAGE_TIME
    file_time: float = FILE_TIME


PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of an answer that may be better next time."""


class Passing(Exception):
    """Something that may go better next time: what it is, and how long the server asks to wait."""

    def __init__(self, what: str, pause: float | None = None) -> None:
        self.what, self.pause = what, pause
        super().__init__(what)


def persist(attempt: Callable[[], T], patience: Patience, clock: Clock) -> T:
    """Try something until it does not fail with :class:`Passing`, with growing pauses; at last, the last of them.

    >>> pauses, answers = [], iter([Passing("away"), Passing("busy", 7.0), "here"])
    >>> def attempt():
    ...     answer = next(answers)
    ...     if isinstance(answer, Passing):
    ...         raise answer
    ...     return answer
    >>> persist(attempt, Patience(), Clock(sleep=pauses.append)), pauses
    ('here', [1.0, 7.0])
    """
    for number in range(1, patience.retries + 1):
        try:
            return attempt()
        except Passing as passing:
            clock.sleep(pause_before(number, passing.pause))
    return attempt()


def pause_before(attempt: int, asked: float | None = None) -> float:
    """How long to wait before an attempt: what the server asked for, or twice as long each time.

    >>> [pause_before(n) for n in (1, 2, 3, 20)], pause_before(1, 7.0)
    ([1.0, 2.0, 4.0, 300.0], 7.0)
    """
    return min(_LONGEST_PAUSE, 2.0 ** (attempt - 1) if asked is None else asked)


def asked_pause(headers: Mapping[str, str], now: float) -> float | None:
    """How long the server asks to wait (``Retry-After``): seconds, or until a date.

    >>> asked_pause({"retry-after": "120"}, 0.0)
    120.0
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), 86_400))
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
