"""Timeouts, retries and back-off of requests to a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")
MAX_PAGE_SECONDS = 300.0
MAX_FILE_SECONDS = 6 * 3600.0
_MAX_PAUSE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RetryClock:
    """Wall clock and sleep; tests use a simulated one."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits on the duration of a response and on the number of retries."""

    timeout: float = 60.0
    retries: int = 5
    max_page_seconds: float = MAX_PAGE_SECONDS
    max_file_seconds: float = MAX_FILE_SECONDS


TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP status codes that are retried."""


class TransientError(Exception):
    """Failure that a retry may overcome, with the pause that the server requests, if any."""

    def __init__(self, what: str, pause: float | None = None) -> None:
        self.what, self.pause = what, pause
        super().__init__(what)


def with_retries(attempt: Callable[[], T], retry_policy: RetryPolicy, clock: RetryClock) -> T:
    """Call ``attempt`` until it succeeds, with growing pauses; raise the last :class:`TransientError` otherwise.

    >>> pauses, outcomes = [], iter([TransientError("refused"), TransientError("busy", 7.0), "done"])
    >>> def attempt():
    ...     outcome = next(outcomes)
    ...     if isinstance(outcome, TransientError):
    ...         raise outcome
    ...     return outcome
    >>> with_retries(attempt, RetryPolicy(), RetryClock(sleep=pauses.append)), pauses
    ('done', [1.0, 7.0])
    """
    for attempt_number in range(1, retry_policy.retries + 1):
        try:
            return attempt()
        except TransientError as error:
            clock.sleep(pause_seconds(attempt_number, error.pause))
    return attempt()


def pause_seconds(attempt: int, requested: float | None = None) -> float:
    """Return the pause before a retry: what the server requested, or twice the previous pause.

    >>> [pause_seconds(n) for n in (1, 2, 3, 20)], pause_seconds(1, 7.0)
    ([1.0, 2.0, 4.0, 300.0], 7.0)
    """
    return min(_MAX_PAUSE_SECONDS, 2.0 ** (attempt - 1) if requested is None else requested)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds in the ``Retry-After`` header, which holds seconds or a date; None if it is absent or invalid.

    >>> retry_after({"retry-after": "120"}, 0.0)
    120.0
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), 86_400))
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
