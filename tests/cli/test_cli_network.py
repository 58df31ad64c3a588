"""Serving, inviting, admitting and joining from the command line: what is written and refused, without a network."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.engines.flower.server_processes import Address, read_address, write_address
from abaton.engines.flower.tls import issue, node_key
from abaton.errors import Refused, SettingsError
from abaton.study_run import FIELDS
from abaton.study_run.invitation import NodeKey, private_files, read_invitation
from abaton.lab.demo import demonstration
from abaton.site import load_site
from abaton.study import load_study

RUN = CliRunner()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals") / "all"
    demonstration(folder, 3, 0.25, rounds=4)
    return folder


@pytest.fixture
def store(tmp_path, hospitals):
    folder = tmp_path / "store" / "network"
    own = issue(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
    write_address(folder, Address("0.0.0.0", 8443, "centre.example.org"), own)
    (folder / "study.toml").write_text((hospitals / "study.toml").read_text())
    return tmp_path / "store"


def invited(store: Path, site: str) -> Path:
    path = store.parent / f"{site}.invitation"
    done = RUN.invoke(app, ["keys", "invite", site, "--store", str(store), "-o", str(path)])
    assert done.stdout.strip() == str(path), done.output
    return path


def test_an_invitation_is_one_file_with_address_authority_study_and_its_hash(store, hospitals):
    made = read_invitation(invited(store, "athens"))
    assert (made.site, made.centre) == ("athens", "centre.example.org:8443")
    assert made.study == load_study(hospitals / "study.toml").hash
    assert made.authority == (store / "network" / "certificates" / "ca.pem").read_text()
    assert "PRIVATE" not in invited(store, "athens").read_text()
    assert read_address(store / "network")[0].near == "127.0.0.1:8443"


def test_a_dry_run_prints_every_field_that_would_leave_and_starts_nothing(store, hospitals, tmp_path):
    words = ["site", "join", str(invited(store, "athens")), "--site", str(hospitals / "athens" / "site.toml")]
    before = (hospitals / "athens" / "consents.db").read_bytes()
    done = RUN.invoke(app, [*words, "--home", str(tmp_path / "member"), "--dry-run", "--json"])
    assert done.exit_code == 0, done.exception
    rows = json.loads(done.stdout)
    shown: dict[str, set[str]] = {}
    for row in rows:
        shown.setdefault(row["asked"], set()).add(row["field"])
        assert row["words"]
    not_asked = ("tell", "end", "explain")  # the last only by a study that wants it
    assert shown == {kind: set(names) for kind, names in FIELDS.items() if kind not in not_asked}
    assert not (tmp_path / "member").exists()
    assert (hospitals / "athens" / "consents.db").read_bytes() == before, "nothing is noted"
    assert "Patient/" not in done.stdout
    assert "nothing was sent" in done.stderr


def test_a_unit_file_for_systemd_names_the_whole_command(store, hospitals, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "abaton")
    words = ["site", "join", str(invited(store, "kos")), "--site", str(hospitals / "kos" / "site.toml")]
    done = RUN.invoke(app, [*words, "--systemd"])
    assert f"site join {store.parent / 'kos.invitation'}" in done.stdout
    assert "Restart=always" in done.stdout
    assert "CapabilityBoundingSet=\n" in done.stdout
    done = RUN.invoke(app, [*words, "--systemd", "--account", "abaton", "--node-account", "abaton-node"])
    assert "--account abaton --node-account abaton-node" in done.stdout
    assert "User=root" in done.stdout


def test_a_nodes_private_files_are_records_keys_and_registry(hospitals):
    found = private_files(load_site(hospitals / "athens" / "site.toml"))
    assert {"study.key", "tags.key", "athens.signing.key", "consents.db", "work"} <= {
        path.name for path in found
    }
    assert all(path.is_absolute() for path in found)


def test_another_site_and_another_study_are_refused(store, hospitals, tmp_path):
    path = invited(store, "athens")
    words = ["site", "join", str(path), "--dry-run", "--site"]
    done = RUN.invoke(app, [*words, str(hospitals / "kos" / "site.toml")])
    assert isinstance(done.exception, Refused)
    assert "for 'athens', this is 'kos'" in str(done.exception)
    other = tmp_path / "study.toml"
    other.write_text((hospitals / "study.toml").read_text().replace("rounds = 4", "rounds = 5"))
    done = RUN.invoke(app, [*words, str(hospitals / "athens" / "site.toml"), "--study", str(other)])
    assert isinstance(done.exception, Refused)
    assert "the invitation is to" in str(done.exception)


def test_a_key_of_another_site_or_with_another_fingerprint_are_refused(store, tmp_path):
    key = NodeKey("athens", node_key(tmp_path / "key")[1].read_text().strip())
    key.write(tmp_path / "athens.node")
    for words in (["kos"], ["athens", "--fingerprint", "0000"]):
        done = RUN.invoke(
            app, ["keys", "admit", words[0], str(tmp_path / "athens.node"), *words[1:], "--store", str(store)]
        )
        assert isinstance(done.exception, Refused)
        assert key.fingerprint in str(done.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "invite", "a", "--store", "nowhere"], "there is no centre here"),
        (["keys", "revoke", "a", "--store", "nowhere"], "there is no centre here"),
        (["keys", "admit", "a", "x.node", "--store", "nowhere"], "this is no node's key"),
        (["site", "join", "nothing"], "not an invitation"),
        (["serve", "study", "s.toml", "--certificate", "c"], "belong together"),
    ],
)
def test_refusals_are_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, words)
    assert isinstance(done.exception, SettingsError)
    assert said in str(done.exception)
    assert list(tmp_path.iterdir()) == [], "nothing was started or written"
