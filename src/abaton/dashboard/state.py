"""What the pages work with: the store, governance, who may look, and what is kept in memory for all viewers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from abaton.dashboard.access import AccessFile
from abaton.dashboard.response_cache import Cache
from abaton.dashboard.live import Live
from abaton.dashboard.pages import Checked
from abaton.dashboard.sessions import Sessions
from abaton.http_server import Rates
from abaton.store import Database, Store


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
