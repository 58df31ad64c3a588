"""What stands before every request: limits, the caller's signature, and an audit entry for each refusal.

Invariants:
(1) nothing that is not signed by a known site gets past, but for a few public addresses;
(2) nothing of a body is read before the caller is known, nor beyond its limit in bytes and in seconds;
(3) every answer from 400 on has its audit entry before it leaves, with a code and never with content; floods are told
together, those of strangers and those of a sender, so that nobody can fill the chain;
(4) no answer repeats what was sent, and no failure shows where it happened.

Refusals over HTTP have one form (RFC 9457) and one status for each code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from abaton.errors import AbatonError
from abaton.governance.audit_log import Entry
from abaton.governance.senders import Asked, content_digest
from abaton.governance.intake.intake_service import Caller, Centre
from abaton.governance.identifiers import Denied, RefusalCode
from abaton.http_server import (
    App,
    Full,
    Gone,
    Memory,
    Message,
    Rates,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    address_of,
    again,
    read_body,
)

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
        headers = {"www-authenticate": "Signature"} if chosen == 401 else {}
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


_PERSONS_BODY = 16 * 1024
PUBLIC = (
    "/openapi.json",
    "/v1/health",
    "/v1/centre",
    "/v1/studies",
    "/v1/persons",
    "/v1/persons/withdrawals",
)
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"strict-transport-security", b"max-age=63072000"),
)
_TOLD_OF_STRANGERS, _TOLD_OF_SENDERS = (1 / 600, 100), (1 / 60, 1000)
_log = logging.getLogger("abaton.intake")


class Guard:
    """The gate around the service.

    Args:
        app: The service.
        centre: What it works with.
    """

    def __init__(self, app: App, centre: Centre) -> None:
        limits = centre.limits
        self.app, self.centre, self.limits = app, centre, limits
        self._senders = Rates(limits.sender_rate, limits.sender_rate * limits.burst, centre.tick)
        self._addresses = Rates(limits.address_rate, limits.address_rate * limits.burst, centre.tick)
        self._enrolments = Rates(limits.enrolments / 60, limits.enrolments, centre.tick)
        # Audit entries about refusals: of those who are not known, all together, and of each sender.
        self._told = {
            known: Rates(rate, at_once, centre.tick)
            for known, (rate, at_once) in ((False, _TOLD_OF_STRANGERS), (True, _TOLD_OF_SENDERS))
        }
        self._untold: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._inside, self._memory = 0, Memory(limits.held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        answering = _Answering(self, scope, send)
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                await self._answer(scope, receive, answering)
        except Refusal as refusal:
            await answering.refuse(refusal)
        except Denied as error:
            await answering.refuse(Refusal.of(error))
        except TimeoutError:
            await answering.refuse(Refusal.by(Trouble.TOO_SLOW))
        except Gone:
            pass
        except Exception as error:
            if answering.has_begun:  # told already, see the service's own handler
                return
            log_failure(error)
            trouble = Trouble.BUSY if isinstance(error, AbatonError) else Trouble.FAILED
            await answering.refuse(Refusal.by(trouble, wait=1 if trouble is Trouble.BUSY else 0))

    async def _answer(self, scope: Scope, receive: Receive, answering: _Answering) -> None:
        if wait := self._addresses.take(address_of(scope)):
            raise Refusal.by(Trouble.TOO_MANY, wait)
        if scope["path"].startswith("/v1/persons") and (wait := self._enrolments.take(address_of(scope))):
            raise Refusal.by(Trouble.TOO_MANY, wait)
        if self._inside >= self.limits.concurrent + self.limits.waiting:
            raise Refusal.by(Trouble.BUSY, wait=1)
        self._inside += 1
        try:
            asked = None if _is_public(scope["path"]) else await self._identify(scope, answering)
            with self._memory.held() as take:
                body = await self._body(scope, receive, take)
                answering.has_read = True
                if asked is not None and asked.content != content_digest(body):
                    answering.caller = None  # the signature is theirs, and this body is not
                    what = "the body is not the one that was signed"
                    raise Refusal.of(Denied(RefusalCode.FORGED, what, where="request"), status=401)
                async with self._turns:
                    await self.app(scope, again(body), answering)
        finally:
            self._inside -= 1

    async def _identify(self, scope: Scope, answering: _Answering) -> Asked:
        """Find out who asks, and for what, before anything of the body is read."""
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        stated = _header(scope, b"signature-input"), _header(scope, b"signature")
        # The centre is ours, whatever the header says: what was signed for another one does not fit.
        content, centre = _header(scope, b"content-digest"), self.centre.inbox.signer.id
        asked = Asked(scope["method"], path, f"?{query}", content, centre)
        try:
            async with self._turns:
                caller = await run_in_threadpool(self.centre.caller, stated, asked)
        except Denied as error:  # whatever is wrong with a signature: nobody has shown who they are
            raise Refusal.of(error, status=401) from None
        answering.caller = scope.setdefault("state", {})["caller"] = caller
        if wait := self._senders.take(caller.name):
            raise Refusal.by(Trouble.TOO_MANY, wait)
        return asked

    async def _body(self, scope: Scope, receive: Receive, take: Callable[[int], None]) -> bytes:
        limits = self.limits
        most = limits.part if "/parts/" in scope["path"] else limits.body
        if _is_public(
            scope["path"]
        ):  # anybody may ask; only those who enrol, or leave by paper, send anything
            most = _PERSONS_BODY if scope["path"].startswith("/v1/persons") else 0
        try:
            return await read_body(scope, receive, most=most, seconds=limits.body_seconds, take=take)
        except TooLarge:
            raise Refusal.of(_too_large()) from None
        except TooSlow:
            raise Refusal.by(Trouble.TOO_SLOW) from None
        except Full:
            raise Refusal.by(Trouble.BUSY, wait=1) from None

    async def audit(self, code: str, status: int, caller: Caller | None) -> None:
        """Write down that a request was refused.

        Of callers who are not known a hundred are told, then six in an hour; of a sender a thousand, then one a minute.
        """
        name = caller.name if caller else ""
        if self._told[caller is not None].take(name):
            self._untold[name] += 1
            return
        detail: dict[str, str | int] = {"status": status}
        if self._untold[name]:
            detail["untold"] = self._untold.pop(name)
        entry = Entry("request-refused", code, actor=caller.key if caller else "", detail=detail)
        try:
            await run_in_threadpool(self.centre.inbox.audit.append, entry, self.centre.now())
        except Exception as error:  # the refusal stands, whatever is the matter with the chain
            log_failure(error)


class _Answering:
    """Sends an answer with the headers that every answer has, and audits it if it is a refusal."""

    def __init__(self, guard: Guard, scope: Scope, send: Send) -> None:
        self.guard, self.scope, self.send = guard, scope, send
        self.caller: Caller | None = None
        self.has_begun = self.has_read = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            if message["status"] >= 400:
                code = self.scope.get("state", {}).get("code", Trouble.FAILED.value)
                await self.guard.audit(code, message["status"], self.caller)
            names = {name for name, _ in message["headers"]}
            more = [(name, value) for name, value in _HEADERS if name not in names]
            if not self.has_read:  # what is left of the body is not waited for
                more.append((b"connection", b"close"))
            message = {**message, "headers": [*message["headers"], *more]}
        await self.send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal, unless an answer is on its way already."""
        if self.has_begun:
            return
        self.scope.setdefault("state", {})["code"] = refusal.code
        body = b"" if self.scope["method"] == "HEAD" else refusal.body()
        headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **refusal.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})


def _is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith("/v1/studies/")


def _header(scope: Scope, wanted: bytes) -> str:
    """A header of a request; one that stands there twice is joined, and is then none that is taken."""
    return b", ".join(value for name, value in scope["headers"] if name == wanted).decode("latin-1")


def _too_large() -> Denied:
    return Denied(RefusalCode.TOO_LARGE, "the request is larger than this centre takes", where="request")


def log_failure(error: Exception) -> None:
    """Tell the operator where something failed: kind and place, never the words, which may hold content."""
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    _log.error("%s at %s", type(error).__name__, last)
