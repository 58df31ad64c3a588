"""Commands that serve, invite, admit and join: files written and refusals, without a network."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.engines.flower.server_processes import ServerAddress, read_address, write_address
from abaton.engines.flower.tls import create_node_key, issue_certificate
from abaton.errors import RefusedError, SettingsError
from abaton.lab.demo import make_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.site import load_site
from abaton.study import load_study
from abaton.study_run import FIELDS
from abaton.study_run.invitation import NodeKey, private_files, read_invitation

RUN = CliRunner()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals") / "all"
    make_demo(folder, 3, 0.25, rounds=4, cohort=FOUR_HOSPITALS)
    return folder


@pytest.fixture
def store(tmp_path, hospitals):
    folder = tmp_path / "store" / "network"
    own = issue_certificate(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
    write_address(folder, ServerAddress("0.0.0.0", 8443, "centre.example.org"), own)
    (folder / "study.toml").write_text((hospitals / "study.toml").read_text())
    return tmp_path / "store"


def invited(store: Path, site: str) -> Path:
    path = store.parent / f"{site}.invitation"
    done = RUN.invoke(app, ["keys", "invite", site, "--store", str(store), "-o", str(path)])
    assert done.stdout.strip() == str(path), done.output
    return path


def test_an_invitation_is_one_file_with_address_authority_study_and_its_hash(store, hospitals):
    invitation = read_invitation(invited(store, "athens"))
    assert (invitation.site, invitation.centre) == ("athens", "centre.example.org:8443")
    assert invitation.study == load_study(hospitals / "study.toml").hash
    assert invitation.authority == (store / "network" / "certificates" / "ca.pem").read_text()
    assert "PRIVATE" not in invited(store, "athens").read_text()
    assert read_address(store / "network")[0].local_address == "127.0.0.1:8443"


def test_a_dry_run_prints_every_field_that_would_leave_and_starts_nothing(store, hospitals, tmp_path):
    arguments = [
        "site",
        "join",
        str(invited(store, "athens")),
        "--site",
        str(hospitals / "athens" / "site.toml"),
    ]
    before = (hospitals / "athens" / "consents.db").read_bytes()
    done = RUN.invoke(app, [*arguments, "--data-dir", str(tmp_path / "member"), "--dry-run", "--json"])
    assert done.exit_code == 0, done.exception
    rows = json.loads(done.stdout)
    shown: dict[str, set[str]] = {}
    for row in rows:
        shown.setdefault(row["message_type"], set()).add(row["field"])
        assert row["description"]
    not_previewed = ("progress", "finish", "interpretability")  # the last only if the study requests it
    assert shown == {kind: set(names) for kind, names in FIELDS.items() if kind not in not_previewed}
    assert not (tmp_path / "member").exists()
    assert (hospitals / "athens" / "consents.db").read_bytes() == before, "nothing is recorded"
    assert "Patient/" not in done.stdout
    assert "nothing was sent" in done.stderr


def test_a_unit_file_for_systemd_names_the_whole_command(store, hospitals, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "abaton")
    arguments = ["site", "join", str(invited(store, "kos")), "--site", str(hospitals / "kos" / "site.toml")]
    done = RUN.invoke(app, [*arguments, "--systemd"])
    assert f"site join {store.parent / 'kos.invitation'}" in done.stdout
    assert "Restart=always" in done.stdout
    assert "CapabilityBoundingSet=\n" in done.stdout
    done = RUN.invoke(app, [*arguments, "--systemd", "--worker-user", "abaton", "--node-user", "abaton-node"])
    assert "--worker-user abaton --node-user abaton-node" in done.stdout
    assert "User=root" in done.stdout


def test_a_nodes_private_files_are_records_keys_and_registry(hospitals):
    files = private_files(load_site(hospitals / "athens" / "site.toml"))
    assert {"study.key", "registry.key", "athens.signing.key", "consents.db", "work"} <= {
        path.name for path in files
    }
    assert all(path.is_absolute() for path in files)


def test_another_site_and_another_study_are_refused(store, hospitals, tmp_path):
    path = invited(store, "athens")
    arguments = ["site", "join", str(path), "--dry-run", "--site"]
    done = RUN.invoke(app, [*arguments, str(hospitals / "kos" / "site.toml")])
    assert isinstance(done.exception, RefusedError)
    assert "for 'athens', this is 'kos'" in str(done.exception)
    other = tmp_path / "study.toml"
    other.write_text((hospitals / "study.toml").read_text().replace("rounds = 4", "rounds = 5"))
    done = RUN.invoke(app, [*arguments, str(hospitals / "athens" / "site.toml"), "--study", str(other)])
    assert isinstance(done.exception, RefusedError)
    assert "the invitation names" in str(done.exception)


def test_a_key_of_another_site_or_with_another_fingerprint_are_refused(store, tmp_path):
    key = NodeKey("athens", create_node_key(tmp_path / "key")[1].read_text().strip())
    key.write(tmp_path / "athens.node")
    for arguments in (["kos"], ["athens", "--fingerprint", "0000"]):
        done = RUN.invoke(
            app,
            [
                "keys",
                "admit",
                arguments[0],
                str(tmp_path / "athens.node"),
                *arguments[1:],
                "--store",
                str(store),
            ],
        )
        assert isinstance(done.exception, RefusedError)
        assert key.fingerprint in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "invite", "a", "--store", "nowhere"], "the folder has no centre"),
        (["keys", "revoke", "a", "--store", "nowhere"], "the folder has no centre"),
        (["keys", "admit", "a", "x.node", "--store", "nowhere"], "the file is not a node key"),
        (["site", "join", "nothing"], "not an invitation"),
        (["serve", "study", "s.toml", "--certificate", "c"], "options are incomplete"),
    ],
)
def test_refusals_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, arguments)
    assert isinstance(done.exception, SettingsError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == [], "nothing was started or written"
