"""Where people's records are, on loopback: a hospital with SMART on FHIR, and a keeper of SMART Health Links."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit


def part(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwe(content: bytes, key: bytes, *, pack: bool = False, **head: Any) -> str:
    """Content that is locked with a key, as SMART Health Links want it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    about = {"alg": "dir", "enc": "A256GCM", "cty": "application/fhir+json"} | head
    if pack:
        packing = zlib.compressobj(wbits=-15)
        content, about = packing.compress(content) + packing.flush(), about | {"zip": "DEF"}
    written, iv = part(json.dumps(about).encode()), secrets.token_bytes(12)
    locked = AESGCM(key).encrypt(iv, content, written.encode())
    return ".".join((written, "", part(iv), part(locked[:-16]), part(locked[-16:])))


def shlink(url: str, key: bytes, **more: Any) -> str:
    return "shlink:/" + part(json.dumps({"url": url, "key": part(key), **more}).encode())


@dataclass
class Elsewhere:
    """A server that keeps somebody's records and hands them out to whoever may have them."""

    records: list[dict[str, Any]]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    passcode: str = "1234"
    has_everything: bool = True
    methods: tuple[str, ...] = ("S256",)
    token: str = field(default_factory=lambda: f"token-{secrets.token_hex(16)}")
    port: int = 0
    asked: list[str] = field(default_factory=list)
    scopes: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)  # every code and verifier that went over the line

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fhir(self) -> str:
        return f"{self.address}/fhir"

    def link(self, path: str = "/manifest", **more: Any) -> str:
        return shlink(f"{self.address}{path}", self.key, **more)

    def _bundle(self, found: list[dict[str, Any]], more: str = "") -> tuple[int, Any]:
        entries = [
            {"fullUrl": f"{self.fhir}/{each['resourceType']}/{each['id']}", "resource": each}
            for each in found
        ]
        links = [{"relation": "next", "url": more}] if more else []
        return 200, {"resourceType": "Bundle", "type": "searchset", "link": links, "entry": entries}

    def get(self, path: str, query: dict[str, str], authorization: str) -> tuple[int, Any]:
        if path == "/fhir/.well-known/smart-configuration":
            return 200, {
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "code_challenge_methods_supported": self.methods,
            }
        if path == "/authorize":
            return 200, self._sign_in(query)
        if path == "/direct":
            return 200, jwe(json.dumps(self._whole()).encode(), self.key, pack=True)
        if path == "/file":
            return 200, jwe(json.dumps(self._whole()).encode(), self.key)
        if not path.startswith("/fhir/"):
            return 404, {}
        if authorization != f"Bearer {self.token}":
            return 401, {}
        if path == "/fhir/Patient/ann/$everything":
            if not self.has_everything:
                return 404, {}
            kinds = query["_type"].split(",")
            found = [each for each in self.records if each["resourceType"] in kinds]
            at = int(query.get("at", "0"))
            more = f"{self.fhir}/Patient/ann/$everything?{urlencode(query | {'at': at + 7})}"
            return self._bundle(found[at : at + 7], more if at + 7 < len(found) else "")
        kind = path.removeprefix("/fhir/")
        return self._bundle([each for each in self.records if each["resourceType"] == kind])

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/token":
            told = {name: value[0] for name, value in parse_qs(body.decode()).items()}
            self.used += [told["code"], told["code_verifier"]]
            known = self.codes.pop(told["code"], {})
            challenge = part(hashlib.sha256(told["code_verifier"].encode()).digest())
            right = (known.get("code_challenge"), known.get("redirect_uri"), known.get("client_id"))
            if right != (challenge, told["redirect_uri"], told["client_id"]):
                return 400, {"error": "invalid_grant"}
            return 200, {"access_token": self.token, "token_type": "Bearer", "patient": "ann"}
        if path == "/manifest":
            if json.loads(body).get("passcode", "") != self.passcode:
                return 401, {"remainingAttempts": 3}
            second = {"resourceType": "Bundle", "type": "collection", "entry": []}
            return 200, {
                "files": [
                    {"contentType": "application/fhir+json", "location": f"{self.address}/file"},
                    {
                        "contentType": "application/fhir+json",
                        "embedded": jwe(json.dumps(second).encode(), self.key),
                    },
                    {"contentType": "application/smart-api-access", "embedded": "x"},
                ],
                "status": "finalized",
            }
        return 404, {}

    def _whole(self) -> dict[str, Any]:
        entries = [{"fullUrl": f"urn:x:{each['id']}", "resource": each} for each in self.records]
        return {"resourceType": "Bundle", "type": "collection", "entry": entries}

    def _sign_in(self, query: dict[str, str]) -> bytes:
        assert query["code_challenge_method"] == "S256"
        assert query["aud"] == self.fhir
        code = f"code-{secrets.token_hex(8)}"
        self.codes[code] = query
        self.scopes = query["scope"]
        yes = urlencode({"code": code, "state": query["state"]})
        no = urlencode({"error": "access_denied", "state": query["state"]})
        forged = urlencode({"code": code, "state": "guessed"})
        links = "".join(
            f'<p><a id="{name}" href="{query["redirect_uri"]}?{told}">{name}</a></p>'
            for name, told in (("yes", yes), ("no", no), ("forged", forged))
        ).replace("&", "&amp;")
        return f"<!doctype html><html lang=en><title>Sign in</title>{links}</html>".encode()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Elsewhere]:
        here = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self, status: int, told: Any) -> None:
                body = told if isinstance(told, bytes) else told.encode() if isinstance(told, str) else None
                kind = "text/html" if isinstance(told, bytes) else "application/jose"
                if body is None:
                    body, kind = json.dumps(told).encode(), "application/fhir+json"
                self.send_response(status)
                for name, value in (
                    ("content-type", kind),
                    ("content-length", str(len(body))),
                    ("access-control-allow-origin", "*"),
                    ("access-control-allow-headers", "authorization, content-type"),
                ):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_OPTIONS(self) -> None:
                self._answer(200, {})

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                here.asked.append(f"GET {parts.path}")
                query = {name: value[0] for name, value in parse_qs(parts.query).items()}
                self._answer(*here.get(parts.path, query, self.headers.get("authorization", "")))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                here.asked.append(f"POST {self.path}")
                self._answer(*here.post(self.path, body))

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join(30)
