"""Middleware of the intake: limits, authentication, and audit of refusals.

Invariants:
(1) only requests signed by a registered sender pass, except to a few public paths;
(2) no body is read before the caller is known, nor beyond its limits in bytes and seconds;
(3) each response with status 400 or above has its audit entry before it is sent, with a code and without content;
repeated refusals are summarised per sender and for all unknown callers, so that no caller can fill the audit log;
(4) no response repeats request content, which error texts must not contain, and no failure reveals its location.

Refusals have one format (RFC 9457) and one status per code.
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
from abaton.governance.audit_log import AuditEntry
from abaton.governance.http_signatures import SignedRequest, content_digest
from abaton.governance.intake.intake_service import IntakeCaller, IntakeService
from abaton.governance.refusals import DeniedError, RefusalCode
from abaton.http_server import (
    App,
    BodyMemoryBudget,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientDisconnectedError,
    Message,
    RateLimiter,
    Receive,
    Scope,
    Send,
    ServerBusyError,
    client_address,
    read_body,
    replay_body,
)

MEDIA_TYPE = "application/problem+json"


class RequestProblem(StrEnum):
    """Problem of a request outside governance."""

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
    RefusalCode.WRONG_SENDER: 403,
    RefusalCode.OFFSET_MISMATCH: 409,
    RefusalCode.QUOTA: 403,
    RefusalCode.UNSIGNED: 401,
}

_TITLES = {
    RequestProblem.NO_SUCH_PATH: "the path does not exist",
    RequestProblem.NO_SUCH_METHOD: "the method is not supported for this path",
    RequestProblem.TOO_MANY: "too many requests in a short time",
    RequestProblem.TOO_SLOW: "the request did not arrive in time",
    RequestProblem.BUSY: "the service is busy",
    RequestProblem.FAILED: "the service failed; the operation may or may not be complete",
}
_REMEDIES = {
    RequestProblem.NO_SUCH_PATH: "see /openapi.json",
    RequestProblem.NO_SUCH_METHOD: "see /openapi.json",
    RequestProblem.TOO_MANY: "wait for the time in Retry-After",
    RequestProblem.TOO_SLOW: "send smaller chunks, or use a faster connection",
    RequestProblem.BUSY: "try again later",
    RequestProblem.FAILED: "try again: all requests are idempotent",
}
_PROBLEM_STATUS = {
    RequestProblem.NO_SUCH_PATH: 404,
    RequestProblem.NO_SUCH_METHOD: 405,
    RequestProblem.TOO_MANY: 429,
    RequestProblem.TOO_SLOW: 408,
    RequestProblem.BUSY: 503,
    RequestProblem.FAILED: 500,
}


class ProblemDetails(BaseModel):
    """Refusal of a request (RFC 9457)."""

    type: str = Field(examples=["urn:abaton:refusal:no-consent"])
    title: str = Field(description="One sentence for users.")
    status: int = Field(ge=400, le=599)
    code: str = Field(description="Code for programs.", examples=["no-consent"])
    reason: str = Field("", description="Reason, for 'no-consent'.", examples=["expired"])
    remedy: str = Field(description="What to do.")
    received_bytes: int | None = Field(None, description="Received bytes, for 'offset-mismatch'.")


@dataclass(eq=False)
class RequestRefusedError(Exception):
    """Refusal with status, code and texts of its response."""

    status: int
    code: str
    title: str
    remedy: str
    reason: str = ""
    received_bytes: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_denial(
        cls, error: DeniedError, *, status: int | None = None, received_bytes: int | None = None
    ) -> RequestRefusedError:
        """Return the intake middleware's refusal for a denial; its texts never repeat request content."""
        response_status = STATUS[error.code] if status is None else status
        headers = {"www-authenticate": "Signature"} if response_status == 401 else {}
        return cls(
            response_status, error.code.value, error.what, error.remedy, error.reason, received_bytes, headers
        )

    @classmethod
    def from_problem(cls, problem: RequestProblem, wait: float = 0) -> RequestRefusedError:
        """Return the intake middleware's refusal of a request that did not reach governance."""
        headers = {"retry-after": str(max(1, round(wait + 0.5)))} if wait else {}
        if problem is RequestProblem.TOO_SLOW:
            headers["connection"] = "close"
        title, remedy = _TITLES[problem], _REMEDIES[problem]
        return cls(_PROBLEM_STATUS[problem], problem.value, title, remedy, headers=headers)

    def body(self) -> bytes:
        """Return the response body of the intake middleware's refusal (RFC 9457)."""
        document: dict[str, Any] = {
            "type": f"urn:abaton:refusal:{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "reason": self.reason,
            "remedy": self.remedy,
        }
        if self.received_bytes is not None:
            document["received_bytes"] = self.received_bytes
        return json.dumps(document).encode()


