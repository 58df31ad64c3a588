"""What stands before every request: limits, the caller's signature, and an audit entry for each refusal.

Invariants:
(1) nothing that is not signed by a known site gets past, but for a few public addresses;
(2) no body is read beyond its limit in bytes and in seconds;
(3) every answer from 400 on has its audit entry before it leaves, with a code and never with content; floods of
unsigned requests are told together, so that nobody can fill the chain;
(4) no answer repeats what was sent, and no failure shows where it happened.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from abaton.errors import AbatonError
from abaton.governance.audit import Entry
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.service.centre import MEDIA_TYPE, Caller, Centre, Rates, Refusal, Trouble

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC = ("/openapi.json", "/v1/health", "/v1/centre", "/v1/studies")
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"strict-transport-security", b"max-age=63072000"),
)
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
        self._told = Rates(5, 100, centre.tick)  # audit entries about callers who are not known
        self._untold = 0
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._inside = 0

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
        except ClientDisconnect:
            pass
        except Exception as error:
            if answering.has_begun:  # told already, see the service's own handler
                return
            log_failure(error)
            trouble = Trouble.BUSY if isinstance(error, AbatonError) else Trouble.FAILED
            await answering.refuse(Refusal.by(trouble, wait=1 if trouble is Trouble.BUSY else 0))

    async def _answer(self, scope: Scope, receive: Receive, answering: _Answering) -> None:
        address = (scope.get("client") or ("",))[0]
        if wait := self._addresses.take(address):
            raise Refusal.by(Trouble.TOO_MANY, wait)
        if self._inside >= self.limits.concurrent + self.limits.waiting:
            raise Refusal.by(Trouble.BUSY, wait=1)
        self._inside += 1
        try:
            body = await self._body(scope, receive)
            answering.has_read = True
            async with self._turns:
                if not _is_public(scope["path"]):
                    await self._identify(scope, body, answering)
                await self.app(scope, _again(body), answering)
        finally:
            self._inside -= 1

    async def _identify(self, scope: Scope, body: bytes, answering: _Answering) -> None:
        header = b"".join(value for name, value in scope["headers"] if name == b"authorization")
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        words = header.decode("latin-1"), scope["method"], target.decode("latin-1")
        try:
            caller = await run_in_threadpool(self.centre.caller, *words, body)
        except Denied as error:  # whatever is wrong with a signature: nobody has shown who they are
            raise Refusal.of(error, status=401) from None
        answering.caller = scope.setdefault("state", {})["caller"] = caller
        if wait := self._senders.take(caller.name):
            raise Refusal.by(Trouble.TOO_MANY, wait)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit = self.limits.part if "/parts/" in scope["path"] else self.limits.body
        declared = b"".join(value for name, value in scope["headers"] if name == b"content-length")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise Refusal.of(_too_large())
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > limit:
                        raise Refusal.of(_too_large())
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise Refusal.by(Trouble.TOO_SLOW) from None

    async def audit(self, code: str, status: int, caller: Caller | None) -> None:
        """Write down that a request was refused; of callers who are not known, a few a second one by one."""
        if caller is None and self._told.take("unknown"):
            self._untold += 1
            return
        detail: dict[str, str | int] = {"status": status}
        if self._untold:
            detail["untold"], self._untold = self._untold, 0
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


def _again(body: bytes) -> Receive:
    """A body that was read, to be read once more."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _too_large() -> Denied:
    return Denied(RefusalCode.TOO_LARGE, "the request is larger than this centre takes", where="request")


def log_failure(error: Exception) -> None:
    """Tell the operator where something failed: kind and place, never the words, which may hold content."""
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    _log.error("%s at %s", type(error).__name__, last)
