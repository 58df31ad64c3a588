"""FHIR server on a real socket, with the faults of real servers."""

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
class ReceivedRequest:
    """Request as received."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    form: dict[str, list[str]]


@dataclass
class Reply:
    """Reply; ``how`` is the fault with which it is sent."""

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


Handler = Callable[[ReceivedRequest], Reply]


class Server:
    """Server of the replies in ``routes``; received requests are in ``requests``."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.scheme = "https" if tls else "http"
        self.routes: dict[str, Handler] = {}
        self.requests: list[ReceivedRequest] = []
        self.stop = threading.Event()
        outer = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {key.lower(): value for key, value in self.headers.items()}
                request = ReceivedRequest(
                    self.command, parts.path, parse_qs(parts.query), headers, parse_qs(body.decode())
                )
                outer.requests.append(request)
                handler = outer.routes.get(parts.path, lambda _: Reply(404))
                with contextlib.suppress(OSError):
                    self.give(handler(request))

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
                """Send one byte at a time without end."""
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
        self._http.handle_error = lambda *_: None  # disconnected clients are not errors
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
        return [request.path for request in self.requests if request.method == method]


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
    """Simulated clock; sleeping advances it."""

    def __init__(self) -> None:
        self.current, self.pauses = 1_800_000_000.0, list[float]()

    def now(self) -> float:
        return self.current

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.current += seconds


def replies(*given: Reply) -> Handler:
    """Return the replies in order, then the last one repeatedly."""
    left = list(given)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
