"""What the pages work with: the store, governance, who may look, and what is kept in memory for all viewers.

Live updates: one look at the store a second for each run that somebody watches, however many they are.

Viewers wait for the newest state, not in a queue: a slow one leaves states out, and costs no memory.
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
from abaton.dashboard.dashboard_pages import Checked
from abaton.dashboard.response_cache import Cache
from abaton.http_server import Rates
from abaton.store import Database, Head, Store, head

ENDED = ("finished", "stopped", "failed", "interrupted")


class _Watch:
    """One run that is watched: its newest state as it is sent, and who waits for the next."""

    def __init__(self) -> None:
        self.viewers = 0
        self.state: Head | None = None
        self.sent = b""
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Live:
    """Tells viewers how runs come along.

    Args:
        store: Where the runs are.
        pause: Seconds between two looks at the store.
        most: How many viewers there may be at once.
        patience: Seconds after which a sign of life is sent, if nothing changes.
    """

    def __init__(self, store: Store, *, pause: float = 1.0, most: int = 1000, patience: float = 15.0) -> None:
        self.store, self.pause, self.most, self.patience = store, pause, most, patience
        self._watches: dict[str, _Watch] = {}

    @property
    def viewers(self) -> int:
        """How many people watch."""
        return sum(watch.viewers for watch in self._watches.values())

    @property
    def is_full(self) -> bool:
        """Whether nobody else can watch."""
        return self.viewers >= self.most

    async def state(self, run: str) -> Head:
        """How far a run has come: as viewers know it already, or asked of the store."""
        watch = self._watches.get(run)
        if watch is not None and watch.state is not None:
            return watch.state
        return await run_in_threadpool(head, self.store, run)

    async def messages(self, run: str, stays: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """The states of a run as server-sent events, from now until it ends or the viewer may not look any more."""
        watch = self._watches.setdefault(run, _Watch())
        watch.viewers += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._look(run, watch))
        told = b""
        try:
            while stays():
                state, changed = watch.state, watch.changed
                if watch.sent != told:  # it may have changed while this viewer was busy with what it was told
                    told = watch.sent
                    yield told
                elif state is not None and state.status in ENDED:
                    yield b"event: end\ndata: {}\n\n"
                    return
                else:
                    try:
                        await asyncio.wait_for(changed.wait(), self.patience)
                    except TimeoutError:
                        yield b": still here\n\n"
        finally:
            watch.viewers -= 1
            if watch.viewers == 0:
                self._watches.pop(run, None)
                if watch.task is not None:
                    watch.task.cancel()

    async def _look(self, run: str, watch: _Watch) -> None:
        while True:
            state = await run_in_threadpool(head, self.store, run)
            if state != watch.state:
                watch.state, watch.sent = (
                    state,
                    b"event: head\ndata: " + orjson.dumps(asdict(state)) + b"\n\n",
                )
                changed, watch.changed = watch.changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(self.pause)


@dataclass(slots=True)
class Dashboard:
    """What the pages work with.

    Attributes:
        store: The runs.
        governance: The governance database, if it is shown.
        access: Who may use the dashboard; nobody but this machine if not given.
        base: Where the pages are, such as ``/dashboard``; empty for the root.
        sessions: Who is signed in.
        now: The time.
        pause: Seconds between two looks at a run that is watched.
        secure: Whether viewers come over TLS, also if a proxy ends it: cookies then never travel without.
    """

    store: Store
    governance: Database | None = None
    access: AccessFile | None = None
    base: str = ""
    sessions: Sessions = field(default_factory=lambda: Sessions(time.monotonic))
    now: Callable[[], float] = time.time
    pause: float = 1.0
    secure: bool = False
    live: Live = field(init=False)
    cache: Cache = field(init=False)
    attempts: Rates = field(init=False)
    checked: Checked | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.live, self.cache = Live(self.store, pause=self.pause), Cache()
        self.attempts = Rates(0.5, 10, time.monotonic)

    def moment(self) -> datetime:
        """The time as a moment."""
        return datetime.fromtimestamp(self.now(), UTC)
