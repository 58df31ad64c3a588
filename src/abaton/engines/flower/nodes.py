"""A site's programs: a node that trains and one that evaluates, a desk beside each; kept connected for ever."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abaton.engines.flower.keeper import Keeper, Program, surroundings
from abaton.files import replacing

ROLES = ("train", "evaluate")

_AFTER = (
    "is started again; after a break the centre refuses a node for about a minute, until it no longer remembers the "
    "old connection: this goes on until it is let in; if it lasts, ask the centre whether its key is admitted"
)


@dataclass(frozen=True, slots=True)
class Membership:
    """What a site needs to take part.

    Attributes:
        site: its name.
        centre: the centre's address, ``host:port``.
        authority: the certificate that the centre's one is signed with.
        desk: ``module:function`` that opens what answers messages, from what a node is started with.
        folder: the site's own folder: keys, memory, logs.
        terms: the fingerprint of what the site agreed to.
        more: further plain values that the desk is opened with.
    """

    site: str
    centre: str
    authority: Path
    desk: str
    folder: Path
    terms: str = ""
    more: Mapping[str, str] = field(default_factory=dict)


class Nodes:
    """Starts, watches and ends a site's programs; sites only dial out, nothing of theirs listens but on loopback."""

    def __init__(self, member: Membership, say: Callable[[str], None]) -> None:
        self.member = member
        self._sockets = Path(tempfile.gettempdir(), f"abaton-{secrets.token_hex(6)}")
        self.keepers = {role: Keeper(self._node(role), say) for role in ROLES}
        self.desks = {role: Keeper(self._desk(role), say) for role in ROLES}

    def key(self, role: str) -> Path:
        """Where the private key of a node is."""
        return self.member.folder / "keys" / role

    def start(self) -> None:
        """Start both desks and both nodes."""
        self.open()
        for keeper in self._all:
            keeper.start()

    def open(self) -> None:
        """Make the places where desks and nodes meet."""
        self._sockets.mkdir(mode=0o700)
        self.member.folder.mkdir(parents=True, exist_ok=True)
        for role in ROLES:
            with replacing(self._settings(role), mode=0o600) as begun:
                begun.write_text(json.dumps(self._config(role)))

    def watch(self) -> None:
        """Start again what has ended."""
        for keeper in self._all:
            keeper.watch()

    def stop(self) -> None:
        """End everything."""
        for keeper in self._all:
            keeper.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def _all(self) -> list[Keeper]:
        return [*self.desks.values(), *self.keepers.values()]

    def _socket(self, role: str) -> str:
        return str(self._sockets / role)  # a socket's path must be short

    def _settings(self, role: str) -> Path:
        return self.member.folder / f"desk-{role}.json"

    def _config(self, role: str) -> dict[str, str]:
        """What the desk of a node is opened with."""
        member = self.member
        return {
            "socket": self._socket(role),
            "desk": member.desk,
            "site": member.site,
            "role": role,
            "folder": str(member.folder / "runs"),
            "terms": member.terms,
            **member.more,
        }

    def _desk(self, role: str) -> Program:
        command = [sys.executable, "-m", "abaton.engines.flower.resident", str(self._settings(role))]
        return self._program(f"desk-{role}", command)

    def _node(self, role: str) -> Program:
        member = self.member
        command = [
            *("flower-supernode", "--superlink", member.centre),
            *("--root-certificates", str(member.authority)),
            *("--auth-supernode-private-key", str(self.key(role))),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f'socket="{self._socket(role)}"'),
        ]
        return self._program(role, command, _AFTER)

    def _program(self, name: str, command: Sequence[str], after: str = "is started again") -> Program:
        folder = self.member.folder
        around = surroundings(folder / f"flwr-{name}")
        return Program(f"{self.member.site}/{name}", command, around, folder / "logs" / f"{name}.log", after)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
