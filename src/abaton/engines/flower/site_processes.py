"""A site's programs: a node that talks to the network and two desks that do not; and how the site stands."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from abaton.engines.flower.tls import node_key
from abaton.engines.flower.site_worker import ROLES
from abaton.engines.flower.supervisor import Keeper, Program, account_entry, surroundings
from abaton.errors import SettingsError
from abaton.atomic_files import replacing

_WORK = frozenset({"train", "evaluate"})  # questions and news are answered at once
_RESTS = 10.0  # seconds without work after which a site is idle
_PATIENCE = 60.0  # seconds until something is wrong


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is started with.

    Attributes:
        centre: where the SuperLink, or the gate before it, is reached.
        folder: the node's own: key, authority, messages that it holds.
        desks: the socket of each desk, by role.
        private: the site's files that the node should not be able to open.
    """

    centre: str
    folder: Path
    desks: Mapping[str, str]
    private: tuple[Path, ...] = ()

    @property
    def key(self) -> Path:
        """The node's private key."""
        return self.folder / "key"

    @property
    def authority(self) -> Path:
        """What the centre's certificate is signed with."""
        return self.folder / "ca.pem"

    @property
    def status(self) -> Path:
        """Where the node says how it stands."""
        return self.folder / "standing.json"

    def write(self, path: Path) -> None:
        """Write it down for the node's process."""
        row = {**asdict(self), "folder": str(self.folder), "private": [str(each) for each in self.private]}
        with replacing(path, mode=0o600) as begun:
            begun.write_text(json.dumps(row))

    @classmethod
    def read(cls, path: Path) -> NodeSettings:
        """What `write` wrote."""
        row = json.loads(path.read_text())
        return cls(row["centre"], Path(row["folder"]), row["desks"], tuple(map(Path, row["private"])))


@dataclass(frozen=True, slots=True)
class Membership:
    """What a site needs to take part.

    Attributes:
        site: its name.
        centre: the centre's address, ``host:port``.
        authority: the certificate that the centre's one is signed with.
        desk: ``module:function`` that opens what answers messages, from what a desk is started with.
        folder: the site's own folder: the node's, the desks' memory, logs.
        terms: the fingerprint of what the site agreed to.
        more: further plain values that the desk is opened with.
        private: files and folders of the site that its node should not be able to open.
        account: whose rights the desks have, if not those of whoever starts them.
        node_account: whose rights the node has.
    """

    site: str
    centre: str
    authority: Path
    desk: str
    folder: Path
    terms: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    private: tuple[Path, ...] = ()
    account: str = ""
    node_account: str = ""


