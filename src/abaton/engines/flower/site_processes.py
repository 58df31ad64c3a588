"""Processes of a site: a node with network access and two workers without; and the site's connection state."""

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

from abaton.atomic_files import atomic_write
from abaton.engines.flower.site_worker import ROLES
from abaton.engines.flower.supervisor import ChildProcess, ProcessSupervisor, child_environment, user_entry
from abaton.engines.flower.tls import create_node_key
from abaton.errors import SettingsError

_TASK_MESSAGES = frozenset({"train", "evaluate"})
_IDLE_SECONDS = 10.0  # without work until a site is idle
_WARNING_SECONDS = 60.0  # without a connection until the problem is reported


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node.

    Attributes:
        centre: the address of the SuperLink, or of the proxy in front of it.
        folder: the node's folder: key, authority, messages.
        worker_sockets: the socket of each worker, by role.
        private_paths: the site's files that the node must not be able to open.
    """

    centre: str
    folder: Path
    worker_sockets: Mapping[str, str]
    private_paths: tuple[Path, ...] = ()

    @property
    def key(self) -> Path:
        """Path of the private key in the settings of a site's node process."""
        return self.folder / "key"

    @property
    def authority(self) -> Path:
        """Path of the centre's authority certificate in the settings of a site's node process."""
        return self.folder / "ca.pem"

    @property
    def status(self) -> Path:
        """Path of the status file in the settings of a site's node process."""
        return self.folder / "node_status.json"

    def write(self, path: Path) -> None:
        """Write the settings of a site's node process to a file."""
        row = {
            **asdict(self),
            "folder": str(self.folder),
            "private_paths": [str(path) for path in self.private_paths],
        }
        with atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_text(json.dumps(row))

    @classmethod
    def read(cls, path: Path) -> NodeSettings:
        """Read the settings of a site's node process from a file."""
        row = json.loads(path.read_text())
        return cls(
            row["centre"], Path(row["folder"]), row["worker_sockets"], tuple(map(Path, row["private_paths"]))
        )


@dataclass(frozen=True, slots=True)
class SiteMembership:
    """Settings of a site's participation.

    Attributes:
        site: the site's name.
        centre: the centre's address, ``host:port``.
        authority: the certificate of the centre's authority.
        worker: ``module:function`` that builds the message handler of a worker from its settings.
        folder: the site's folder: the node's folder, the workers' state, logs.
        study_hash: the hash of the study that the site agreed to.
        worker_options: further settings of the worker.
        private_paths: files and folders of the site that its node must not be able to open.
        worker_user: the user of the workers, if not the current one.
        node_user: the user of the node.
    """

    site: str
    centre: str
    authority: Path
    worker: str
    folder: Path
    study_hash: str = ""
    worker_options: Mapping[str, str] = field(default_factory=dict)
    private_paths: tuple[Path, ...] = ()
    worker_user: str = ""
    node_user: str = ""


