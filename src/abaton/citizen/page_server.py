"""Static server of the page beside the intake, with a strict content security policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from abaton.citizen.page_files import (
    BASE_PATH,
    CONTENT_SECURITY_POLICY,
    RELEASE_FILE,
    PageFile,
    content_security_policy,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ConnectOrigins = Callable[[str], tuple[str, ...]]
"""Return the further origins that a study's page may connect to."""
Headers = list[tuple[bytes, bytes]]

_POLICY_HEADER = b"content-security-policy"
_COMMON_HEADERS = [
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"strict-transport-security", b"max-age=63072000"),
]
_CACHE_FOREVER, _REVALIDATE = b"public, max-age=31536000, immutable", b"no-cache"


def beside_intake(service: App, page: PageFile, connect_origins: ConnectOrigins) -> App:
    """Return an application that serves the citizen page at ``/take-part/`` beside the intake.

    The page is public and does not pass the intake's middleware.

    Args:
        service: The intake.
        page: The built page.
        connect_origins: Returns the further origins that a study's page may connect to.
    """

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{BASE_PATH}/"):
            await service(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _respond(scope, send, 405, [(b"allow", b"GET, HEAD")], b"")
            return
        target = _lookup(page, scope)
        if isinstance(target, str):
            origins = await asyncio.to_thread(connect_origins, target)
            headers = [
                (b"content-type", page.media_type("index.html").encode()),
                (b"cache-control", _REVALIDATE),
            ]
            policy_header = (_POLICY_HEADER, content_security_policy(origins).encode())
            await _respond(scope, send, 200, [*headers, policy_header], page.body("index.html", origins))
        elif target is None:
            await _respond(scope, send, 404, [(b"content-type", b"text/plain")], b"page not found\n")
        else:
            await _respond(scope, send, 200, *target)

    return both


def _lookup(page: PageFile, scope: Scope) -> tuple[Headers, bytes] | str | None:
    """Look up what to serve of the citizen page: a file, the service worker, the release, or a study."""
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").split("?")[0]
    if raw.startswith(page.files_url):
        name = raw.removeprefix(page.files_url)
        return _file(page, name, scope) if name in page.cached_names else None
    name_ = raw.removeprefix(f"{BASE_PATH}/").removesuffix("/")
    if name_ == "sw.js":
        return [
            (b"content-type", page.media_type(name_).encode()),
            (b"cache-control", _REVALIDATE),
        ], page.body("sw.js")
    if name_ == RELEASE_FILE:
        signed = page.release
        return (
            ([(b"content-type", page.media_type(name_).encode()), (b"cache-control", _REVALIDATE)], signed)
            if signed
            else None
        )
    return unquote(name_) if name_ and "/" not in name_ else None


def _file(page: PageFile, name: str, scope: Scope) -> tuple[Headers, bytes]:
    accepted = b",".join(value for key, value in scope["headers"] if key == b"accept-encoding")
    headers = [
        (b"content-type", page.media_type(name).encode()),
        (b"cache-control", _CACHE_FOREVER),
        (b"vary", b"accept-encoding"),
    ]
    compressed = page.compressed_path(name)
    if compressed is not None and b"br" in [token.strip().split(b";")[0] for token in accepted.split(b",")]:
        return [*headers, (b"content-encoding", b"br")], compressed.read_bytes()
    return headers, page.body(name)


async def _respond(scope: Scope, send: Send, status: int, headers: Headers, body: bytes) -> None:
    all_headers = [*headers, *_COMMON_HEADERS, (b"content-length", str(len(body)).encode())]
    if _POLICY_HEADER not in dict(headers):
        all_headers.append((_POLICY_HEADER, CONTENT_SECURITY_POLICY.encode()))
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
