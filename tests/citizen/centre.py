"""A research centre that really listens, with the citizen's page beside its intake."""

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

from abaton.citizen.page_files import Page, reached_by
from abaton.citizen.page_server import beside_intake
from abaton.governance import Inbox, Registry, Ring, metadata
from abaton.governance.citizen_enrolment import make_codes
from abaton.governance.intake import Centre, Limits, Listen, make_app
from abaton.governance.intake.server import _Server, configure
from abaton.site.consent_gate import publish
from abaton.store import Database
from abaton.study import Study
from abaton.study.sections import Persons


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class House:
    """The centre, its folder, its keys, and where it listens."""

    folder: Path
    ring: Ring
    inbox: Inbox
    study: Study
    port: int
    limits: Limits
    cut_after: int | None = None  # parts of uploads that still get through; then the line is dead
    asked: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"{self.address}/take-part/{self.study.study.id}"

    def codes(self, number: int) -> list[str]:
        return make_codes(self.inbox.database, self.study.study.id, number, secrets.token_bytes, now())

    def opened(self) -> list[bytes]:
        """What the holder of the centre's keys reads in every envelope."""
        return [
            b"".join(self.inbox.content(each, self.ring)) for each in self.inbox.received(self.study.study.id)
        ]

    def _line(self, app):
        """A line that can be cut in the middle of an upload."""

        async def line(scope, receive, send) -> None:
            self.asked.append(f"{scope['method']} {scope['path']}")
            if "/parts/" in scope["path"] and self.cut_after is not None:
                self.cut_after -= 1
                if self.cut_after < 0:
                    await send({"type": "http.response.start", "status": 502, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        return line

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        ready: queue.Queue[str] = queue.Queue()
        intake = make_app(Centre(self.inbox, self.limits))
        app = self._line(beside_intake(intake, Page.read(), partial(reached_by, self.inbox.registry)))
        server = _Server(configure(app, Listen(port=self.port), self.limits), ready.put)
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
def house(folder: Path, study: Study, persons: dict[str, Any] | None = None, **limits) -> Iterator[House]:
    """A centre that has published a study which may be used from its own address."""
    port = free_port()
    usual = {"admission": "code", "most": 50, "origins": (f"http://127.0.0.1:{port}",)}
    how = Persons(**usual | (persons or {}))
    own = Study.model_validate_json(
        study.model_copy(update={"persons": how}).model_dump_json(exclude_none=True)
    )
    ring = Ring.new("centre", secrets.token_bytes, "2026-01-01T00:00:00.000Z")
    with Database(f"sqlite:///{folder / 'governance.db'}", metadata) as database:
        inbox = Inbox(folder / "inbox", database, ring.public, ring.signing)
        publish(Registry(database), own, now())
        yield House(folder, ring, inbox, own, port, Limits(**limits))
