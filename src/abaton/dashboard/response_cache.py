"""Cache of responses shared by all viewers, with a limit on the processor time for computing them."""

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

_MAX_COST_RATIO = 20  # computing responses takes at most 1/20 of one core


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """Response body, plain and gzip-compressed, with its entity tag."""

    body: bytes
    gzip_body: bytes
    etag: str


@dataclass(slots=True)
class _CacheEntry:
    """Cached response with its state, time of creation and cost."""

    state: Hashable = None
    created_at: float = float("-inf")
    seconds: float = 0.0
    response: CachedResponse = field(default_factory=lambda: CachedResponse(b"", b"", ""))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ResponseCache:
    """Cached responses by key.

    Args:
        limit: Maximum number of entries; the least recently used is dropped.
        min_seconds: Seconds for which a response is valid in any case.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, limit: int = 64, *, min_seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._min_seconds, self._clock = limit, min_seconds, clock
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    async def get(
        self, key: Hashable, state: Callable[[], Hashable], compute: Callable[[], bytes]
    ) -> CachedResponse:
        """Return a response from the cache, computed again if its state has changed and it is not recent.

        Args:
            key: Key of the response.
            state: Returns the current state at low cost.
            compute: Computes the response.
        """
        entry = self._entries.setdefault(key, _CacheEntry())
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        async with entry.lock:
            if self._clock() - entry.created_at < max(self._min_seconds, _MAX_COST_RATIO * entry.seconds):
                return entry.response
            async with self._turn:
                current = await run_in_threadpool(state)
                if current != entry.state:
                    started_at = self._clock()
                    entry.response = await run_in_threadpool(lambda: make_cached(compute()))
                    entry.state, entry.seconds = current, self._clock() - started_at
                entry.created_at = self._clock()
            return entry.response


def make_cached(body: bytes) -> CachedResponse:
    """Return a body as a cached response."""
    return CachedResponse(body, gzip.compress(body, 5, mtime=0), f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def make_response(
    request: Request, cached: CachedResponse, media_type: str, cache_control: str = "no-cache, private"
) -> Response:
    """Return an HTTP response from a cached one: 304 if the browser has it, gzip-compressed if accepted."""
    headers = {"etag": cached.etag, "cache-control": cache_control, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == cached.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            cached.gzip_body, headers={**headers, "content-encoding": "gzip"}, media_type=media_type
        )
    return Response(cached.body, headers=headers, media_type=media_type)
