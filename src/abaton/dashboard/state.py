"""State of the dashboard, and live updates.

One task per watched run polls the store once a second for all viewers. Viewers wait for the latest state without a
queue, so a slow viewer skips states and cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import orjson
from starlette.concurrency import run_in_threadpool

from abaton.dashboard.access import AccessFile, Sessions
from abaton.dashboard.dashboard_pages import AuditCheck
from abaton.dashboard.response_cache import ResponseCache
from abaton.http_server import RateLimiter
from abaton.store import Database, RunHead, Store, run_head

FINAL_STATES = ("finished", "stopped", "failed", "interrupted")


class _WatchedRun:
    """Watched run: its latest state, the message with it, and its viewers."""

    def __init__(self) -> None:
        self.viewers = 0
        self.state: RunHead | None = None
        self.message = b""
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class LiveUpdates:
    """Live updates of runs for viewers.

    Args:
        store: Store of the runs.
        poll_seconds: Interval of polling the store.
        max_viewers: Maximum number of viewers.
        keep_alive_seconds: Seconds without a change after which a comment is sent.
    """

    def __init__(
        self,
        store: Store,
        *,
        poll_seconds: float = 1.0,
        max_viewers: int = 1000,
        keep_alive_seconds: float = 15.0,
    ) -> None:
        self.store, self.poll_seconds, self.max_viewers, self.keep_alive_seconds = (
            store,
            poll_seconds,
            max_viewers,
            keep_alive_seconds,
        )
        self._watched_runs: dict[str, _WatchedRun] = {}

    @property
    def viewers(self) -> int:
        """Number of viewers of the dashboard's live updates."""
        return sum(watch.viewers for watch in self._watched_runs.values())

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of viewers of the dashboard's live updates is reached."""
        return self.viewers >= self.max_viewers

    async def state(self, run: str) -> RunHead:
        """Return the state of a run for live updates: the latest polled one, or from the store."""
        watch = self._watched_runs.get(run)
        if watch is not None and watch.state is not None:
            return watch.state
        return await run_in_threadpool(run_head, self.store, run)

    async def messages(self, run: str, is_valid: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """Yield a run's live states as server-sent events until it ends or the viewer's session does."""
        watch = self._watched_runs.setdefault(run, _WatchedRun())
        watch.viewers += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._poll(run, watch))
        sent = b""
        try:
            while is_valid():
                state, changed = watch.state, watch.changed
                if watch.message != sent:  # it may have changed while this viewer was busy
                    sent = watch.message
                    yield sent
                elif state is not None and state.status in FINAL_STATES:
                    yield b"event: end\ndata: {}\n\n"
                    return
                else:
                    try:
                        await asyncio.wait_for(changed.wait(), self.keep_alive_seconds)
                    except TimeoutError:
                        yield b": keep-alive\n\n"
        finally:
            watch.viewers -= 1
            if watch.viewers == 0:
                self._watched_runs.pop(run, None)
                if watch.task is not None:
                    watch.task.cancel()

    async def _poll(self, run: str, watch: _WatchedRun) -> None:
        while True:
            state = await run_in_threadpool(run_head, self.store, run)
            if state != watch.state:
                watch.state, watch.message = (
                    state,
                    b"event: state\ndata: " + orjson.dumps(asdict(state)) + b"\n\n",
                )
                changed, watch.changed = watch.changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(self.poll_seconds)


@dataclass(slots=True)
class DashboardState:
    """State of the dashboard.

    Attributes:
        store: Store of the runs.
        governance: Governance database, if shown.
        access: Access file; without it only this machine may view.
        base: Base path of the pages, such as ``/dashboard``; empty for the root.
        sessions: Open sessions.
        now: Returns the time.
        poll_seconds: Interval of polling a watched run.
        secure: Whether viewers use TLS, also through a proxy; cookies are then sent over TLS only.
    """

    store: Store
    governance: Database | None = None
    access: AccessFile | None = None
    base: str = ""
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    now: Callable[[], float] = time.time
    poll_seconds: float = 1.0
    secure: bool = False
    live: LiveUpdates = field(init=False)
    cache: ResponseCache = field(init=False)
    attempts: RateLimiter = field(init=False)
    audit_check: AuditCheck | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.live, self.cache = LiveUpdates(self.store, poll_seconds=self.poll_seconds), ResponseCache()
        self.attempts = RateLimiter(0.5, 10, time.monotonic)

    def utc_now(self) -> datetime:
        """Return the current time in UTC by the dashboard state's clock."""
        return datetime.fromtimestamp(self.now(), UTC)
