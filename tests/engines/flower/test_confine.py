"""The node's process cannot open the site's files: by Landlock where the system has it, or by its account."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.flower.programs import until

from abaton.engines.flower.site_processes import Membership, SitePrograms
from abaton.engines.flower.supervisor import Keeper, Program, readable, surroundings
from abaton.errors import SettingsError

CODE = """
import os, sys
from pathlib import Path
from abaton.engines.flower.supervisor import close_files, readable
mine, *others = map(Path, sys.argv[1:])
print(close_files([mine]))
print([path.name for path in readable(others)])
(mine / "new").write_text("x")
print((mine / "new").read_text())
for path in others:
    try:
        path.write_text("x") if path.is_file() else os.listdir(path)
        print("opened", path)
    except OSError:
        pass
import ssl, json, email.mime.text  # what was not loaded before can still be
import socket
print(socket.getaddrinfo("localhost", 1)[0][4][0] in ("127.0.0.1", "::1"))
done = os.spawnvp(os.P_WAIT, "cat", ["cat", str(others[0])])
print(done != 0)
"""


def test_a_process_that_closed_its_files_opens_nothing_but_its_own(tmp_path):
    mine, records = tmp_path / "node", tmp_path / "records"
    for folder in (mine, records):
        folder.mkdir()
    key = tmp_path / "study.key"
    key.write_text("secret")
    (records / "Patient.ndjson").write_text("{}")
    others = [key, records / "Patient.ndjson", records]
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(mine), *map(str, others)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    if lines[0] == "False":
        pytest.skip("this system has no Landlock")
    assert lines == ["True", "[]", "x", "True", "True"], "nor does what it starts"
    assert readable(others) == others, "others are not confined"


def test_what_can_be_read_is_told(tmp_path):
    (tmp_path / "a").write_text("x")
    assert readable([tmp_path / "a", tmp_path / "none", tmp_path]) == [tmp_path / "a", tmp_path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other accounts")
def test_a_program_has_the_rights_of_its_account_and_no_others(tmp_path):
    key = tmp_path / "study.key"
    key.write_text("secret")
    key.chmod(0o600)
    words = ["/bin/sh", "-c", f"id -un; id -Gn; cat {key} 2>/dev/null || echo closed"]
    keeper = Keeper(Program("x", words, surroundings(tmp_path), tmp_path / "log", "nobody"), print)
    keeper.start()
    until(lambda: "closed" in keeper.program.log.read_text())
    keeper.stop()
    assert keeper.program.log.read_text().split() == ["nobody", "nogroup", "closed"]


def test_an_account_that_is_not_there_is_one_line(tmp_path):
    program = Program("x", ["true"], surroundings(tmp_path), tmp_path / "log", "no-such-account")
    with pytest.raises(SettingsError, match="there is no account 'no-such-account'"):
        Keeper(program, print).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_each_account_owns_what_is_its_own(tmp_path):
    (tmp_path / "ca.pem").write_text("x")
    member = Membership(
        "kos", "c:1", tmp_path / "ca.pem", "m:f", tmp_path / "kos", account="daemon", node_account="nobody"
    )
    site = SitePrograms(member, print)
    site.make_key()
    site.open()
    try:
        assert site.home.owner() == site.key.owner() == "nobody"
        assert site.key.stat().st_mode & 0o777 == 0o600
        assert site.runs.owner() == (tmp_path / "kos").owner() == "daemon"
        assert site.runs.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "kos" / "desk-train.json").owner() == "daemon"
        assert (tmp_path / "kos" / "desk-train.json").stat().st_mode & 0o777 == 0o600
        assert site._sockets.owner() == "daemon"
        assert (site._sockets.group(), site._sockets.stat().st_mode & 0o7777) == ("nogroup", 0o2750)
    finally:
        site.stop()


def test_accounts_need_root(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SettingsError, match="only root"):
        SitePrograms(Membership("k", "c:1", Path("x"), "m:f", tmp_path, node_account="nobody"), print)
