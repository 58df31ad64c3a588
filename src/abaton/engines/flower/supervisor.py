"""Programs that are kept running: started, watched, started again when they end, ended; and rights that they give up.

Linux's Landlock lets a process without any rights of its own close the file system behind it, for good: what is not
listed cannot be opened any more, by it or by what it starts. The program that talks to the network closes the site's
files so. Where the system has none (before Linux 5.13), the node needs an account of its own; `readable` says whether
that is so.
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

PAUSE, LONGEST_PAUSE = 0.2, 20.0
_STEADY = 10.0  # a program that ran for so long has recovered
_PATIENCE = 10.0
_DEATH_SIGNAL = 1  # of prctl

_PARENT = "ABATON_PARENT"  # tells a program who started it
_WITH_PARENT = f"""import ctypes, os, sys
ctypes.CDLL(None).prctl({_DEATH_SIGNAL}, 9, 0, 0, 0)
os.getppid() == int(os.environ["{_PARENT}"]) or os._exit(1)
os.execvp(sys.argv[1], sys.argv[1:])"""

# Flower calls home twice, for numbers and for news of itself; both are off.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def surroundings(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: both call-home switches off, a home of their own, and each other found."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": f"{programs}:{os.environ.get('PATH', '')}"}


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """A command of somebody else's that ends when its keeper does."""
    return [sys.executable, "-c", _WITH_PARENT, *command]


def end_with_parent() -> None:
    """Let this process end when the one that started it does, however that ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    parent = os.environ.get(_PARENT)
    if parent is not None and os.getppid() != int(parent):  # it was quicker
        os._exit(1)


@dataclass(frozen=True, slots=True)
class Program:
    """What is run.

    Attributes:
        name: what it is called in messages.
        command: the words of its command line.
        surroundings: its environment.
        log: the file that takes what it prints.
        account: whose rights it has, if not those of whoever starts it; only root can give it others.
    """

    name: str
    command: Sequence[str]
    surroundings: Mapping[str, str]
    log: Path
    account: str = ""


class Keeper:
    """Keeps one program running.

    Args:
        program: what is run.
        say: hears, in one line, when something happens.
        clock: the time in seconds.
    """

    def __init__(
        self, program: Program, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.program, self._say, self._clock = program, say, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._again, self._began, self._pause = 0.0, 0.0, PAUSE

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the program in a session of its own, so that all it starts can be ended with it."""
        program, self._began = self.program, self._clock()
        program.log.parent.mkdir(parents=True, exist_ok=True)
        rights = _rights(program.account) if program.account else {}
        try:
            with program.log.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603
                    program.command,
                    env={**program.surroundings, _PARENT: str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **rights,
                )
        except FileNotFoundError:
            raise SettingsError(
                f"there is no program '{program.command[0]}'",
                where=program.name,
                remedy="install it with: pip install 'abaton[flower]'",
            ) from None

    def watch(self) -> None:
        """Start the program again if it has ended; at once, but one that ends again and again after longer pauses."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            pause = PAUSE if self._clock() > self._began + _STEADY else self._pause
            self._again, self._pause = self._clock() + pause, min(2 * pause, LONGEST_PAUSE)
            self._say(f"{self.program.name} ended (code {code}) and is started again")
        if self._process is None and self._clock() >= self._again:
            self.start()

    def stop(self) -> None:
        """End the program and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _rights(account: str) -> dict[str, Any]:
    """The rights of an account, and no others."""
    entry = account_entry(account)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def account_entry(account: str) -> pwd.struct_passwd:
    """What the system knows of an account."""
    try:
        return pwd.getpwnam(account)
    except KeyError:
        raise SettingsError(
            f"there is no account '{account}'", where="network", remedy=f"make it: useradd --system {account}"
        ) from None


def _signal(group: int, what: signal.Signals) -> None:
    try:
        os.killpg(group, what)
    except ProcessLookupError:
        return


@dataclass(frozen=True, slots=True)
class Door:
    """Where something is to answer.

    Attributes:
        what: what it is called in messages.
        address: ``host:port``.
        authority: what its certificate is signed with.
        status: what it answers when asked for its health.
        name: what its certificate is for, if not for the address.
    """

    what: str
    address: str
    authority: Path
    status: int
    name: str = ""

    def trouble(self) -> str:
        """Nothing if it answers as it should; otherwise what is wrong."""
        import httpx

        trusted = ssl.create_default_context(cafile=str(self.authority))
        known = {"sni_hostname": self.name} if self.name else {}
        try:
            with httpx.Client(verify=trusted, trust_env=False) as client:
                status = client.get(f"https://{self.address}/health", extensions=known).status_code
        except httpx.TransportError as error:
            return str(error) or "no answer"
        return "" if status == self.status else f"status {status}"


def is_free(address: str) -> bool:
    """Whether nobody listens at an address of this machine."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- rights that a program gives up -------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on all of Linux's machines
_NO_NEW_PRIVILEGES, _PATH_BENEATH, _ASK_VERSION = 38, 1, 1
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE | _READ_FILE
_ALL_OF_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
)
_NAMES = ("/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/run/systemd/resolve")
_DEVICES = ("/dev/null", "/dev/urandom")


def close_files(mine: Iterable[Path], *, more: Iterable[Path] = ()) -> bool:
    """Let this process open its own folders, its programs and what name resolution needs, and nothing else, for good.

    Args:
        mine: folders that it may read and write.
        more: what it may read beside.

    Returns:
        Whether the system could do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if sys.platform != "linux" or version < 1:
        return False
    handled = _ALL_OF_VERSION[min(version, 3)]
    rules = ctypes.c_uint64(handled)
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    read = _EXECUTE | _READ_FILE | _READ_DIR
    allowed = [(path, read) for path in (*_programs(), *map(Path, (*_SYSTEM, *_NAMES)), *more)]
    allowed += [(Path(path), _READ_FILE | _WRITE) for path in _DEVICES]
    allowed += [(path, handled) for path in mine]
    try:
        whole = all(_allow(libc, ruleset, path, rights) for path, rights in allowed)
        privileges = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return whole and privileges == 0 and libc.syscall(_RESTRICT, ruleset, ctypes.c_uint32(0)) == 0
    finally:
        os.close(ruleset)


def readable(paths: Iterable[Path]) -> list[Path]:
    """Those of some files and folders that this process can open."""
    return [path for path in paths if _opens(path)]


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> bool:
    """Add a rule; what is not there needs none."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        return bool(libc.syscall(_ADD, ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(place)


def _programs() -> list[Path]:
    """Where Python, what is installed beside it, and this package are."""
    names = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix}
    own = Path(__file__).resolve().parents[3]
    return [Path(name) for name in sorted(names)] + [own]
