"""Rights that a process gives up: the one that talks to the network cannot open the site's files any more.

Linux's Landlock lets a process without any rights of its own close the file system behind it, for good: what is not
listed cannot be opened any more, by it or by what it starts. Where the system has none (before Linux 5.13), the node
needs an account of its own; `readable` says whether that is so.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

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
