"""Servers with records on loopback: a hospital with SMART on FHIR, and SMART Health Links."""

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


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwe(content: bytes, key: bytes, *, compress: bool = False, **fields: Any) -> str:
    """Return content encrypted for a SMART Health Link."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    header = {"alg": "dir", "enc": "A256GCM", "cty": "application/fhir+json"} | fields
    if compress:
        compressor = zlib.compressobj(wbits=-15)
        content, header = compressor.compress(content) + compressor.flush(), header | {"zip": "DEF"}
    header_text, iv = base64url(json.dumps(header).encode()), secrets.token_bytes(12)
    ciphertext = AESGCM(key).encrypt(iv, content, header_text.encode())
    return ".".join(
        (header_text, "", base64url(iv), base64url(ciphertext[:-16]), base64url(ciphertext[-16:]))
    )


def shlink(url: str, key: bytes, **more: Any) -> str:
    return "shlink:/" + base64url(json.dumps({"url": url, "key": base64url(key), **more}).encode())


@dataclass
class ExternalServer:
    """Server that provides a patient's records to authorised clients."""

    records: list[dict[str, Any]]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    passcode: str = "1234"
    has_everything: bool = True
    methods: tuple[str, ...] = ("S256",)
    token: str = field(default_factory=lambda: f"token-{secrets.token_hex(16)}")
    port: int = 0
    requests: list[str] = field(default_factory=list)
    scopes: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)  # every transmitted code and verifier

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fhir(self) -> str:
        return f"{self.address}/fhir"

    def link(self, path: str = "/manifest", **more: Any) -> str:
        return shlink(f"{self.address}{path}", self.key, **more)

    def _bundle(self, records: list[dict[str, Any]], more: str = "") -> tuple[int, Any]:
        entries = [
            {"fullUrl": f"{self.fhir}/{record['resourceType']}/{record['id']}", "resource": record}
            for record in records
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
            return 200, jwe(json.dumps(self._all_records()).encode(), self.key, compress=True)
        if path == "/file":
            return 200, jwe(json.dumps(self._all_records()).encode(), self.key)
        if not path.startswith("/fhir/"):
            return 404, {}
        if authorization != f"Bearer {self.token}":
            return 401, {}
        if path == "/fhir/Patient/ann/$everything":
            if not self.has_everything:
                return 404, {}
            types = query["_type"].split(",")
            records = [record for record in self.records if record["resourceType"] in types]
            offset = int(query.get("at", "0"))
            more = f"{self.fhir}/Patient/ann/$everything?{urlencode(query | {'at': offset + 7})}"
            return self._bundle(records[offset : offset + 7], more if offset + 7 < len(records) else "")
        resource_type = path.removeprefix("/fhir/")
        return self._bundle([record for record in self.records if record["resourceType"] == resource_type])

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/token":
            parameters = {name: value[0] for name, value in parse_qs(body.decode()).items()}
            self.used += [parameters["code"], parameters["code_verifier"]]
            known = self.codes.pop(parameters["code"], {})
            challenge = base64url(hashlib.sha256(parameters["code_verifier"].encode()).digest())
            right = (known.get("code_challenge"), known.get("redirect_uri"), known.get("client_id"))
            if right != (challenge, parameters["redirect_uri"], parameters["client_id"]):
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

    def _all_records(self) -> dict[str, Any]:
        entries = [{"fullUrl": f"urn:x:{record['id']}", "resource": record} for record in self.records]
        return {"resourceType": "Bundle", "type": "collection", "entry": entries}

    def _sign_in(self, query: dict[str, str]) -> bytes:
        assert query["code_challenge_method"] == "S256"
        assert query["aud"] == self.fhir
        code = f"code-{secrets.token_hex(8)}"
        self.codes[code] = query
        self.scopes = query["scope"]
        granted = urlencode({"code": code, "state": query["state"]})
        denied = urlencode({"error": "access_denied", "state": query["state"]})
        forged = urlencode({"code": code, "state": "guessed"})
        links = "".join(
            f'<p><a id="{name}" href="{query["redirect_uri"]}?{answer}">{name}</a></p>'
            for name, answer in (("granted", granted), ("denied", denied), ("forged", forged))
        ).replace("&", "&amp;")
        return f"<!doctype html><html lang=en><title>Sign in</title>{links}</html>".encode()

    @contextlib.contextmanager
    def listening(self) -> Iterator[ExternalServer]:
        here = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self, status: int, content: Any) -> None:
                body = (
                    content
                    if isinstance(content, bytes)
                    else content.encode()
                    if isinstance(content, str)
                    else None
                )
                media_type = "text/html" if isinstance(content, bytes) else "application/jose"
                if body is None:
                    body, media_type = json.dumps(content).encode(), "application/fhir+json"
                self.send_response(status)
                for name, value in (
                    ("content-type", media_type),
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
                here.requests.append(f"GET {parts.path}")
                query = {name: value[0] for name, value in parse_qs(parts.query).items()}
                self._answer(*here.get(parts.path, query, self.headers.get("authorization", "")))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                here.requests.append(f"POST {self.path}")
                self._answer(*here.post(self.path, body))

            def log_message(self, *_: Any) -> None:
                """Suppress the log."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join(30)
