"""What the service works with: the inbox, its limits, and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from abaton.governance.inbox import Inbox
from abaton.governance.senders import Role
from abaton.governance.signing import WINDOW, Asked, authenticate, forget_nonces
from abaton.governance.uploads import Room, Uploads


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the service anybody may use.

    Args:
        part: The most bytes of one part of an upload.
        body: The most bytes of any other request.
        room: What one sender may have at the centre.
        head_seconds: How long the head of a request may take to arrive.
        body_seconds: How long its body may take.
        request_seconds: How long a request may take altogether.
        sender_rate: Requests a second of one sender, in the long run.
        address_rate: Requests a second from one address, signed or not.
        burst: How many seconds' worth of requests may come at once.
        concurrent: Requests that are worked on at once.
        waiting: Requests that may wait for their turn; more are sent away.
    """

    part: int = 1 << 20
    body: int = 1 << 18
    room: Room = field(default_factory=Room)
    head_seconds: float = 10
    body_seconds: float = 60
    request_seconds: float = 120
    sender_rate: float = 50
    address_rate: float = 100
    burst: float = 4
    concurrent: int = 16
    waiting: int = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the sender's name, and the key that signed the request."""

    name: str
    key: str


def _now() -> datetime:
    return datetime.now(UTC)


class Centre:
    """A research centre as the service sees it.

    Args:
        inbox: The inbox, with the governance database and the centre's signing key.
        limits: How much of it anybody may use.
        now: The time.
        tick: Seconds that only go forward, for rates.
    """

    def __init__(
        self,
        inbox: Inbox,
        limits: Limits | None = None,
        *,
        now: Callable[[], datetime] = _now,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox, self.limits, self.now, self.tick = inbox, limits or Limits(), now, tick
        self.uploads = Uploads(inbox, self.limits.room)
        self._forgot = tick()

    def caller(self, header: str, method: str, target: str, body: bytes) -> Caller:
        """Who signed a request; refused unless it is a site that is known, now, for the first time."""
        senders = self.inbox.senders
        asked = Asked.of(self.inbox.signer.id, method, target, body)
        key = authenticate(
            header, asked, lambda found: senders.signing(found, Role.SITE), self.inbox.database, self.now()
        )
        if self.tick() > self._forgot + WINDOW.total_seconds():
            self._forgot = self.tick()
            forget_nonces(self.inbox.database, self.now())
        owner = senders.owner(key)
        assert owner is not None
        return Caller(owner.name, key)
