"""A small FHIR server on a real socket, with all the bad habits that servers have."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    form: dict[str, list[str]]


@dataclass
class Reply:
    """One answer; ``how`` says how badly it is given."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    how: str = "whole"

    @classmethod
    def json(cls, content: object, status: int = 200, **headers: str) -> Reply:
        return cls(status, json.dumps(content).encode(), {"content-type": "application/fhir+json", **headers})

    @classmethod
    def ndjson(cls, body: bytes, how: str = "whole") -> Reply:
        return cls(200, body, {"content-type": "application/fhir+ndjson"}, how)


Handler = Callable[[Asked], Reply]


class Server:
    """Answers from ``routes``; what was asked is in ``asked``."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.scheme = "https" if tls else "http"
        self.routes: dict[str, Handler] = {}
        self.asked: list[Asked] = []
        self.stop = threading.Event()
        outer = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                heads = {key.lower(): value for key, value in self.headers.items()}
                asked = Asked(self.command, parts.path, parse_qs(parts.query), heads, parse_qs(body.decode()))
                outer.asked.append(asked)
                handler = outer.routes.get(parts.path, lambda _: Reply(404))
                with contextlib.suppress(OSError):
                    self.give(handler(asked))

            do_GET = do_POST = do_DELETE = handle_any

            def give(self, reply: Reply) -> None:
                if reply.how == "drip":
                    return self.drip()
                self.send_response(reply.status)
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(reply.body)))
                self.send_header("connection", "close")
                self.end_headers()
                half = reply.how == "half"
                self.wfile.write(reply.body[: len(reply.body) // 2] if half else reply.body)
                self.close_connection = True
                return None

            def drip(self) -> None:
                """One byte at a time, forever: slowloris the other way round."""
                self.wfile.write(b"HTTP/1.1 200 OK\r\nx-")
                while not outer.stop.is_set():
                    self.wfile.write(b"a")
                    self.wfile.flush()
                    time.sleep(0.02)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                return None

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handling)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # a client that goes away is no error of ours
        if tls:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._http.server_address[1]}"

    @property
    def base(self) -> str:
        return f"{self.url}/fhir"

    def paths(self, method: str = "GET") -> list[str]:
        return [each.path for each in self.asked if each.method == method]


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(tls)
    server._thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        server._http.shutdown()
        server._http.server_close()
        server._thread.join()


class Time:
    """A clock that does not wait: sleeping only moves it on."""

    def __init__(self) -> None:
        self.moment, self.pauses = 1_800_000_000.0, list[float]()

    def now(self) -> float:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.moment += seconds


def replies(*given: Reply) -> Handler:
    """The given answers one after the other, the last one forever."""
    left = list(given)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