class SitePrograms:
    """Starts, watches and ends a site's programs; sites only dial out, nothing of theirs listens to a network."""

    def __init__(self, member: Membership, say: Callable[[str], None]) -> None:
        self.member = member
        if (member.account or member.node_account) and os.geteuid() != 0:
            raise SettingsError(
                "only root can start programs of other accounts",
                where=member.site,
                remedy="start it as root, or leave out --account and --node-account",
            )
        self._sockets = Path(tempfile.gettempdir(), f"abaton-{secrets.token_hex(6)}")
        self.desks = {role: Keeper(self._desk(role), say) for role in ROLES}
        self.node = Keeper(self._node(), say)

    @property
    def home(self) -> Path:
        """The node's own folder; it holds nothing else."""
        return self.member.folder / "node"

    @property
    def key(self) -> Path:
        """Where the private key of the node is; its public half is beside it."""
        return self.home / "key"

    @property
    def runs(self) -> Path:
        """Where the desks keep what belongs to runs."""
        return self.member.folder / "runs"

    def make_key(self) -> bool:
        """Make the node's key; whether there was none before."""
        if self.key.exists():
            return False
        node_key(self.key)
        return True

    def public_key(self) -> str:
        """The public half of the node's key."""
        return self.key.with_name("key.pub").read_text().strip()

    def start(self) -> None:
        """Start desks and node."""
        self.open()
        for keeper in self._all:
            keeper.start()

    def open(self) -> None:
        """Make the places where desks and node meet, and let each own what is its own."""
        member = self.member
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        self.runs.mkdir(mode=0o700, exist_ok=True)
        self._sockets.mkdir(mode=0o700)
        shutil.copyfile(member.authority, self.home / "ca.pem")
        (self.home / "standing.json").unlink(missing_ok=True)
        for role in ROLES:
            with replacing(self._settings(role), mode=0o600) as begun:
                begun.write_text(json.dumps(self._config(role)))
            self._settings(role).with_suffix(".doing").write_text("")
        desks = {role: self._socket(role) for role in ROLES}
        NodeSettings(member.centre, self.home, desks, (*member.private, self.runs)).write(
            self.home / "node.json"
        )
        self._give_away()

    def watch(self) -> None:
        """Start again what has ended."""
        for keeper in self._all:
            keeper.watch()

    def stop(self) -> None:
        """End everything."""
        for keeper in self._all:
            keeper.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def standing(self) -> dict[str, Any]:
        """What the node says of itself; nothing if it has not said anything yet."""
        try:
            said: dict[str, Any] = json.loads((self.home / "standing.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return said

    def works(self) -> bool:
        """Whether a desk is training or evaluating now."""
        return any(_read(self._settings(role).with_suffix(".doing")) in _WORK for role in ROLES)

    @property
    def _all(self) -> list[Keeper]:
        return [*self.desks.values(), self.node]

    def _give_away(self) -> None:
        """Let the desks' account own the site's folder, the node's its own, and both meet at the sockets."""
        member = self.member
        if member.account:
            owner = account_entry(member.account)
            for path in [member.folder, self.runs, self._sockets, *self.runs.rglob("*")]:
                os.chown(path, owner.pw_uid, owner.pw_gid)
            for role in ROLES:
                for path in (self._settings(role), self._settings(role).with_suffix(".doing")):
                    os.chown(path, owner.pw_uid, owner.pw_gid)
        if member.node_account:
            owner = account_entry(member.node_account)
            for path in [self.home, *self.home.rglob("*")]:
                os.chown(path, owner.pw_uid, owner.pw_gid)
            os.chown(self._sockets, -1, owner.pw_gid)
            self._sockets.chmod(0o2750)  # sockets are of the node's group, too
            member.folder.chmod(0o711)  # so that the node gets to its own folder, which lies in it

    def _socket(self, role: str) -> str:
        return str(self._sockets / role)  # a socket's path must be short

    def _settings(self, role: str) -> Path:
        return self.member.folder / f"desk-{role}.json"

    def _config(self, role: str) -> dict[str, str]:
        """What a desk is opened with."""
        member = self.member
        return {
            "socket": self._socket(role),
            "desk": member.desk,
            "site": member.site,
            "role": role,
            "folder": str(self.runs),
            "terms": member.terms,
            **member.more,
        }

    def _desk(self, role: str) -> Program:
        words = ["abaton.engines.flower.site_worker", str(self._settings(role))]
        return self._program(f"desk-{role}", words, self.member.account)

    def _node(self) -> Program:
        words = ["abaton.engines.flower.site_node", str(self.home / "node.json")]
        return self._program("node", words, self.member.node_account)

    def _program(self, name: str, words: list[str], account: str) -> Program:
        folder = self.member.folder
        around = surroundings(self.home if name == "node" else folder / "flwr")
        command = [sys.executable, "-m", *words]
        return Program(
            f"{self.member.site}/{name}", command, around, folder / "logs" / f"{name}.log", account
        )


class SiteState(StrEnum):
    """How a site stands with the centre."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    ADMITTED = "admitted"
    TRAINING = "training"
    IDLE = "idle"


class Standing:
    """Looks at a site's programs and says in one line what has changed.

    Args:
        programs: The site's programs.
        say: Hears each line.
        clock: The time in seconds.
    """

    def __init__(
        self, programs: SitePrograms, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._programs, self._say, self._clock = programs, say, clock
        self.state: SiteState | None = None
        self._worked, self._warned = 0.0, False
        self._out_since: float | None = None

    def look(self) -> None:
        """Say what has changed since the last look."""
        now, said = self._clock(), self._programs.standing()
        self._warn(said)
        state = self._found(now, said)
        if state is not self.state:
            self.state = state
            self._say(f"{self._programs.member.site}: {state}{self._more(state)}")
        if state in (SiteState.CONNECTING, SiteState.CONNECTED):
            self._complain(now, str(said.get("trouble", "")))
        else:
            self._out_since = None

    def _found(self, now: float, said: Mapping[str, Any]) -> SiteState:
        """How the site stands; a site that was admitted works or rests."""
        if said.get("state") != SiteState.ADMITTED:
            return SiteState.CONNECTED if said.get("state") == SiteState.CONNECTED else SiteState.CONNECTING
        if self._programs.works():
            self._worked = now
            return SiteState.TRAINING
        if self.state in (SiteState.TRAINING, SiteState.IDLE):
            return self.state if now < self._worked + _RESTS else SiteState.IDLE
        return SiteState.ADMITTED

    def _warn(self, said: Mapping[str, Any]) -> None:
        """Say once what the node could read if somebody took it over."""
        if self._warned or "readable" not in said:
            return
        self._warned = True
        if said["readable"]:
            some = ", ".join(said["readable"][:5])
            self._say(
                f"warning: the account of the node can read {some}; this system cannot close files to a process "
                "(Landlock), so give the node an account of its own: --node-account"
            )

    def _more(self, state: SiteState) -> str:
        if state is SiteState.CONNECTING:
            return f" to {self._programs.member.centre}"
        return "; waiting until the centre admits its key" if state is SiteState.CONNECTED else ""

    def _complain(self, now: float, trouble: str) -> None:
        """Say what is wrong when a site has been outside for long, and again after as long."""
        if self._out_since is None:
            self._out_since = now
        if now < self._out_since + _PATIENCE:
            return
        self._out_since = now
        member = self._programs.member
        if self.state is SiteState.CONNECTING:
            what = f"the centre at {member.centre} cannot be reached: {trouble or 'no answer'}"
        else:
            what = "the centre does not let its node in; ask it whether the key is admitted"
        self._say(f"{member.site}: for {_PATIENCE:.0f} s {what} (logs: {member.folder / 'logs'})")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
