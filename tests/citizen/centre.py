"""A listening research centre with the citizen page beside its intake."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from abaton.citizen.page_files import PageFile, allowed_origins
from abaton.citizen.page_server import beside_intake
from abaton.governance import ConsentRegistry, Inbox, KeySet, metadata
from abaton.governance.citizen_enrolment import issue_codes
from abaton.governance.intake import IntakeLimits, IntakeService, ListenSettings, make_app
from abaton.governance.intake.server import _Server, configure
from abaton.site.consent_gate import publish
from abaton.store import Database
from abaton.study import Study
from abaton.study.sections import CitizenSection


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Centre:
    """The centre, its folder, keys and address."""

    folder: Path
    key_set: KeySet
    inbox: Inbox
    study: Study
    port: int
    limits: IntakeLimits
    cut_after: int | None = None  # chunks that still get through before the connection fails
    requests: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"{self.address}/take-part/{self.study.study.id}"

    def codes(self, count: int) -> list[str]:
        return issue_codes(self.inbox.database, self.study.study.id, count, secrets.token_bytes, now())

    def contents(self) -> list[bytes]:
        """Return the opened content of every envelope."""
        return [
            b"".join(self.inbox.open_content(envelope, self.key_set))
            for envelope in self.inbox.received(self.study.study.id)
        ]

    def _interruptible(self, app):
        """Return an application whose connection can fail during an upload."""

        async def interruptible(scope, receive, send) -> None:
            self.requests.append(f"{scope['method']} {scope['path']}")
            if "/parts/" in scope["path"] and self.cut_after is not None:
                self.cut_after -= 1
                if self.cut_after < 0:
                    await send({"type": "http.response.start", "status": 502, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        return interruptible

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        ready: queue.Queue[str] = queue.Queue()
        intake = make_app(IntakeService(self.inbox, self.limits))
        app = self._interruptible(
            beside_intake(intake, PageFile.read(), partial(allowed_origins, self.inbox.registry))
        )
        server = _Server(configure(app, ListenSettings(port=self.port), self.limits), ready.put)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            ready.get(timeout=60)
            yield
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join(60)


@contextlib.contextmanager
def open_centre(
    folder: Path, study: Study, citizens: dict[str, Any] | None = None, **limits
) -> Iterator[Centre]:
    """Open a centre with a published study that may be used from its own address."""
    port = free_port()
    defaults = {"admission": "code", "max_participants": 50, "origins": (f"http://127.0.0.1:{port}",)}
    section = CitizenSection(**defaults | (citizens or {}))
    published = Study.model_validate_json(
        study.model_copy(update={"citizens": section}).model_dump_json(exclude_none=True)
    )
    key_set = KeySet.new("centre", secrets.token_bytes, "2026-01-01T00:00:00.000Z")
    with Database(f"sqlite:///{folder / 'governance.db'}", metadata) as database:
        inbox = Inbox(folder / "inbox", database, key_set.public, key_set.signing_key)
        publish(ConsentRegistry(database), published, now())
        yield Centre(folder, key_set, inbox, published, port, IntakeLimits(**limits))
