"""Serving the page beside the centre's intake: a fixed list of files, with a policy that lets nothing else in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from abaton.citizen.pages import BASE, POLICY, Page

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ALWAYS = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"strict-transport-security", b"max-age=63072000"),
]
_FOREVER, _ASK = b"public, max-age=31536000, immutable", b"no-cache"


def beside_intake(service: App, page: Page) -> App:
    """The citizen's page at ``/take-part/`` beside the intake, whose gate it does not pass: it is public."""

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{BASE}/"):
            await service(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(scope, send, 405, [(b"allow", b"GET, HEAD")], b"")
            return
        found = _found(page, scope)
        if found is None:
            await _answer(scope, send, 404, [(b"content-type", b"text/plain")], b"there is no such page\n")
        else:
            await _answer(scope, send, 200, *found)

    return both


def _found(page: Page, scope: Scope) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
    """What is under an address: a file of the build, the service worker, or the page of a study."""
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").split("?")[0]
    if raw.startswith(page.place):
        name = raw.removeprefix(page.place)
        return _file(page, name, scope) if name in page.listed else None
    rest = raw.removeprefix(f"{BASE}/").removesuffix("/")
    if rest == "sw.js":
        return [(b"content-type", page.kind(rest).encode()), (b"cache-control", _ASK)], page.body("sw.js")
    if rest and "/" not in rest:
        return [(b"content-type", page.kind("index.html").encode()), (b"cache-control", _ASK)], page.body(
            "index.html"
        )
    return None


def _file(page: Page, name: str, scope: Scope) -> tuple[list[tuple[bytes, bytes]], bytes]:
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


async def _answer(
    scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_ALWAYS, length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
