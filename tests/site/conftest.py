"""Sites that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from abaton.site import Site, load_site, open_site
from abaton.study import Study

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)

TEXT = """
[site]
id = "pisa"
name = "Hospital"
[records]
kind = "ndjson"
paths = ["records"]
[consent]
ground = "vote 7/2026"
[keys]
study = "study.key"
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A site's folder with its key."""
    key = tmp_path / "study.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    (tmp_path / "site.toml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def opened(house: Path) -> Callable[..., Site]:
    """Opens the site in the folder, with more text in its document."""

    def make(study: Study, more: str = "", **options: object) -> Site:
        (house / "site.toml").write_text(TEXT + more)
        return open_site(load_site(house / "site.toml"), study, NOW, **options)

    return make


@pytest.fixture
def serve_pages():
    """Serves pages from memory on this machine: what is given for a path, and 404 for everything else."""
    servers = []

    def start(pages: dict[str, tuple[str, bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, body = pages.get(self.path, ("text/plain", b""))
                self.send_response(200 if self.path in pages else 404)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Stay quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
