"""Answers that cost something are made once for all viewers, and never more often than is fair to the run they show."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

_FAIR = 20  # making an answer takes at most this part of the time: a twentieth of one core


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is sent: whole or packed, with a tag that names it."""

    body: bytes
    packed: bytes
    tag: str


@dataclass(slots=True)
class _Kept:
    """What is kept of an answer: for which state it was made, when, how long that took."""

    stamp: Hashable = None
    made: float = float("-inf")
    cost: float = 0.0
    answer: Answer = field(default_factory=lambda: Answer(b"", b"", ""))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Cache:
    """Answers by name.

    Args:
        most: How many are kept; the longest unused goes.
        least: Seconds for which an answer is good in any case.
        tick: Seconds that only go forward.
    """

    def __init__(
        self, most: int = 64, *, least: float = 1.0, tick: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._least, self._tick = most, least, tick
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    async def get(self, name: Hashable, stamp: Callable[[], Hashable], make: Callable[[], bytes]) -> Answer:
        """An answer; made anew if what it was made of has changed, unless it was made just now.

        Args:
            name: What is asked.
            stamp: Says, cheaply, which state the answer would be made of.
            make: Makes it.
        """
        kept = self._kept.setdefault(name, _Kept())
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        async with kept.lock:
            if self._tick() - kept.made < max(self._least, _FAIR * kept.cost):
                return kept.answer
            async with self._turn:
                now = await run_in_threadpool(stamp)
                if now != kept.stamp:
                    begun = self._tick()
                    kept.answer = await run_in_threadpool(lambda: packed(make()))
                    kept.stamp, kept.cost = now, self._tick() - begun
                kept.made = self._tick()
            return kept.answer


def packed(body: bytes) -> Answer:
    """An answer of some bytes."""
    return Answer(body, gzip.compress(body, 5, mtime=0), f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def sent(request: Request, answer: Answer, kind: str, keep: str = "no-cache, private") -> Response:
    """An answer as a browser takes it: nothing if it has it already, packed if it can unpack."""
    headers = {"etag": answer.tag, "cache-control": keep, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == answer.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(answer.packed, headers={**headers, "content-encoding": "gzip"}, media_type=kind)
    return Response(answer.body, headers=headers, media_type=kind)
