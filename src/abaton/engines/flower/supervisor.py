"""Supervision of child processes, and restriction of their file access.

Linux's Landlock lets an unprivileged process restrict its own file access permanently, including that of its children:
paths that are not listed can no longer be opened. The node of a site, which has network access, restricts itself in
this way; the network itself is not restricted. Site workers are not restricted, because they may connect to a
hospital's FHIR server. Without Landlock (before Linux 5.13) the node needs a separate user; `readable_paths` shows
whether it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import site
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abaton.errors import SettingsError

MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.2, 20.0
_STABLE_SECONDS = 10.0  # runtime after which a process counts as recovered
_STOP_SECONDS = 10.0
_DEATH_SIGNAL = 1  # of prctl

_PARENT = "ABATON_PARENT"  # process id of the parent
_WITH_PARENT = f"""import ctypes, os, sys
ctypes.CDLL(None).prctl({_DEATH_SIGNAL}, 9, 0, 0, 0)
os.getppid() == int(os.environ["{_PARENT}"]) or os._exit(1)
os.execvp(sys.argv[1], sys.argv[1:])"""

# Flower sends telemetry and checks for updates; both are off.
NO_TELEMETRY = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def child_environment(home: Path) -> dict[str, str]:
    """Return the environment of supervised child processes: no telemetry, and a separate Flower home."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        **NO_TELEMETRY,
        "FLWR_HOME": str(home),
        "PATH": f"{programs}:{os.environ.get('PATH', '')}",
    }


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """Return a foreign command wrapped so that it ends with its supervisor."""
    return [sys.executable, "-c", _WITH_PARENT, *command]


def end_with_parent() -> None:
    """End this child process when its supervisor exits."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    parent = os.environ.get(_PARENT)
    if parent is not None and os.getppid() != int(parent):  # the parent exited before
        os._exit(1)


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """Command and environment of a child process.

    Attributes:
        name: its name in messages.
        command: its command line.
        environment: its environment variables.
        log: the file for its output.
        user: the user it runs as, if not the current one; requires root.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    user: str = ""


class ProcessSupervisor:
    """Supervisor of one child process.

    Args:
        program: what to run.
        report: called with one line for each change of state.
        clock: the time in seconds.
    """

    def __init__(
        self,
        program: ChildProcess,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program, self._report, self._clock = program, report, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_at, self._started_at, self._pause = 0.0, 0.0, MIN_RESTART_SECONDS

    @property
    def pid(self) -> int | None:
        """Id of the supervised process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the supervised process in a new session, so that its children can be ended with it."""
        program, self._started_at = self.program, self._clock()
        program.log.parent.mkdir(parents=True, exist_ok=True)
        user_arguments = _user_arguments(program.user) if program.user else {}
        try:
            with program.log.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603
                    program.command,
                    env={**program.environment, _PARENT: str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **user_arguments,
                )
        except FileNotFoundError:
            raise SettingsError(
                f"the program '{program.command[0]}' is not installed",
                where=program.name,
                remedy="install it with: pip install 'abaton[flower]'",
            ) from None

    def watch(self) -> None:
        """Restart the supervised process if it has exited; repeated exits lead to longer pauses."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            pause = MIN_RESTART_SECONDS if self._clock() > self._started_at + _STABLE_SECONDS else self._pause
            self._restart_at, self._pause = self._clock() + pause, min(2 * pause, MAX_RESTART_SECONDS)
            self._report(f"{self.program.name} exited (code {code}) and is restarted")
        if self._process is None and self._clock() >= self._restart_at:
            self.start()

    def stop(self) -> None:
        """Stop the supervised process and its children."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _user_arguments(name: str) -> dict[str, Any]:
    """Return the user and group arguments with which a supervised process is started."""
    entry = user_entry(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def user_entry(name: str) -> pwd.struct_passwd:
    """Return the system's entry of the user that a supervised process runs as."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise SettingsError(
            f"the user '{name}' does not exist", where="network", remedy=f"create it: useradd --system {name}"
        ) from None


def _signal_group(group: int, signal_number: signal.Signals) -> None:
    try:
        os.killpg(group, signal_number)
    except ProcessLookupError:
        return


@dataclass(frozen=True, slots=True)
class HealthEndpoint:
    """HTTPS address with an expected response.

    Attributes:
        service: its name in messages.
        address: ``host:port``.
        authority: the certificate of its authority.
        status: the expected HTTP status of its health path.
        certificate_name: the name that its certificate is issued for, if not the address.
    """

    service: str
    address: str
    authority: Path
    status: int
    certificate_name: str = ""

    def problem(self) -> str:
        """Return an empty string if a supervised service responds as expected, else the problem."""
        import httpx

        context = ssl.create_default_context(cafile=str(self.authority))
        extensions = {"sni_hostname": self.certificate_name} if self.certificate_name else {}
        try:
            with httpx.Client(verify=context, trust_env=False) as client:
                status = client.get(f"https://{self.address}/health", extensions=extensions).status_code
        except httpx.TransportError as error:
            return str(error) or "no response"
        return "" if status == self.status else f"status {status}"


def is_port_free(address: str) -> bool:
    """Return whether an address of this machine is unused, before a supervised process listens on it."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return an unused port on loopback for a supervised process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- file access --------------------------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, equal on all architectures of Linux
_NO_NEW_PRIVILEGES, _PATH_BENEATH, _ASK_VERSION = 38, 1, 1
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ_FILE
_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_SYSTEM_PATHS = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
)
_RESOLVER_PATHS = (
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/localtime",
    "/run/systemd/resolve",
)
_DEVICES = ("/dev/null", "/dev/urandom")


def restrict_file_access(own_folders: Iterable[Path], *, readable_folders: Iterable[Path] = ()) -> bool:
    """Restrict this process by Landlock to its own folders, the installed software and name resolution.

    Args:
        own_folders: folders that it may read and write.
        readable_folders: further folders that it may read.

    Returns:
        Whether the system could restrict it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if sys.platform != "linux" or version < 1:
        return False
    handled = _RIGHTS_BY_VERSION[min(version, 3)]
    rules = ctypes.c_uint64(handled)
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    read = _EXECUTE | _READ_FILE | _READ_DIR
    allowed = [
        (path, read)
        for path in (*_software_paths(), *map(Path, (*_SYSTEM_PATHS, *_RESOLVER_PATHS)), *readable_folders)
    ]
    allowed += [(Path(path), _READ_FILE | _WRITE) for path in _DEVICES]
    allowed += [(path, handled) for path in own_folders]
    try:
        is_complete = all(_allow(libc, ruleset, path, rights) for path, rights in allowed)
        privileges = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return is_complete and privileges == 0 and libc.syscall(_RESTRICT, ruleset, ctypes.c_uint32(0)) == 0
    finally:
        os.close(ruleset)


def readable_paths(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that this process can open; shows whether Landlock restricts it."""
    return [path for path in paths if _can_open(path)]


def _can_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> bool:
    """Add a Landlock rule for a path; a missing path needs none."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if not path.is_dir():
            rights &= _FILE_RIGHTS
        rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        return bool(libc.syscall(_ADD, ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(descriptor)


def _software_paths() -> list[Path]:
    """Return the folders that Landlock leaves readable: Python, the installed packages, and this package."""
    names = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix}
    package_root = Path(__file__).resolve().parents[3]
    return [Path(name) for name in sorted(names)] + [package_root]