class SiteProcesses:
    """Supervisor of a site's processes; sites only connect to the centre and listen on no network port."""

    def __init__(self, membership: SiteMembership, report: Callable[[str], None]) -> None:
        self.membership = membership
        if (membership.worker_user or membership.node_user) and os.geteuid() != 0:
            raise SettingsError(
                "only root can start processes of other users",
                where=membership.site,
                remedy="start it as root, or omit --worker-user and --node-user",
            )
        self._sockets = Path(tempfile.gettempdir(), f"abaton-{secrets.token_hex(6)}")
        self.workers = {role: ProcessSupervisor(self._worker_process(role), report) for role in ROLES}
        self.node = ProcessSupervisor(self._node_process(), report)

    @property
    def node_dir(self) -> Path:
        """Folder of the node process in the site's folder."""
        return self.membership.folder / "node"

    @property
    def key(self) -> Path:
        """Path of the private key of the site's node process; the public key is beside it."""
        return self.node_dir / "key"

    @property
    def runs_dir(self) -> Path:
        """Folder for the run state of the site's worker processes."""
        return self.membership.folder / "runs"

    def make_key(self) -> bool:
        """Create the key of the site's node process; return whether there was none."""
        if self.key.exists():
            return False
        create_node_key(self.key)
        return True

    def public_key(self) -> str:
        """Return the public key of the site's node process."""
        return self.key.with_name("key.pub").read_text().strip()

    def start(self) -> None:
        """Start all processes of a site: the workers and the node."""
        self.open()
        for supervisor in self._supervisors:
            supervisor.start()

    def open(self) -> None:
        """Create folders and settings for the processes of a site, workers and node, and set their owners."""
        membership = self.membership
        self.node_dir.mkdir(parents=True, exist_ok=True)
        self.node_dir.chmod(0o700)
        self.runs_dir.mkdir(mode=0o700, exist_ok=True)
        self._sockets.mkdir(mode=0o700)
        shutil.copyfile(membership.authority, self.node_dir / "ca.pem")
        (self.node_dir / "node_status.json").unlink(missing_ok=True)
        for role in ROLES:
            with atomic_write(self._settings(role), mode=0o600) as temporary_path:
                temporary_path.write_text(json.dumps(self._config(role)))
            self._settings(role).with_suffix(".activity").write_text("")
        sockets = {role: self._socket(role) for role in ROLES}
        NodeSettings(
            membership.centre, self.node_dir, sockets, (*membership.private_paths, self.runs_dir)
        ).write(self.node_dir / "node.json")
        self._set_owners()

    def watch(self) -> None:
        """Restart the site's worker and node processes that have exited."""
        for supervisor in self._supervisors:
            supervisor.watch()

    def stop(self) -> None:
        """Stop all processes of a site: the workers and the node."""
        for supervisor in self._supervisors:
            supervisor.stop()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def node_status(self) -> dict[str, Any]:
        """Return the status that the site's node process has written; empty if there is none yet."""
        try:
            status: dict[str, Any] = json.loads((self.node_dir / "node_status.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return status

    def is_working(self) -> bool:
        """Return whether one of the site's worker processes is training or evaluating."""
        return any(_read(self._settings(role).with_suffix(".activity")) in _TASK_MESSAGES for role in ROLES)

    @property
    def _supervisors(self) -> list[ProcessSupervisor]:
        return [*self.workers.values(), self.node]

    def _set_owners(self) -> None:
        """Set file owners for a site's processes: the node's folder to the node, the rest to the workers."""
        membership = self.membership
        if membership.worker_user:
            owner = user_entry(membership.worker_user)
            for path in [membership.folder, self.runs_dir, self._sockets, *self.runs_dir.rglob("*")]:
                os.chown(path, owner.pw_uid, owner.pw_gid)
            for role in ROLES:
                for path in (self._settings(role), self._settings(role).with_suffix(".activity")):
                    os.chown(path, owner.pw_uid, owner.pw_gid)
        if membership.node_user:
            owner = user_entry(membership.node_user)
            for path in [self.node_dir, *self.node_dir.rglob("*")]:
                os.chown(path, owner.pw_uid, owner.pw_gid)
            os.chown(self._sockets, -1, owner.pw_gid)
            self._sockets.chmod(0o2750)  # sockets belong to the node's group
            membership.folder.chmod(0o711)  # the node must reach its own folder inside

    def _socket(self, role: str) -> str:
        return str(self._sockets / role)  # the path of a socket must be short

    def _settings(self, role: str) -> Path:
        return self.membership.folder / f"worker-{role}.json"

    def _config(self, role: str) -> dict[str, str]:
        """Return the settings with which a site's worker process is started."""
        membership = self.membership
        return {
            "socket": self._socket(role),
            "worker": membership.worker,
            "site": membership.site,
            "role": role,
            "folder": str(self.runs_dir),
            "study_hash": membership.study_hash,
            **membership.worker_options,
        }

    def _worker_process(self, role: str) -> ChildProcess:
        arguments = ["abaton.engines.flower.site_worker", str(self._settings(role))]
        return self._process(f"worker-{role}", arguments, self.membership.worker_user)

    def _node_process(self) -> ChildProcess:
        arguments = ["abaton.engines.flower.site_node", str(self.node_dir / "node.json")]
        return self._process("node", arguments, self.membership.node_user)

    def _process(self, name: str, arguments: list[str], user: str) -> ChildProcess:
        folder = self.membership.folder
        environment = child_environment(self.node_dir if name == "node" else folder / "flwr")
        command = [sys.executable, "-m", *arguments]
        return ChildProcess(
            f"{self.membership.site}/{name}", command, environment, folder / "logs" / f"{name}.log", user
        )


class SiteConnectionState(StrEnum):
    """Connection state of a site."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    ADMITTED = "admitted"
    TRAINING = "training"
    IDLE = "idle"


class ConnectionStatus:
    """Reporter of changes of a site's connection state.

    Args:
        processes: the site's processes.
        report: called with each line.
        clock: the time in seconds.
    """

    def __init__(
        self,
        processes: SiteProcesses,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes, self._report, self._clock = processes, report, clock
        self.state: SiteConnectionState | None = None
        self._last_work, self._has_warned = 0.0, False
        self._disconnected_since: float | None = None

    def update(self) -> None:
        """Report changes of the site's connection state since the last call."""
        now, status = self._clock(), self._processes.node_status()
        self._warn(status)
        state = self._derive_state(now, status)
        if state is not self.state:
            self.state = state
            self._report(f"{self._processes.membership.site}: {state}{self._state_details(state)}")
        if state in (SiteConnectionState.CONNECTING, SiteConnectionState.CONNECTED):
            self._report_problem(now, str(status.get("problem", "")))
        else:
            self._disconnected_since = None

    def _derive_state(self, now: float, status: Mapping[str, Any]) -> SiteConnectionState:
        """Return the site's connection state from the status of its processes."""
        if status.get("state") != SiteConnectionState.ADMITTED:
            return (
                SiteConnectionState.CONNECTED
                if status.get("state") == SiteConnectionState.CONNECTED
                else SiteConnectionState.CONNECTING
            )
        if self._processes.is_working():
            self._last_work = now
            return SiteConnectionState.TRAINING
        if self.state in (SiteConnectionState.TRAINING, SiteConnectionState.IDLE):
            return self.state if now < self._last_work + _IDLE_SECONDS else SiteConnectionState.IDLE
        return SiteConnectionState.ADMITTED

    def _warn(self, status: Mapping[str, Any]) -> None:
        """Warn once about private files of the site that its node process can read."""
        if self._has_warned or "readable_paths" not in status:
            return
        self._has_warned = True
        if status["readable_paths"]:
            paths = ", ".join(status["readable_paths"][:5])
            self._report(
                f"warning: the user of the node can read {paths}; this system cannot restrict a process's file access "
                "(Landlock): run the node as a separate user with --node-user"
            )

    def _state_details(self, state: SiteConnectionState) -> str:
        if state is SiteConnectionState.CONNECTING:
            return f" to {self._processes.membership.centre}"
        return "; waiting for the centre to admit its key" if state is SiteConnectionState.CONNECTED else ""

    def _report_problem(self, now: float, problem: str) -> None:
        """Report the problem of a site that has been disconnected for long, and repeat it at the same interval."""
        if self._disconnected_since is None:
            self._disconnected_since = now
        if now < self._disconnected_since + _WARNING_SECONDS:
            return
        self._disconnected_since = now
        membership = self._processes.membership
        if self.state is SiteConnectionState.CONNECTING:
            text = f"the centre at {membership.centre} does not respond: {problem or 'no response'}"
        else:
            text = "the centre refuses the node; ask the centre whether the key is admitted"
        self._report(
            f"{membership.site}: for {_WARNING_SECONDS:.0f} s {text} (logs: {membership.folder / 'logs'})"
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
