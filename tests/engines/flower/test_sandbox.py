"""The node's process cannot open the site's files: by Landlock where available, or by its user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.flower.flower_processes import until

from abaton.engines.flower.site_processes import SiteMembership, SiteProcesses
from abaton.engines.flower.supervisor import (
    ChildProcess,
    ProcessSupervisor,
    child_environment,
    readable_paths,
)
from abaton.errors import SettingsError

CODE = """
import os, sys
from pathlib import Path
from abaton.engines.flower.supervisor import readable_paths, restrict_file_access
own_folder, *private_paths = map(Path, sys.argv[1:])
print(restrict_file_access([own_folder]))
print([path.name for path in readable_paths(private_paths)])
(own_folder / "new").write_text("x")
print((own_folder / "new").read_text())
for path in private_paths:
    try:
        path.write_text("x") if path.is_file() else os.listdir(path)
        print("opened", path)
    except OSError:
        pass
import ssl, json, email.mime.text  # modules can still be imported
import socket
print(socket.getaddrinfo("localhost", 1)[0][4][0] in ("127.0.0.1", "::1"))
done = os.spawnvp(os.P_WAIT, "cat", ["cat", str(private_paths[0])])
print(done != 0)
"""


def test_a_restricted_process_opens_only_its_own_files(tmp_path):
    own_folder, records = tmp_path / "node", tmp_path / "records"
    for folder in (own_folder, records):
        folder.mkdir()
    key = tmp_path / "study.key"
    key.write_text("secret")
    (records / "Patient.ndjson").write_text("{}")
    private_paths = [key, records / "Patient.ndjson", records]
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(own_folder), *map(str, private_paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    if lines[0] == "False":
        pytest.skip("this system has no Landlock")
    assert lines == ["True", "[]", "x", "True", "True"], "and neither can its children"
    assert readable_paths(private_paths) == private_paths, "other processes are not restricted"


def test_readable_paths_are_reported(tmp_path):
    (tmp_path / "a").write_text("x")
    assert readable_paths([tmp_path / "a", tmp_path / "none", tmp_path]) == [tmp_path / "a", tmp_path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_a_process_has_only_the_rights_of_its_user(tmp_path):
    key = tmp_path / "study.key"
    key.write_text("secret")
    key.chmod(0o600)
    command = ["/bin/sh", "-c", f"id -un; id -Gn; cat {key} 2>/dev/null || echo denied"]
    supervisor = ProcessSupervisor(
        ChildProcess("x", command, child_environment(tmp_path), tmp_path / "log", "nobody"), print
    )
    supervisor.start()
    until(lambda: "denied" in supervisor.program.log.read_text())
    supervisor.stop()
    assert supervisor.program.log.read_text().split() == ["nobody", "nogroup", "denied"]


def test_an_unknown_user_is_an_error(tmp_path):
    program = ChildProcess("x", ["true"], child_environment(tmp_path), tmp_path / "log", "no-such-user")
    with pytest.raises(SettingsError, match="the user 'no-such-user' does not exist"):
        ProcessSupervisor(program, print).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_each_user_owns_its_files(tmp_path):
    (tmp_path / "ca.pem").write_text("x")
    membership = SiteMembership(
        "kos", "c:1", tmp_path / "ca.pem", "m:f", tmp_path / "kos", worker_user="daemon", node_user="nobody"
    )
    site = SiteProcesses(membership, print)
    site.make_key()
    site.open()
    try:
        assert site.node_dir.owner() == site.key.owner() == "nobody"
        assert site.key.stat().st_mode & 0o777 == 0o600
        assert site.runs_dir.owner() == (tmp_path / "kos").owner() == "daemon"
        assert site.runs_dir.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "kos" / "worker-train.json").owner() == "daemon"
        assert (tmp_path / "kos" / "worker-train.json").stat().st_mode & 0o777 == 0o600
        assert site._sockets.owner() == "daemon"
        assert (site._sockets.group(), site._sockets.stat().st_mode & 0o7777) == ("nogroup", 0o2750)
    finally:
        site.stop()


def test_other_users_need_root(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SettingsError, match="only root"):
        SiteProcesses(SiteMembership("k", "c:1", Path("x"), "m:f", tmp_path, node_user="nobody"), print)
