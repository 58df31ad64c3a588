"""A site's programs: one node that trains and one that evaluates, kept connected to the centre for ever."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from abaton.engines.flower.keeper import Keeper, Program, surroundings

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
        learner: ``module:function`` that opens the site's learner by the site's name.
        folder: the site's own folder: keys, memory, logs.
        study: the digest of the study document that the site agreed to.
    """

    site: str
    centre: str
    authority: Path
    learner: str
    folder: Path
    study: str = ""


class Nodes:
    """Starts, watches and ends a site's two nodes; sites only dial out, nothing of theirs listens but on loopback."""

    def __init__(self, member: Membership, say: Callable[[str], None]) -> None:
        self.member = member
        self.keepers = {role: Keeper(self._program(role), say) for role in ROLES}

    def key(self, role: str) -> Path:
        """Where the private key of a node is."""
        return self.member.folder / "keys" / role

    def start(self) -> None:
        """Start both nodes."""
        for keeper in self.keepers.values():
            keeper.start()

    def watch(self) -> None:
        """Start again what has ended."""
        for keeper in self.keepers.values():
            keeper.watch()

    def stop(self) -> None:
        """End both nodes."""
        for keeper in self.keepers.values():
            keeper.stop()

    def _program(self, role: str) -> Program:
        member = self.member
        config = {
            "site": member.site,
            "role": role,
            "learner": member.learner,
            "folder": str(member.folder / "runs"),
            "study": member.study,
        }
        command = [
            *("flower-supernode", "--superlink", member.centre),
            *("--root-certificates", str(member.authority)),
            *("--auth-supernode-private-key", str(self.key(role))),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())),
        ]
        name, home = f"{member.site}/{role}", member.folder / f"flwr-{role}"
        return Program(name, command, surroundings(home), member.folder / "logs" / f"{role}.log", _AFTER)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
