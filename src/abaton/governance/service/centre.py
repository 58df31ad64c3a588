"""What the service works with: the inbox, its limits, and time.

Rates: how often somebody may ask, as a bucket that fills while they wait.

Refusals over HTTP: one form for all (RFC 9457), one status for each code, and never anything that was sent.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from abaton.governance.inbox import Inbox, Room, Uploads
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.senders import WINDOW, Asked, SenderRole, authenticate, forget_nonces

_MOST_KNOWN = 10_000


class Rates:
    """One bucket for everybody by name; the longest unseen are forgotten, which only ever gives them more.

    Args:
        rate: Requests a second.
        burst: Requests at once, after a pause.
        tick: Seconds that only go forward.

    >>> rates = Rates(1, 2, lambda: 0.0)
    >>> [rates.take("a") for _ in range(3)], rates.take("b")
    ([0.0, 0.0, 1.0], 0.0)
    """

    def __init__(self, rate: float, burst: float, tick: Callable[[], float]) -> None:
        self.rate, self.burst, self.tick = rate, max(burst, 1.0), tick
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one; how many seconds to wait if there is none, else zero."""
        now = self.tick()
        left, since = self._buckets.pop(name, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._buckets[name] = (left if wait else left - 1, now)
        if len(self._buckets) > _MOST_KNOWN:
            self._buckets.popitem(last=False)
        return wait


MEDIA_TYPE = "application/problem+json"


class Trouble(StrEnum):
    """What can be wrong with a request beyond what governance refuses."""

    NO_SUCH_PATH = "no-such-path"
    NO_SUCH_METHOD = "no-such-method"
    TOO_MANY = "too-many-requests"
    TOO_SLOW = "too-slow"
    BUSY = "busy"
    FAILED = "failed"


STATUS = {
    RefusalCode.MALFORMED: 422,
    RefusalCode.TRUNCATED: 409,
    RefusalCode.TAMPERED: 422,
    RefusalCode.FORGED: 403,
    RefusalCode.UNKNOWN_SENDER: 403,
    RefusalCode.UNKNOWN_KEY: 422,
    RefusalCode.RETIRED_KEY: 422,
    RefusalCode.WRONG_STUDY: 404,
    RefusalCode.WRONG_DOCUMENT: 409,
    RefusalCode.REPLAYED: 409,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.NO_CONSENT: 403,
    RefusalCode.NOT_APPROVED: 403,
    RefusalCode.NOT_FOUND: 404,
    RefusalCode.EXPIRED: 403,
    RefusalCode.NOT_YOURS: 403,
    RefusalCode.OUT_OF_STEP: 409,
    RefusalCode.QUOTA: 403,
    RefusalCode.UNSIGNED: 401,
}

_TITLES = {
    Trouble.NO_SUCH_PATH: "there is nothing under this address",
    Trouble.NO_SUCH_METHOD: "this cannot be done with what is under this address",
    Trouble.TOO_MANY: "too many requests in a short time",
    Trouble.TOO_SLOW: "the request did not arrive in time",
    Trouble.BUSY: "the service has too much to do",
    Trouble.FAILED: "the service failed; what was asked for may or may not have been done",
}
_REMEDIES = {
    Trouble.NO_SUCH_PATH: "look at /openapi.json",
    Trouble.NO_SUCH_METHOD: "look at /openapi.json",
    Trouble.TOO_MANY: "wait as long as Retry-After says",
    Trouble.TOO_SLOW: "send smaller parts, or mend the line",
    Trouble.BUSY: "try again soon",
    Trouble.FAILED: "try again: everything here can be repeated without harm",
}
_TROUBLE_STATUS = {
    Trouble.NO_SUCH_PATH: 404,
    Trouble.NO_SUCH_METHOD: 405,
    Trouble.TOO_MANY: 429,
    Trouble.TOO_SLOW: 408,
    Trouble.BUSY: 503,
    Trouble.FAILED: 500,
}


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = Field(examples=["urn:abaton:refusal:no-consent"])
    title: str = Field(description="One line for people.")
    status: int = Field(ge=400, le=599)
    code: str = Field(description="One word for programs.", examples=["no-consent"])
    reason: str = Field("", description="For 'no-consent': why.", examples=["expired"])
    remedy: str = Field(description="What to do.")
    received: int | None = Field(None, description="For 'out-of-step': how many bytes have arrived.")


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is a refusal: its status, its code and what else to say."""

    status: int
    code: str
    title: str
    remedy: str
    reason: str = ""
    received: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: Denied, *, status: int | None = None, received: int | None = None) -> Refusal:
        """The refusal that tells of something denied; its words are ours, never the sender's."""
        chosen = STATUS[error.code] if status is None else status
        headers = {"www-authenticate": "Abaton"} if chosen == 401 else {}
        return cls(chosen, error.code.value, error.what, error.remedy, error.reason, received, headers)

    @classmethod
    def by(cls, trouble: Trouble, wait: float = 0) -> Refusal:
        """The refusal of a request that governance never saw."""
        headers = {"retry-after": str(max(1, round(wait + 0.5)))} if wait else {}
        if trouble is Trouble.TOO_SLOW:
            headers["connection"] = "close"
        title, remedy = _TITLES[trouble], _REMEDIES[trouble]
        return cls(_TROUBLE_STATUS[trouble], trouble.value, title, remedy, headers=headers)

    def body(self) -> bytes:
        """The answer's body."""
        told: dict[str, Any] = {
            "type": f"urn:abaton:refusal:{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "reason": self.reason,
            "remedy": self.remedy,
        }
        if self.received is not None:
            told["received"] = self.received
        return json.dumps(told).encode()


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
            header,
            asked,
            lambda found: senders.signing(found, SenderRole.SITE),
            self.inbox.database,
            self.now(),
        )
        if self.tick() > self._forgot + WINDOW.total_seconds():
            self._forgot = self.tick()
            forget_nonces(self.inbox.database, self.now())
        owner = senders.owner(key)
        assert owner is not None
        return Caller(owner.name, key)
