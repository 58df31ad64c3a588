"""Supervision of child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.flower.flower_processes import until
from tests.engines.flower.test_tls import NOW

from abaton.engines.flower.site_processes import SiteMembership, SiteProcesses
from abaton.engines.flower.supervisor import (
    MIN_RESTART_SECONDS,
    ChildProcess,
    ProcessSupervisor,
    child_environment,
)
from abaton.engines.flower.tls import issue_certificate
from abaton.errors import SettingsError
from abaton.study_run.invitation import Invitation, read_invitation


def program(folder: Path, code: str) -> ChildProcess:
    return ChildProcess(
        "test", [sys.executable, "-c", code], child_environment(folder), folder / "logs" / "test.log"
    )


def has_exited(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_an_exited_process_is_restarted_after_a_pause(tmp_path):
    reports, now = [], [0.0]
    supervisor = ProcessSupervisor(
        program(tmp_path, "print('here'); import time; time.sleep(60)"), reports.append, lambda: now[0]
    )
    supervisor.start()
    first = supervisor.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: has_exited(first))
    supervisor.watch()
    supervisor.watch()
    assert supervisor.pid is None, "not immediately"
    assert reports == ["test exited (code -9) and is restarted"]
    now[0] += MIN_RESTART_SECONDS
    supervisor.watch()
    assert supervisor.pid not in (None, first)
    supervisor.stop()


def test_children_of_a_process_end_with_it(tmp_path):
    note = tmp_path / "child"
    code = (
        "import subprocess, sys, pathlib, time, signal\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(p.pid))\n"
        "time.sleep(60)\n"
    )
    supervisor = ProcessSupervisor(program(tmp_path, code), lambda _: None)
    supervisor.start()
    until(lambda: note.exists() and note.read_text())
    child = int(note.read_text())
    supervisor.stop()
    until(lambda: has_exited(child))
    supervisor.stop()


def test_telemetry_and_update_checks_are_off_in_every_process(tmp_path):
    code = "import os; print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['FLWR_DISABLE_UPDATE_CHECK'])"
    supervisor = ProcessSupervisor(program(tmp_path, code), print)
    supervisor.start()
    until(lambda: supervisor.program.log.read_text() == "0 1\n")
    supervisor.stop()
    site = SiteProcesses(SiteMembership("a", "127.0.0.1:1", tmp_path / "ca.pem", "m:f", tmp_path), print)
    for supervisor in (site.node, *site.workers.values()):
        assert supervisor.program.environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert supervisor.program.environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_a_process_ends_with_its_killed_parent(tmp_path):
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from abaton.engines.flower.supervisor import ChildProcess, ProcessSupervisor, with_parent_death_signal\n"
        "command = with_parent_death_signal([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"log = Path({str(tmp_path / 'log')!r})\n"
        "supervisor = ProcessSupervisor(ChildProcess('x', command, dict(os.environ), log), print)\n"
        "supervisor.start()\n"
        "print(supervisor.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    until(lambda: has_exited(child))


def test_a_missing_program_is_an_error(tmp_path):
    missing = ChildProcess("test", ["no-such-program"], child_environment(tmp_path), tmp_path / "log")
    with pytest.raises(SettingsError, match=r"abaton\[flower\]"):
        ProcessSupervisor(missing, print).start()


def test_an_invitation_contains_no_secret(tmp_path):
    certificates = issue_certificate(tmp_path, ["127.0.0.1"], NOW)
    invitation = Invitation(
        "St. Mary", "centre.example.org:8443", certificates.authority.read_text(), "digest"
    )
    invitation.write(tmp_path / "x.invitation")
    assert read_invitation(tmp_path / "x.invitation") == invitation
    assert "PRIVATE" not in (tmp_path / "x.invitation").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"site": 'a"b'},
        {"site": "../b"},
        {"site": ""},
        {"centre": "nowhere"},
        {"authority": "none"},
        {"more": "x"},
    ],
)
def test_an_invalid_invitation_is_refused(tmp_path, change):
    import json

    certificates = issue_certificate(tmp_path, ["127.0.0.1"], NOW)
    path = tmp_path / "x.invitation"
    Invitation("a", "c:1", certificates.authority.read_text()).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SettingsError):
        read_invitation(path)
