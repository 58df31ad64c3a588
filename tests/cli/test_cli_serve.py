"""``abaton serve`` and ``abaton study publish``: what they refuse, and what they say when a part is missing."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime

import pytest
import tomli_w

from abaton.cli import main
from abaton.governance import Ask, Denied, Registry, metadata
from abaton.governance.keys import read_ring
from abaton.store import Database
from abaton.study import load_study


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABATON_GOVERNANCE", str(tmp_path / "governance.db"))
    monkeypatch.setenv("PHRASE", "a long enough sentence")

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == code, err
        return err + out

    return call


def test_the_network_needs_tls(run):
    said = run("serve", "intake", "--keys", "centre.keys", "--host", "0.0.0.0", code=3)
    assert "unencrypted" in said
    assert "--certificate" in said
    assert "only half" in run(
        "serve", "intake", "--keys", "centre.keys", "--certificate", "chain.pem", code=2
    )
    assert "cannot be read" in run("serve", "intake", "--keys", "centre.keys", code=2)


def test_a_missing_web_framework_is_told_politely(run, monkeypatch):
    for name in list(sys.modules):
        if name.startswith(("abaton.governance.intake", "fastapi")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    said = run("serve", "intake", "--keys", "centre.keys", code=2)
    assert "abaton[serve]" in said


def test_a_study_is_published_with_its_content(run, tmp_path):
    run("study", "new", "study.toml")
    run("study", "publish", "study.toml")
    run("study", "publish", "study.toml")
    study = load_study(tmp_path / "study.toml")
    with Database(tmp_path / "governance.db", metadata) as database:
        (found,) = Registry(database).studies()
    assert (found.study, found.document, found.version) == (study.study.id, study.hash, 1)
    from abaton.canonical_json import digest

    assert digest(json.loads(found.content)) == study.hash
    assert found.ends < found.keep_until


def test_a_site_without_a_centre_is_told_what_to_write(run, tmp_path):
    run("study", "new", "study.toml")
    run("site", "new", "site.toml")
    assert "tags = 'tags.key' under [keys]" in run("site", "send", "study.toml", code=2)
    assert "give both" in run("site", "withdraw", "study.toml", code=2)


def test_the_service_gets_a_key_file_that_opens_nothing(run, tmp_path):
    phrase = ("--passphrase-env", "PHRASE")
    run("keys", "new", "centre.keys", "--name", "centre", *phrase)
    run("keys", "signer", "centre.keys", "--out", "service.keys", *phrase)
    whole = read_ring(tmp_path / "centre.keys", b"a long enough sentence")
    service = read_ring(tmp_path / "service.keys", b"a long enough sentence")
    assert service.signing == whole.signing
    assert service.public == whole.public
    with pytest.raises(Denied, match="not in this file"):
        service.opening(whole.public.sealing.id)
    assert (tmp_path / "service.keys").stat().st_mode & 0o777 == 0o600


def test_a_permit_is_noted_at_the_centre_if_it_holds_for_the_study(run, tmp_path):
    run("study", "new", "study.toml")
    study = load_study(tmp_path / "study.toml")
    row = {
        "number": "HDAB-7", "authority": "Body", "purposes": [study.study.purpose.value], "allows": ["send"],
        "start": date(2020, 1, 1), "end": date(2120, 1, 1), "document": study.hash,
    }  # fmt: skip
    for wrong, told in (
        ({"document": "ab" * 32}, "other-document"),
        ({"end": date(2021, 1, 1)}, "expired"),
        ({"purposes": ["screening"]}, "not-permitted"),
    ):
        (tmp_path / "permit.toml").write_text(tomli_w.dumps({**row, **wrong}))
        assert told in run("study", "permit", "study.toml", "permit.toml", code=3)
    (tmp_path / "permit.toml").write_text(tomli_w.dumps({**row, "colour": "red"}))
    assert "colour" in run("study", "permit", "study.toml", "permit.toml", code=2)
    assert "cannot be read" in run("study", "permit", "study.toml", "none.toml", code=2)
    (tmp_path / "permit.toml").write_text(tomli_w.dumps(row))
    run("study", "permit", "study.toml", "permit.toml")
    with Database(tmp_path / "governance.db", metadata) as database:
        asked = Ask("A" * 26, study.study.id, study.hash)
        assert Registry(database).sending(asked, datetime.now(UTC)).allows
