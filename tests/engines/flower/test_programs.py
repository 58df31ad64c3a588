"""Programs that are kept running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.flower.programs import until
from tests.engines.flower.test_certificates import NOW

from abaton.engines.flower.tls import issue
from abaton.engines.flower.site_processes import Membership, SitePrograms
from abaton.engines.flower.supervisor import PAUSE, Keeper, Program, surroundings
from abaton.errors import SettingsError
from abaton.study_run.invitation import Invitation, read_invitation


def program(folder: Path, code: str) -> Program:
    return Program("test", [sys.executable, "-c", code], surroundings(folder), folder / "logs" / "test.log")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_a_program_that_ends_is_started_again_after_a_pause_with_one_line(tmp_path):
    said, now = [], [0.0]
    keeper = Keeper(
        program(tmp_path, "print('here'); import time; time.sleep(60)"), said.append, lambda: now[0]
    )
    keeper.start()
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first))
    keeper.watch()
    keeper.watch()
    assert keeper.pid is None, "not at once"
    assert said == ["test ended (code -9) and is started again"]
    now[0] += PAUSE
    keeper.watch()
    assert keeper.pid not in (None, first)
    keeper.stop()


def test_everything_a_program_started_ends_with_it(tmp_path):
    note = tmp_path / "child"
    code = (
        "import subprocess, sys, pathlib, time, signal\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(p.pid))\n"
        "time.sleep(60)\n"
    )
    keeper = Keeper(program(tmp_path, code), lambda _: None)
    keeper.start()
    until(lambda: note.exists() and note.read_text())
    child = int(note.read_text())
    keeper.stop()
    until(lambda: gone(child))
    keeper.stop()


def test_both_call_home_switches_are_off_for_every_program(tmp_path):
    code = "import os; print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['FLWR_DISABLE_UPDATE_CHECK'])"
    keeper = Keeper(program(tmp_path, code), print)
    keeper.start()
    until(lambda: keeper.program.log.read_text() == "0 1\n")
    keeper.stop()
    site = SitePrograms(Membership("a", "127.0.0.1:1", tmp_path / "ca.pem", "m:f", tmp_path), print)
    for keeper in (site.node, *site.desks.values()):
        assert keeper.program.surroundings["FLWR_TELEMETRY_ENABLED"] == "0"
        assert keeper.program.surroundings["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_a_program_ends_with_the_one_that_started_it_however_that_ended(tmp_path):
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from abaton.engines.flower.supervisor import Keeper, Program, ending_with_parent\n"
        "words = ending_with_parent([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"keeper = Keeper(Program('x', words, dict(os.environ), Path({str(tmp_path / 'log')!r})), print)\n"
        "keeper.start()\n"
        "print(keeper.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    until(lambda: gone(child))


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    missing = Program("test", ["no-such-program"], surroundings(tmp_path), tmp_path / "log")
    with pytest.raises(SettingsError, match=r"abaton\[flower\]"):
        Keeper(missing, print).start()


def test_an_invitation_holds_what_a_site_needs_and_nothing_secret(tmp_path):
    own = issue(tmp_path, ["127.0.0.1"], NOW)
    made = Invitation("St. Mary", "centre.example.org:8443", own.authority.read_text(), "digest")
    made.write(tmp_path / "x.invitation")
    assert read_invitation(tmp_path / "x.invitation") == made
    assert "PRIVATE" not in (tmp_path / "x.invitation").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"site": 'a"b'},
        {"site": "../b"},
        {"site": ""},
        {"centre": "nowhere"},
        {"authority": "none"},
        {"more": "x"},
    ],
)
def test_a_spoilt_invitation_is_refused(tmp_path, wrong):
    import json

    own = issue(tmp_path, ["127.0.0.1"], NOW)
    path = tmp_path / "x.invitation"
    Invitation("a", "c:1", own.authority.read_text()).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(SettingsError):
        read_invitation(path)
