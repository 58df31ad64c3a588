"""``abaton dashboard``: refusals, tokens, and the dashboard beside the intake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading

import pytest

from abaton.cli import main
from abaton.dashboard import load_access
from abaton.store import Store


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABATON_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PHRASE", "a long enough sentence")

    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == code, err
        return out if code == 0 else err

    return call


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "runs.example"])
def test_other_addresses_are_refused_without_authentication(run, host):
    message = run("dashboard", "--host", host, code=3)
    assert "open to the network" in message
    assert "--access" in message
    assert "open to the network" in run("dashboard", "--behind-proxy", code=3)


def test_with_authentication_the_line_must_be_encrypted(run):
    run("dashboard", "token", "ada", "--access", "access.toml")
    assert "unencrypted" in run("dashboard", "--host", "0.0.0.0", "--access", "access.toml", code=3)


def test_the_intake_shows_no_dashboard_to_a_network_without_authentication(run):
    run("keys", "new", "centre.keys", "--name", "centre", "--passphrase-env", "PHRASE")
    arguments = (
        "serve",
        "intake",
        "--keys",
        "centre.keys",
        "--passphrase-env",
        "PHRASE",
        "--behind-proxy",
        "--dashboard",
    )
    assert "open to the network" in run(*arguments, code=3)


def test_a_token_is_printed_once_and_kept_as_a_fingerprint(run, tmp_path):
    token = run("dashboard", "token", "ada", "--role", "operator", "--access", "access.toml").strip()
    assert re.fullmatch(r"abaton-[\w-]{43}", token)
    assert token not in (tmp_path / "access.toml").read_text()
    output = json.loads(run("dashboard", "token", "eve", "--access", "access.toml", "--days", "3", "--json"))
    assert output["role"] == "viewer"
    assert [t.name for t in load_access(tmp_path / "access.toml").tokens] == ["ada", "eve"]
    assert "unknown role 'king'" in run(
        "dashboard", "token", "x", "--role", "king", "--access", "a.toml", code=2
    )
    assert "cannot be read" in run("dashboard", "--access", "absent.toml", code=2)


@pytest.fixture
def started():
    """Start a command that prints its address; stop it by its process id."""
    running = []

    def start(*arguments: str) -> str:
        program = (
            f"import sys; sys.argv = ['abaton', *{list(arguments)!r}]; from abaton.cli import main; main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        late = threading.Timer(90, process.kill)
        late.start()
        address = process.stdout.readline().strip()
        late.cancel()
        return address

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.network
def test_it_serves_on_loopback_alone_by_default(run, started, tmp_path):
    import httpx

    Store(tmp_path / "store").close()
    address = started("dashboard", "--port", "0")
    assert address.startswith("http://127.0.0.1:")
    assert "No runs yet" in httpx.get(f"{address}/").text
    assert "no governance database" in httpx.get(f"{address}/governance").text


@pytest.mark.network
def test_the_dashboard_is_beside_the_intake_and_each_has_its_own_gate(run, started):
    import httpx

    run("keys", "new", "centre.keys", "--name", "centre", "--passphrase-env", "PHRASE")
    token = run("dashboard", "token", "ada", "--access", "access.toml").strip()
    address = started("serve", "intake", "--keys", "centre.keys", "--passphrase-env", "PHRASE",
                      "--database", "governance.db", "--port", "0", "--dashboard",
                      "--access", "access.toml")  # fmt: skip
    with httpx.Client(base_url=address) as client:
        assert client.get("/v1/health").status_code == 200
        assert client.get("/v1/usage").status_code == 401
        assert client.get("/dashboard").headers["location"] == "/dashboard/"
        assert client.get("/dashboard/").status_code == 401
        assert client.get("/dashboard/../v1/usage").status_code == 401
        shown = {"authorization": f"Bearer {token}"}
        assert "No study is published" in client.get("/dashboard/governance", headers=shown).text
        assert 'href="/dashboard/compare"' in client.get("/dashboard/", headers=shown).text
        assert client.get("/v1/usage", headers=shown).status_code == 401  # a token opens nothing there
        entered = client.post("/dashboard/login", data={"token": token})
        assert "path=/dashboard" in entered.headers["set-cookie"].lower()
        assert client.get("/dashboard/static/dashboard.css").status_code == 200
