"""``abaton site``: the funnel on stdout, problems on stderr, exit codes, and never a value."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from abaton.cli import main

ICD = "http://hl7.org/fhir/sid/icd-10-cm"


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def house(tmp_path: Path, run) -> Path:
    assert run("study", "new", tmp_path / "study.toml").returncode == 0
    assert run("site", "new", tmp_path / "site.toml", "--id", "pisa").returncode == 0
    assert run("records", "key", tmp_path / "study.key").returncode == 0
    (tmp_path / "records").mkdir()
    with (tmp_path / "records" / "all.ndjson").open("w") as stream:
        for i in range(12):
            born = "1960-02-03" if i < 9 else "2016-02-03"
            subject = {"reference": f"Patient/p{i}"}
            code = {"coding": [{"system": ICD, "code": "I10"}]}
            for resource in (
                {"resourceType": "Patient", "id": f"p{i}", "gender": "male", "birthDate": born},
                {"resourceType": "Condition", "id": f"c{i}", "subject": subject, "code": code},
            ):
                stream.write(json.dumps(resource) + "\n")
    return tmp_path


def check(run, house: Path, *more: str) -> Done:
    return run("site", "check", house / "study.toml", "--site", house / "site.toml", *more)


def test_the_funnel_is_printed(run, house):
    done = check(run, house)
    assert done.returncode == 0
    for word in ("read", "eligible", "consented", "kept", "criterion 1 (age) is not met", "<5", "≥5"):
        assert word in done.stdout
    assert "1960" not in done.stdout + done.stderr


def test_the_funnel_as_json(run, house):
    found = json.loads(check(run, house, "--json").stdout)
    assert [step["stage"] for step in found["funnel"]][:4] == ["read", "eligible", "consented", "kept"]
    assert found["funnel"][1]["subjects"] == "9"
    assert found["funnel"][1]["left_out"][0]["subjects"] == "<5"
    assert found["funnel"][0]["subjects"] == "≥5"
    assert found["site"] == "pisa"
    assert len(found["hash"]) == 64


def test_nobody_comes_through(run, house):
    text = (house / "records" / "all.ndjson").read_text().replace("1960", "2016")
    (house / "records" / "all.ndjson").write_text(text)
    done = check(run, house)
    assert done.returncode == 1
    assert "nobody comes through" in done.stderr


def test_a_weaker_site_is_refused_with_the_rule_named(run, house):
    file = house / "site.toml"
    file.write_text(file.read_text().replace("# k = 10 ", "k = 2 "))
    done = check(run, house)
    assert done.returncode == 2
    assert "rules.k: the site's rule k = 2 is weaker than the study's k = 5" in done.stderr
    assert json.loads(check(run, house, "--json").stdout)["ok"] is False


def test_nothing_is_overwritten(run, house):
    done = run("site", "new", house / "site.toml")
    assert done.returncode == 2
    assert "there is already a file" in done.stderr


def test_a_missing_site_is_told(run, house):
    done = run("site", "check", house / "study.toml", "--site", house / "none.toml")
    assert done.returncode == 2
    assert "the file cannot be read" in done.stderr


def policy(run, house: Path) -> dict[str, str]:
    done = run("site", "policy", "--site", house / "site.toml", "--json")
    assert done.returncode == 0, done.stderr
    return {rule["about"]: rule["holds"] for rule in json.loads(done.stdout)}


def test_the_policy_shows_the_sites_own_key_and_whom_it_believes(run, house):
    own = policy(run, house)["own signature"]
    assert own.startswith("ed25519:")
    assert policy(run, house)["own signature"] == own, "it is made once"
    assert "first seen" in policy(run, house)["models of other sites"]
    with (house / "site.toml").open("a") as file:
        file.write(f'\n[policy.peers]\nlucca = "{own}"\n')
    assert policy(run, house)["models of other sites"] == "signed by lucca"
    (house / "pisa.signing.key").chmod(0o644)
    assert "own signature" not in policy(run, house), "who may not read keys may read the rules"


def test_a_peer_that_is_no_fingerprint_is_refused(run, house):
    with (house / "site.toml").open("a") as file:
        file.write('\n[policy.peers]\nlucca = "lucca.pub"\n')
    done = run("site", "policy", "--site", house / "site.toml")
    assert done.returncode != 0
    assert "peers" in done.stderr
