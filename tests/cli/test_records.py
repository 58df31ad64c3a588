"""The records commands: what they print, what they refuse, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import typed


def abaton(*words, stdin=b""):
    done = typed.abaton(*words, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def place(tmp_path) -> Path:
    assert abaton("study", "new", tmp_path / "study.toml")[0] == 0
    patient = {
        "resourceType": "Patient",
        "id": "1",
        "gender": "male",
        "name": [{"family": "C4n4ry"}],
        "birthDate": "1980-02-03",
    }
    (tmp_path / "C4n4ry.json").write_text(json.dumps(patient))
    assert abaton("records", "key", tmp_path / "study.key")[0] == 0
    return tmp_path


def deidentify(place, *more, source="C4n4ry.json", key="study.key"):
    words = ["records", "deidentify", place / source, "--study", place / "study.toml", "--out", place / "out"]
    return abaton(*words, *(["--key", place / key] if key else []), *more)


def test_records_are_deidentified_and_the_tally_is_data(place):
    code, out, err = deidentify(place, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["kept"] == {"Patient": 1}
    assert {"path": "Patient.name", "reason": "not needed by the study", "count": 1} in told["dropped"]
    (name,) = [path for path in (place / "out").iterdir() if not path.name.startswith(".")]
    assert json.loads(name.read_text())["birthDate"] == "1980"
    assert "C4n4ry" not in name.name + name.read_text()


def test_the_tally_is_a_table_too(place):
    code, out, _ = deidentify(place)
    assert code == 0
    assert "Patient.name" in out


def test_standard_input_is_read(place):
    record = (place / "C4n4ry.json").read_bytes()
    words = [
        "records",
        "deidentify",
        "-",
        "--study",
        place / "study.toml",
        "--out",
        place / "out",
        "--key",
        place / "study.key",
    ]
    code, _, err = abaton(*words, stdin=record + b"\n" + record.replace(b'"1"', b'"2"'))
    assert code == 0, err
    assert len((place / "out" / "stdin.ndjson").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ('{"resourceType":"C4n4ry"}', "type"),
        ('{"resourceType":"Patient","animal":{"x":"C4n4ry"}}', "FHIR STU3"),
        ('{"resourceType":"Patient","id":"C4n4ry","id":"2"}', "twice"),
        ('<Patient xmlns="C4n4ry"/>', "XML"),
        ('{"resourceType":"Patient","x":NaN}', "NaN"),
    ],
)
def test_a_refused_record_is_one_line_code_3_and_no_file(place, document, words):
    (place / "bad.json").write_text(document)
    code, out, err = deidentify(place, source="bad.json")
    assert code == 3
    assert words in err
    assert "C4n4ry" not in out + err.replace(str(place), "")
    assert not [path for path in (place / "out").iterdir() if not path.name.startswith(".abaton")]


def test_a_missing_or_weak_key_is_refused(place):
    (place / "weak.key").write_bytes(b"weak")
    for key, words in ((None, "no key"), ("weak.key", "not usable"), ("none.key", "cannot be read")):
        code, _, err = deidentify(place, key=key)
        assert (code, words in err) == (2, True), err
        assert not (place / "out").exists()


def test_a_missing_study_input_or_mapping_is_refused(place):
    assert abaton("records", "deidentify", place / "C4n4ry.json", "--out", place / "out")[0] == 2
    assert deidentify(place, source="nothing.json")[0] == 2
    text = (place / "study.toml").read_text()
    (place / "study.toml").write_text(text.replace('identity = "pseudonym"', 'identity = "pseudo-identity"'))
    assert deidentify(place)[0] == 2
    assert deidentify(place, "--mapping", place / "out" / "map.db")[0] == 3
    assert not (place / "out").exists()
    assert deidentify(place, "--mapping", place / "map.db")[0] == 0


def test_an_unknown_rule_is_refused_before_anything_is_written(place):
    text = (place / "study.toml").read_text()
    rule = '\n[[deidentification.rules]]\npath = "Patient.nmae"\nmethod = "redact"\n'
    (place / "study.toml").write_text(text + rule)
    code, _, err = deidentify(place)
    assert code == 2
    assert "nmae" in err
    assert not (place / "out").exists()


def test_check_tells_places_and_rules(place):
    assert abaton("records", "check", place / "C4n4ry.json")[0] == 0
    (place / "C4n4ry.json").write_text('{"resourceType":"Patient","gender":[],"C4n4ry":1}')
    code, out, err = abaton("records", "check", place / "C4n4ry.json", "--json")
    assert code == 1
    assert {row["path"] for row in json.loads(out)["problems"]} == {"Patient.gender", "Patient.(unknown)"}
    assert "C4n4ry" not in out + err


def test_explain_tells_rules_and_no_value(place):
    code, out, _ = abaton(
        "records", "explain", place / "C4n4ry.json", "--study", place / "study.toml", "--json"
    )
    assert code == 0
    rows = {row["path"]: row for row in json.loads(out)}
    assert rows["Patient.birthDate"]["rule"].startswith("generalise")
    assert not any(word in out for word in ("C4n4ry", "1980", '"male'))
    assert abaton("records", "explain", place / "C4n4ry.json")[0] == 0


def test_the_report_tells_what_was_kept_removed_checked_and_sought(place):
    code, _, err = deidentify(place, "--report", place / "privacy.json")
    assert code == 0, err
    made = json.loads((place / "privacy.json").read_text())
    assert {"path": "Patient.name", "count": 1, "reason": "not needed by the study"} in made["removed"]
    assert any(row["path"] == "Patient.gender" and row["count"] == 1 for row in made["kept"])
    assert made["checks"] == {
        "resources_validated": 1,
        "resources_invalid": 0,
        "identifiers_sought": 1,
        "identifiers_found": 0,
        "outputs_scanned": 1,
    }
    assert made["residual"]["attachments"] == 0
    assert made["not_supplied"] == ["anonymity", "consents", "models"]
    assert "C4n4ry" not in (place / "privacy.json").read_text()


def test_a_report_completes_an_earlier_one(place):
    assert deidentify(place, "--report", place / "first.json")[0] == 0
    (place / "table.csv").write_text("age,sex\n" + "40,male\n" * 6)
    words = ["records", "anonymity", place / "table.csv", "--study", place / "study.toml"]
    words += ["--rows-are-people"]
    code, _, err = abaton(*words, "--report-inputs", place / "first.json", "--report", place / "second.json")
    assert code == 0, err
    made = json.loads((place / "second.json").read_text())
    assert made["not_supplied"] == ["consents", "models"]
    assert made["checks"]["resources_validated"] == 1


def test_standard_input_cannot_be_reported_on(place):
    words = ["records", "deidentify", "-", "--study", place / "study.toml", "--out", place / "out"]
    code, _, err = abaton(*words, "--key", place / "study.key", "--report", place / "r.html", stdin=b"{}")
    assert code == 2
    assert "second time" in err
    assert not (place / "out").exists()


def test_the_ground_is_in_an_audit_chain_before_anything_is_deidentified(place):
    chain = place / "governance.db"
    ground = ["--ground", "vote 7/2026 of Dr C4n4ry", "--database", chain]
    assert deidentify(place, *ground)[0] == 0
    code, out, _ = abaton("audit", "export", "--database", chain)
    assert code == 0
    assert "ground-stated" in out
    assert "C4n4ry" not in out
    code, _, error = deidentify(place, "--ground", " ", "--database", chain)
    assert code == 2
    assert "no ground is stated" in error
