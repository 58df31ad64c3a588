"""Refusals over HTTP: one form for all (RFC 9457), one status for each code, and never anything that was sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from abaton.governance.refusals import Code, Denied

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
    Code.MALFORMED: 422,
    Code.TRUNCATED: 409,
    Code.TAMPERED: 422,
    Code.FORGED: 403,
    Code.UNKNOWN_SENDER: 403,
    Code.UNKNOWN_KEY: 422,
    Code.RETIRED_KEY: 422,
    Code.WRONG_STUDY: 404,
    Code.WRONG_DOCUMENT: 409,
    Code.REPLAYED: 409,
    Code.TOO_LARGE: 413,
    Code.NO_CONSENT: 403,
    Code.NOT_APPROVED: 403,
    Code.NOT_FOUND: 404,
    Code.EXPIRED: 403,
    Code.NOT_YOURS: 403,
    Code.OUT_OF_STEP: 409,
    Code.QUOTA: 403,
    Code.UNSIGNED: 401,
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
