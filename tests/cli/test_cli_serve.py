"""``abaton serve`` and ``abaton study publish``: refusals and missing settings."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime

import pytest
import tomli_w

from abaton.cli import main
from abaton.governance import ConsentQuery, ConsentRegistry, DeniedError, metadata
from abaton.governance.key_files import read_key_set
from abaton.store import Database
from abaton.study import load_study


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABATON_GOVERNANCE", str(tmp_path / "governance.db"))
    monkeypatch.setenv("PHRASE", "a long enough sentence")

    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == code, err
        return err + out

    return call


def test_the_network_needs_tls(run):
    message = run("serve", "intake", "--keys", "centre.keys", "--host", "0.0.0.0", code=3)
    assert "unencrypted" in message
    assert "--certificate" in message
    assert "only one of" in run(
        "serve", "intake", "--keys", "centre.keys", "--certificate", "chain.pem", code=2
    )
    assert "could not be read" in run("serve", "intake", "--keys", "centre.keys", code=2)


def test_a_missing_web_framework_names_the_extra(run, monkeypatch):
    for name in list(sys.modules):
        if name.startswith(("abaton.governance.intake", "fastapi")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    message = run("serve", "intake", "--keys", "centre.keys", code=2)
    assert "abaton[serve]" in message


def test_a_study_is_published_with_its_content(run, tmp_path):
    run("study", "new", "study.toml")
    run("study", "publish", "study.toml")
    run("study", "publish", "study.toml")
    study = load_study(tmp_path / "study.toml")
    with Database(tmp_path / "governance.db", metadata) as database:
        (study_row,) = ConsentRegistry(database).studies()
    assert (study_row.study, study_row.document, study_row.version) == (study.study.id, study.hash, 1)
    from abaton.canonical_json import canonical_digest

    assert canonical_digest(json.loads(study_row.content)) == study.hash
    assert study_row.ends < study_row.keep_until


def test_a_site_without_a_centre_gets_a_remedy(run, tmp_path):
    run("study", "new", "study.toml")
    run("site", "new", "site.toml")
    assert "registry = 'registry.key' under [keys]" in run("site", "send", "study.toml", code=2)
    assert "give both" in run("site", "withdraw", "study.toml", code=2)


def test_an_exported_signer_cannot_open_envelopes(run, tmp_path):
    phrase = ("--passphrase-env", "PHRASE")
    run("keys", "new", "centre.keys", "--name", "centre", *phrase)
    run("keys", "export-signer", "centre.keys", "--out", "service.keys", *phrase)
    key_set = read_key_set(tmp_path / "centre.keys", b"a long enough sentence")
    service = read_key_set(tmp_path / "service.keys", b"a long enough sentence")
    assert service.signing_key == key_set.signing_key
    assert service.public == key_set.public
    with pytest.raises(DeniedError, match="does not contain the private key"):
        service.opening_key(key_set.public.sealing_key.id)
    assert (tmp_path / "service.keys").stat().st_mode & 0o777 == 0o600


def test_a_permit_is_recorded_at_the_centre_if_it_applies_to_the_study(run, tmp_path):
    run("study", "new", "study.toml")
    study = load_study(tmp_path / "study.toml")
    row = {
        "number": "HDAB-7", "authority": "Body", "purposes": [study.study.purpose.value], "actions": ["send"],
        "start": date(2020, 1, 1), "end": date(2120, 1, 1), "document": study.hash,
    }  # fmt: skip
    for replacement, message in (
        ({"document": "ab" * 32}, "other-document"),
        ({"end": date(2021, 1, 1)}, "expired"),
        ({"purposes": ["screening"]}, "not-permitted"),
    ):
        (tmp_path / "permit.toml").write_text(tomli_w.dumps({**row, **replacement}))
        assert message in run("study", "permit", "study.toml", "permit.toml", code=3)
    (tmp_path / "permit.toml").write_text(tomli_w.dumps({**row, "colour": "red"}))
    assert "colour" in run("study", "permit", "study.toml", "permit.toml", code=2)
    assert "not a readable UTF-8 file" in run("study", "permit", "study.toml", "none.toml", code=2)
    (tmp_path / "permit.toml").write_text(tomli_w.dumps(row))
    run("study", "permit", "study.toml", "permit.toml")
    with Database(tmp_path / "governance.db", metadata) as database:
        query = ConsentQuery("A" * 26, study.study.id, study.hash)
        assert ConsentRegistry(database).sending_decision(query, datetime.now(UTC)).permits
