"""Shared sites."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from abaton.site import SitePipeline, build_site, load_site
from abaton.study import Study

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)

TEXT = """
[site]
id = "pisa"
name = "Hospital"
[records]
source = "ndjson"
paths = ["records"]
[consent]
legal_basis = "vote 7/2026"
[keys]
study = "study.key"
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Return the folder of a site with its key."""
    key = tmp_path / "study.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    (tmp_path / "site.toml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def opened(house: Path) -> Callable[..., SitePipeline]:
    """Return a function that opens the site with more text in its configuration."""

    def make(study: Study, more: str = "", **options: object) -> SitePipeline:
        (house / "site.toml").write_text(TEXT + more)
        return build_site(load_site(house / "site.toml"), study, NOW, **options)

    return make


@pytest.fixture
def serve_pages():
    """Serve pages from memory by path, and 404 otherwise."""
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

            def log_message(self, *arguments: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
