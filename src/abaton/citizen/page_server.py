"""Serving the page beside the centre's intake: a fixed list of files, with a policy that lets nothing else in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from abaton.citizen.page_files import BASE, POLICY, RELEASE, Page, policy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Reached = Callable[[str], tuple[str, ...]]
"""Whom the page of a study may talk to besides its own server."""
Headers = list[tuple[bytes, bytes]]

_POLICY = b"content-security-policy"
_ALWAYS = [
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"strict-transport-security", b"max-age=63072000"),
]
_FOREVER, _ASK = b"public, max-age=31536000, immutable", b"no-cache"


def beside_intake(service: App, page: Page, reached: Reached) -> App:
    """The citizen's page at ``/take-part/`` beside the intake, whose gate it does not pass: it is public.

    Args:
        service: The intake.
        page: The page as it was built.
        reached: Looks up in the published studies whom a study's page may talk to.
    """

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{BASE}/"):
            await service(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(scope, send, 405, [(b"allow", b"GET, HEAD")], b"")
            return
        found = _found(page, scope)
        if isinstance(found, str):
            also = await asyncio.to_thread(reached, found)
            kept = [(b"content-type", page.kind("index.html").encode()), (b"cache-control", _ASK)]
            own = (_POLICY, policy(also).encode())
            await _answer(scope, send, 200, [*kept, own], page.body("index.html", also))
        elif found is None:
            await _answer(scope, send, 404, [(b"content-type", b"text/plain")], b"there is no such page\n")
        else:
            await _answer(scope, send, 200, *found)

    return both


def _found(page: Page, scope: Scope) -> tuple[Headers, bytes] | str | None:
    """What is under an address: a file of the build, the service worker, the release, or the name of a study."""
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").split("?")[0]
    if raw.startswith(page.place):
        name = raw.removeprefix(page.place)
        return _file(page, name, scope) if name in page.listed else None
    rest = raw.removeprefix(f"{BASE}/").removesuffix("/")
    if rest == "sw.js":
        return [(b"content-type", page.kind(rest).encode()), (b"cache-control", _ASK)], page.body("sw.js")
    if rest == RELEASE:
        signed = page.release
        return (
            ([(b"content-type", page.kind(rest).encode()), (b"cache-control", _ASK)], signed)
            if signed
            else None
        )
    return unquote(rest) if rest and "/" not in rest else None


def _file(page: Page, name: str, scope: Scope) -> tuple[Headers, bytes]:
    accepted = b",".join(value for key, value in scope["headers"] if key == b"accept-encoding")
    headers = [
        (b"content-type", page.kind(name).encode()),
        (b"cache-control", _FOREVER),
        (b"vary", b"accept-encoding"),
    ]
    packed = page.packed(name)
    if packed is not None and b"br" in [word.strip().split(b";")[0] for word in accepted.split(b",")]:
        return [*headers, (b"content-encoding", b"br")], packed.read_bytes()
    return headers, page.body(name)


async def _answer(scope: Scope, send: Send, status: int, headers: Headers, body: bytes) -> None:
    told = [*headers, *_ALWAYS, (b"content-length", str(len(body)).encode())]
    if _POLICY not in dict(headers):
        told.append((_POLICY, POLICY.encode()))
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
