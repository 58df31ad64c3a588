"""What stands before every page: who asks, whether the request comes from our own pages, and what a browser may do.

Invariants:
(1) but for the sign-in page and the files it needs, nothing is answered to whoever has not shown who they are; without
an access file, only requests that name this very machine are answered, as to a viewer;
(2) nothing changes but by POST, from our own origin, with the form key of the session;
(3) a body is read after whoever asks has shown who they are, small and soon (:mod:`abaton.http_server`), and an address
asks so often and no more;
(4) every answer forbids scripts, styles, frames and requests from anywhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from abaton.dashboard.access import AccessFile, Person, Sessions, ViewerRole
from abaton.http_server import (
    App,
    Gone,
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

COOKIE = "abaton-session"
ANYBODY = Person("this machine", ViewerRole.VIEWER)
_HERE = {"localhost", "127.0.0.1", "::1"}
_MOST_BODY, _BODY_SECONDS = 16 * 1024, 10.0
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
class Caller:
    """Who asks, and how they are known.

    Attributes:
        person: Who.
        session: The session's name, or what stands for it behind a proxy; empty for a program with a token.
        form_key: What the forms of their pages carry; empty if there is nothing they could change.
        stays: Whether they are still who they were, for answers that go on for long.
    """

    person: Person
    session: str
    form_key: str
    stays: Callable[[], bool]


class Gate:
    """The gate of a dashboard.

    Args:
        app: The pages.
        access: Who may use them; without it, this machine's own requests may look.
        sessions: Who is signed in.
        base: Where the pages are, such as ``/dashboard``.
        now: The time, for tokens that run out.
        tick: Seconds that only go forward, for rates.
    """

    def __init__(
        self,
        app: App,
        access: AccessFile | None,
        sessions: Sessions,
        base: str = "",
        now: Callable[[], float] = time.time,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.access, self.sessions, self.base, self._now = app, access, sessions, base, now
        self._addresses = Rates(_RATE, _BURST, tick)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        sending = _with_headers(send, secure=scope.get("scheme") == "https")
        if self._addresses.take(address_of(scope)):
            return await _answer(sending, 429, b"too many requests in a short time")
        status, words = self._refusal(scope, headers)
        path = scope["path"].removeprefix(self.base)
        caller = None if status else self._caller(headers)
        if not status and caller is None and not _is_open(path):
            if scope["method"] == "GET" and "text/html" in headers.get(b"accept", ""):
                return await _answer(sending, 303, b"", location=f"{self.base}/login")
            status, words = 401, "sign in, or send a token"
        if status:
            return await _answer(sending, status, words.encode())
        scope.setdefault("state", {})["caller"] = caller
        if scope["method"] == "POST":
            try:
                body = await read_body(scope, receive, most=_MOST_BODY, seconds=_BODY_SECONDS)
            except TooLarge:
                return await _answer(sending, 413, b"a form is small, and says how large it is")
            except TooSlow:
                return await _answer(sending, 408, b"the form did not arrive in time")
            except Gone:
                return
            receive = again(body)
        await self.app(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str]:
        """Why a request is refused whoever asks; 0 if it is not."""
        host = headers.get(b"host", "")
        if self.access is None and urlsplit(f"//{host}").hostname not in _HERE:
            return (
                421,
                "without an access file only this machine is answered",
            )  # a name that was made to point here
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST"
        if scope["method"] == "POST":
            size = headers.get(b"content-length", "")
            if not size.isdigit() or int(size) > _MOST_BODY:
                return 413, "a form is small, and says how large it is"
            if not _is_our_own(scope, headers, host):
                return 403, "the request comes from another site"
        return 0, ""

    def _caller(self, headers: dict[bytes, str]) -> Caller | None:
        """Who asks, if they have shown it."""
        if self.access is None:
            return Caller(ANYBODY, "", "", lambda: True)
        now = datetime.fromtimestamp(self._now(), UTC)
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer":
            person = self.access.by_token(token.strip(), now)
            return self._known(person, "") if person and person.role is not ViewerRole.PROXY else None
        if via := headers.get(b"abaton-proxy", ""):
            proxy = self.access.by_token(via, now)
            if proxy is None or proxy.role is not ViewerRole.PROXY:
                return None
            user = headers.get(self.access.header.lower().encode(), "")
            return self._known(self.access.by_proxy(user), f"proxy/{user}")
        name = session_of(headers.get(b"cookie", ""))
        person = self.sessions.person(name) if name else None
        if person is None:
            return None
        return self._known(person, name, lambda: self.sessions.person(name, use=False) is not None)

    def _known(
        self, person: Person | None, session: str, stays: Callable[[], bool] = lambda: True
    ) -> Caller | None:
        if person is None:
            return None
        return Caller(person, session, self.sessions.form_key(session) if session else "", stays)


def session_of(cookie: str) -> str:
    """The session that a cookie header names; empty if none."""
    try:
        found = SimpleCookie(cookie).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _is_open(path: str) -> bool:
    return path == "/login" or path.startswith("/static/")


def _is_our_own(scope: Scope, headers: dict[bytes, str], host: str) -> bool:
    """Whether a browser says that a form is from our own pages; a program that is no browser says nothing."""
    if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get(b"origin")
    # Behind a proxy that ends TLS the scheme differs, so the host is what is compared.
    return origin is None or urlsplit(origin).netloc == host


def _with_headers(send: Send, *, secure: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            more = [(name, value) for name, value in _HEADERS if name not in names]
            if secure:
                more.append((b"strict-transport-security", b"max-age=63072000"))
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, body: bytes, location: str = "") -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if location:
        headers.append((b"location", location.encode()))
    if status >= 400:  # what is left of a body is not waited for
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"4"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
