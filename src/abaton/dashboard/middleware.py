"""Authentication, CSRF protection and security headers of the dashboard.

Invariants:
(1) except for the sign-in page and its static files, requests need authentication; without an access file, only
requests to a loopback host name are answered, with the rights of a viewer;
(2) changes need a POST of the same origin with the CSRF token of the session;
(3) bodies are read after authentication, with limits of size and time (:mod:`abaton.http_server`), and requests of an
address are rate-limited;
(4) the content security policy of every response forbids scripts, styles, frames and requests of other origins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from abaton.dashboard.access import AccessFile, DashboardUser, Sessions, ViewerRole
from abaton.http_server import (
    App,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientDisconnectedError,
    Message,
    RateLimiter,
    Receive,
    Scope,
    Send,
    client_address,
    read_body,
    replay_body,
)

COOKIE = "abaton-session"
LOCAL_VIEWER = DashboardUser("this machine", ViewerRole.VIEWER)
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}
_MAX_BODY_BYTES, _BODY_SECONDS = 16 * 1024, 10.0
_RATE, _BURST = 100.0, 400.0

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class DashboardCaller:
    """Authenticated caller of a request.

    Attributes:
        user: The user.
        session: Id of the session, `proxy/<user>` behind a proxy, or empty for a bearer token.
        form_key: CSRF token of the forms; empty without a session.
        is_valid: Returns whether the session is still open, for long responses.
    """

    user: DashboardUser
    session: str
    form_key: str
    is_valid: Callable[[], bool]


class DashboardMiddleware:
    """Middleware of the dashboard.

    Args:
        app: Application with the pages.
        access: Access file; without it, requests of this machine may view.
        sessions: Open sessions.
        base: Base path of the pages, such as ``/dashboard``.
        now: Time for the expiry of tokens.
        clock: Monotonic time for rate limits.
    """

    def __init__(
        self,
        app: App,
        access: AccessFile | None,
        sessions: Sessions,
        base: str = "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.access, self.sessions, self.base, self._now = app, access, sessions, base, now
        self._addresses = RateLimiter(_RATE, _BURST, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the dashboard after authentication and CSRF checks of the middleware."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        send_with_headers = _with_headers(send, secure=scope.get("scheme") == "https")
        if self._addresses.take(client_address(scope)):
            return await _respond(send_with_headers, 429, b"too many requests in a short time")
        status, text = self._refusal(scope, headers)
        path = scope["path"].removeprefix(self.base)
        caller = None if status else self._caller(headers)
        if not status and caller is None and not _is_open(path):
            if scope["method"] == "GET" and "text/html" in headers.get(b"accept", ""):
                return await _respond(send_with_headers, 303, b"", location=f"{self.base}/login")
            status, text = 401, "sign in, or send a token"
        if status:
            return await _respond(send_with_headers, status, text.encode())
        scope.setdefault("state", {})["caller"] = caller
        if scope["method"] == "POST":
            try:
                body = await read_body(
                    scope, receive, max_bytes=_MAX_BODY_BYTES, timeout_seconds=_BODY_SECONDS
                )
            except BodyTooLargeError:
                return await _respond(
                    send_with_headers, 413, b"the form is too large or has no content-length"
                )
            except BodyTooSlowError:
                return await _respond(send_with_headers, 408, b"the form did not arrive in time")
            except ClientDisconnectedError:
                return
            receive = replay_body(body)
        await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str]:
        """Return status and reason of the dashboard middleware's refusal of any caller; status 0 if none."""
        host = headers.get(b"host", "")
        if self.access is None and urlsplit(f"//{host}").hostname not in _LOOPBACK_HOSTS:
            return (
                421,
                "without an access file only requests to this machine are answered",
            )  # DNS rebinding
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST"
        if scope["method"] == "POST":
            size = headers.get(b"content-length", "")
            if not size.isdigit() or int(size) > _MAX_BODY_BYTES:
                return 413, "the form is too large or has no content-length"
            if not _is_same_origin(scope, headers, host):
                return 403, "the request comes from another site"
        return 0, ""

    def _caller(self, headers: dict[bytes, str]) -> DashboardCaller | None:
        """Return the dashboard's caller by token, proxy or session in the middleware, if authenticated."""
        if self.access is None:
            return DashboardCaller(LOCAL_VIEWER, "", "", lambda: True)
        now = datetime.fromtimestamp(self._now(), UTC)
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            token_user = self.access.user_by_token(token.strip(), now)
            return (
                self._make_caller(token_user, "")
                if token_user and token_user.role is not ViewerRole.PROXY
                else None
            )
        if proxy_token := headers.get(b"abaton-proxy", ""):
            proxy = self.access.user_by_token(proxy_token, now)
            if proxy is None or proxy.role is not ViewerRole.PROXY:
                return None
            proxy_user = headers.get(self.access.header.lower().encode(), "")
            return self._make_caller(self.access.user_by_proxy(proxy_user), f"proxy/{proxy_user}")
        name = session_of(headers.get(b"cookie", ""))
        session_user = self.sessions.user(name) if name else None
        if session_user is None:
            return None
        return self._make_caller(
            session_user, name, lambda: self.sessions.user(name, touch=False) is not None
        )

    def _make_caller(
        self, user: DashboardUser | None, session: str, is_valid: Callable[[], bool] = lambda: True
    ) -> DashboardCaller | None:
        if user is None:
            return None
        return DashboardCaller(user, session, self.sessions.form_key(session) if session else "", is_valid)


def session_of(cookie: str) -> str:
    """Return the session id in the dashboard's cookie header; empty if there is none."""
    try:
        morsel = SimpleCookie(cookie).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _is_open(path: str) -> bool:
    return path == "/login" or path.startswith("/static/")


def _is_same_origin(scope: Scope, headers: dict[bytes, str], host: str) -> bool:
    """Return whether a browser's headers show the dashboard's own origin; other programs send none."""
    if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get(b"origin")
    # Behind a proxy that terminates TLS the scheme differs: compare the host.
    return origin is None or urlsplit(origin).netloc == host


def _with_headers(send: Send, *, secure: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            extra = [(name, value) for name, value in _HEADERS if name not in names]
            if secure:
                extra.append((b"strict-transport-security", b"max-age=63072000"))
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending


async def _respond(send: Send, status: int, body: bytes, location: str = "") -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location.encode()))
    if status >= 400:  # do not wait for the rest of the body
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"4"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
