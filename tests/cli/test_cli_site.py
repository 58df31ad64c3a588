"""``abaton site``: attrition on stdout, problems on stderr, exit codes, no values."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from abaton.cli import main
from abaton.disclosure.release_gate import Question
from abaton.errors import RefusedError
from abaton.site import load_site, open_release_gate
from abaton.study import load_study

ICD = "http://hl7.org/fhir/sid/icd-10-cm"


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["abaton", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def site_folder(tmp_path: Path, run) -> Path:
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


def check(run, site_folder: Path, *more: str) -> Done:
    return run("site", "check", site_folder / "study.toml", "--site", site_folder / "site.toml", *more)


def test_the_attrition_is_printed(run, site_folder):
    done = check(run, site_folder)
    assert done.returncode == 0
    for word in ("read", "eligible", "consented", "retained", "criterion 1 (age) is not met"):
        assert word in done.stdout
    assert "1960" not in done.stdout + done.stderr
    assert "nothing of this leaves the site" in done.stderr


def test_the_attrition_as_json(run, site_folder):
    output = json.loads(check(run, site_folder, "--json").stdout)
    assert [step["stage"] for step in output["attrition"]][:4] == [
        "read",
        "eligible",
        "consented",
        "retained",
    ]
    assert output["attrition"][1]["subjects"] == 9
    assert output["attrition"][1]["excluded"][0]["subjects"] == 3
    assert output["attrition"][0]["subjects"] == 12
    assert output["site"] == "pisa"
    assert len(output["hash"]) == 64


def test_no_subject_remains(run, site_folder):
    text = (site_folder / "records" / "all.ndjson").read_text().replace("1960", "2016")
    (site_folder / "records" / "all.ndjson").write_text(text)
    done = check(run, site_folder)
    assert done.returncode == 1
    assert "no subject reaches the last stage" in done.stderr


def test_a_weaker_site_is_refused_with_the_rule_named(run, site_folder):
    file = site_folder / "site.toml"
    file.write_text(file.read_text().replace("# k = 10 ", "k = 2 "))
    done = check(run, site_folder)
    assert done.returncode == 2
    assert "rules.k = 2 is weaker than the study's k = 5" in done.stderr
    assert json.loads(check(run, site_folder, "--json").stdout)["ok"] is False


def test_nothing_is_overwritten(run, site_folder):
    done = run("site", "new", site_folder / "site.toml")
    assert done.returncode == 2
    assert "the file already exists" in done.stderr


def test_a_missing_site_is_reported(run, site_folder):
    done = run("site", "check", site_folder / "study.toml", "--site", site_folder / "none.toml")
    assert done.returncode == 2
    assert "the file cannot be read" in done.stderr


def policy(run, site_folder: Path) -> dict[str, str]:
    done = run("site", "policy", "--site", site_folder / "site.toml", "--json")
    assert done.returncode == 0, done.stderr
    return {rule["topic"]: rule["setting"] for rule in json.loads(done.stdout)}


def test_the_policy_shows_signing_key_and_trusted_signers(run, site_folder):
    own = policy(run, site_folder)["own signature"]
    assert own.startswith("ed25519:")
    assert policy(run, site_folder)["own signature"] == own, "it is made once"
    assert "seen first" in policy(run, site_folder)["models of other sites"]
    with (site_folder / "site.toml").open("a") as file:
        file.write(f'\n[policy.trusted_signers]\nlucca = "{own}"\n')
    assert policy(run, site_folder)["models of other sites"] == "signed by lucca"
    (site_folder / "pisa.signing.key").chmod(0o644)
    assert "own signature" not in policy(run, site_folder), "who may not read keys may read the rules"


def test_a_trusted_signer_without_a_fingerprint_is_refused(run, site_folder):
    with (site_folder / "site.toml").open("a") as file:
        file.write('\n[policy.trusted_signers]\nlucca = "lucca.pub"\n')
    done = run("site", "policy", "--site", site_folder / "site.toml")
    assert done.returncode != 0
    assert "policy.trusted_signers" in done.stderr


def releases(run, site_folder: Path, *more: str) -> Done:
    return run("site", "releases", "--site", site_folder / "site.toml", *more)


def release_tables(site_folder: Path, count: int) -> None:
    """Release tables of counts as a study run does."""
    file, study = load_site(site_folder / "site.toml"), load_study(site_folder / "study.toml")
    gate = open_release_gate(file, study)
    for i in range(count):
        gate.table(Question("attrition", study.study.id, {"number": i}), {"rows": ["p1", "p2"], "none": []})


def test_releases_are_shown_with_costs_and_what_remains(run, site_folder):
    empty = releases(run, site_folder)
    assert empty.returncode == 0
    assert "nothing was released yet" in empty.stderr
    assert not list(site_folder.glob("*.release-register*")), "looking creates no register"
    release_tables(site_folder, 3)
    output = json.loads(releases(run, site_folder, "--json").stdout)
    study, year = output["budgets"]
    assert [row["kind"] for row in output["releases"]] == ["attrition"] * 3
    assert {row["level"] for row in output["releases"]} == {"noisy"}
    assert sum(row["cost"] for row in output["releases"]) == pytest.approx(3 / 18)
    assert study["remaining"] == pytest.approx(1 - 3 / 18)
    assert year["remaining"] == pytest.approx(2 - 3 / 18)
    shown = releases(run, site_folder).stdout
    for text in ("attrition", "noisy", "0.056", "0.833", "1.833"):
        assert text in shown
    assert "p1" not in shown


def test_a_lost_register_is_reported_and_can_be_confirmed(run, site_folder):
    release_tables(site_folder, 1)
    refused = releases(run, site_folder, "--confirm-loss")
    assert refused.returncode == 3
    assert "is not lost" in refused.stderr
    (site_folder / "pisa.release-register").unlink()
    lost = releases(run, site_folder)
    assert lost.returncode == 3
    assert "--confirm-loss" in lost.stderr
    confirmed = releases(run, site_folder, "--confirm-loss")
    assert confirmed.returncode == 0
    assert "counts as used up" in confirmed.stderr
    output = json.loads(releases(run, site_folder, "--json").stdout)
    assert output["budgets"][-1]["remaining"] == 0.0
    assert len(output["lost"]) == 1
    with pytest.raises(RefusedError, match="is used up"):
        release_tables(site_folder, 1)


def test_the_settings_of_the_noise_are_those_of_the_policy(run, site_folder):
    file = site_folder / "site.toml"
    file.write_text(file.read_text().replace("[policy]\n", "[policy]\ntable_sd = 6.0\nstudy_budget = 0.02\n"))
    release_tables(site_folder, 1)
    output = json.loads(releases(run, site_folder, "--json").stdout)
    assert output["releases"][0]["cost"] == pytest.approx(1 / 72)
    assert output["budgets"][0]["limit"] == 0.02
    with pytest.raises(RefusedError, match="privacy budget of the study is used up"):
        release_tables(site_folder, 2)
    file.write_text(file.read_text().replace("table_sd = 6.0", "table_sd = 0.0"))
    assert "policy.table_sd" in releases(run, site_folder).stderr