_CITIZEN_BODY_BYTES = 16 * 1024
PUBLIC = (
    "/openapi.json",
    "/v1/health",
    "/v1/centre",
    "/v1/studies",
    "/v1/citizens",
    "/v1/citizens/withdrawals",
)
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"strict-transport-security", b"max-age=63072000"),
)
_AUDIT_RATE_UNKNOWN, _AUDIT_RATE_SENDER = (1 / 600, 100), (1 / 60, 1000)
_log = logging.getLogger("abaton.intake")


class IntakeMiddleware:
    """Middleware around the service.

    Args:
        app: The service.
        centre: State of the service.
    """

    def __init__(self, app: App, centre: IntakeService) -> None:
        limits = centre.limits
        self.app, self.centre, self.limits = app, centre, limits
        self._senders = RateLimiter(
            limits.sender_rate, limits.sender_rate * limits.burst_seconds, centre.monotonic
        )
        self._addresses = RateLimiter(
            limits.address_rate, limits.address_rate * limits.burst_seconds, centre.monotonic
        )
        self._enrolments = RateLimiter(
            limits.enrolments_per_minute / 60, limits.enrolments_per_minute, centre.monotonic
        )
        # Rates of audit entries about refusals: all unknown callers together, and each sender.
        self._audit_limits = {
            known: RateLimiter(rate, burst, centre.monotonic)
            for known, (rate, burst) in ((False, _AUDIT_RATE_UNKNOWN), (True, _AUDIT_RATE_SENDER))
        }
        self._unaudited: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(limits.concurrent)
        self._open_requests, self._memory = 0, BodyMemoryBudget(limits.memory_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request to the intake, within the middleware's limits."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        responder = _Responder(self, scope, send)
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                await self._respond(scope, receive, responder)
        except RequestRefusedError as refusal:
            await responder.refuse(refusal)
        except DeniedError as error:
            await responder.refuse(RequestRefusedError.from_denial(error))
        except TimeoutError:
            await responder.refuse(RequestRefusedError.from_problem(RequestProblem.TOO_SLOW))
        except ClientDisconnectedError:
            pass
        except Exception as error:
            if responder.has_started:  # audited already by the service's handler
                return
            log_failure(error)
            problem = RequestProblem.BUSY if isinstance(error, AbatonError) else RequestProblem.FAILED
            await responder.refuse(
                RequestRefusedError.from_problem(problem, wait=1 if problem is RequestProblem.BUSY else 0)
            )

    async def _respond(self, scope: Scope, receive: Receive, responder: _Responder) -> None:
        if wait := self._addresses.take(client_address(scope)):
            raise RequestRefusedError.from_problem(RequestProblem.TOO_MANY, wait)
        if scope["path"].startswith("/v1/citizens") and (
            wait := self._enrolments.take(client_address(scope))
        ):
            raise RequestRefusedError.from_problem(RequestProblem.TOO_MANY, wait)
        if self._open_requests >= self.limits.concurrent + self.limits.waiting:
            raise RequestRefusedError.from_problem(RequestProblem.BUSY, wait=1)
        self._open_requests += 1
        try:
            request = None if _is_public(scope["path"]) else await self._identify(scope, responder)
            with self._memory.reservation() as take:
                body = await self._body(scope, receive, take)
                responder.has_read = True
                if request is not None and request.content != content_digest(body):
                    responder.caller = None  # the signature is the caller's, but this body is not
                    what = "the body differs from the signed one"
                    raise RequestRefusedError.from_denial(
                        DeniedError(RefusalCode.FORGED, what, where="request"), status=401
                    )
                async with self._slots:
                    await self.app(scope, replay_body(body), responder)
        finally:
            self._open_requests -= 1

    async def _identify(self, scope: Scope, responder: _Responder) -> SignedRequest:
        """Authenticate the intake's caller in the middleware before any byte of the body is read."""
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        signature_headers = _header(scope, b"signature-input"), _header(scope, b"signature")
        # Always this centre's key, whatever the header states: a signature for another centre does not verify.
        content, centre = _header(scope, b"content-digest"), self.centre.inbox.signer.id
        request = SignedRequest(scope["method"], path, f"?{query}", content, centre)
        try:
            async with self._slots:
                caller = await run_in_threadpool(self.centre.authenticate_caller, signature_headers, request)
        except DeniedError as error:  # with any invalid signature the caller is unknown
            raise RequestRefusedError.from_denial(error, status=401) from None
        responder.caller = scope.setdefault("state", {})["caller"] = caller
        if wait := self._senders.take(caller.name):
            raise RequestRefusedError.from_problem(RequestProblem.TOO_MANY, wait)
        return request

    async def _body(self, scope: Scope, receive: Receive, take: Callable[[int], None]) -> bytes:
        limits = self.limits
        limit = limits.chunk_bytes if "/parts/" in scope["path"] else limits.body_bytes
        if _is_public(scope["path"]):  # public paths; only enrolment and recovery withdrawals have a body
            limit = _CITIZEN_BODY_BYTES if scope["path"].startswith("/v1/citizens") else 0
        try:
            return await read_body(
                scope, receive, max_bytes=limit, timeout_seconds=limits.body_seconds, reserve=take
            )
        except BodyTooLargeError:
            raise RequestRefusedError.from_denial(_too_large()) from None
        except BodyTooSlowError:
            raise RequestRefusedError.from_problem(RequestProblem.TOO_SLOW) from None
        except ServerBusyError:
            raise RequestRefusedError.from_problem(RequestProblem.BUSY, wait=1) from None

    async def audit(self, code: str, status: int, caller: IntakeCaller | None) -> None:
        """Record a request refused by the intake middleware in the audit log.

        For unknown callers 100 entries are written, then six per hour; for a sender 1,000, then one per minute.
        """
        name = caller.name if caller else ""
        if self._audit_limits[caller is not None].take(name):
            self._unaudited[name] += 1
            return
        detail: dict[str, str | int] = {"status": status}
        if self._unaudited[name]:
            detail["unaudited"] = self._unaudited.pop(name)
        entry = AuditEntry("request-refused", code, actor=caller.key if caller else "", detail=detail)
        try:
            await run_in_threadpool(self.centre.inbox.audit.append, entry, self.centre.now())
        except Exception as error:  # the refusal is sent even if the audit log fails
            log_failure(error)


class _Responder:
    """Sender of a response with the common headers; audits refusals."""

    def __init__(self, middleware: IntakeMiddleware, scope: Scope, send: Send) -> None:
        self.middleware, self.scope, self.send = middleware, scope, send
        self.caller: IntakeCaller | None = None
        self.has_started = self.has_read = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            if message["status"] >= 400:
                code = self.scope.get("state", {}).get("code", RequestProblem.FAILED.value)
                await self.middleware.audit(code, message["status"], self.caller)
            names = {name for name, _ in message["headers"]}
            more = [(name, value) for name, value in _HEADERS if name not in names]
            if not self.has_read:  # do not wait for the remaining body
                more.append((b"connection", b"close"))
            message = {**message, "headers": [*message["headers"], *more]}
        await self.send(message)

    async def refuse(self, refusal: RequestRefusedError) -> None:
        """Send a refusal of the intake middleware unless a response has started."""
        if self.has_started:
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
    """Return a header of a request in the intake middleware; repeated values are joined, thus not accepted."""
    return b", ".join(value for name, value in scope["headers"] if name == wanted).decode("latin-1")


def _too_large() -> DeniedError:
    return DeniedError(RefusalCode.TOO_LARGE, "the request body is larger than the limit", where="request")


def log_failure(error: Exception) -> None:
    """Log type and location of a failure in the intake middleware, not its message with record content."""
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    _log.error("%s at %s", type(error).__name__, last)
