"""A temporary PostgreSQL server on a socket in a private folder."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a temporary server; empty if none can be started."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(binaries[-1]) if binaries else "")
    if not initdb or importlib.util.find_spec("psycopg") is None:
        yield ""
        return
    folder, programs = Path(tempfile.mkdtemp(prefix="pg")), Path(initdb).parent
    options: dict[str, Any] = {"cwd": folder, "capture_output": True, "check": True}
    if os.geteuid() == 0:  # the server refuses to run as root
        user = pwd.getpwnam("postgres" if _has_account("postgres") else "nobody").pw_name
        shutil.chown(folder, user)
        options |= {"user": user, "extra_groups": []}
    data, socket = folder / "data", f"-c fsync=off -c listen_addresses='' -k {folder}"
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "abaton", "-A", "trust", "-E", "UTF8"], **options
        )
        control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        subprocess.run([*control, "-o", socket, "start"], **options)
        try:
            yield f"postgresql+psycopg://abaton@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_account(name: str) -> bool:
    return any(account.pw_name == name for account in pwd.getpwall())
