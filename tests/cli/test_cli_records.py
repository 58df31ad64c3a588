"""The records commands: output, refusals and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import cli_runner as typed


def abaton(*arguments, stdin=b""):
    done = typed.abaton(*arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path) -> Path:
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


def deidentify(folder, *more, source="C4n4ry.json", key="study.key"):
    arguments = [
        "records",
        "deidentify",
        folder / source,
        "--study",
        folder / "study.toml",
        "--out",
        folder / "out",
    ]
    return abaton(*arguments, *(["--key", folder / key] if key else []), *more)


def test_records_are_deidentified_and_counts_are_json(folder):
    code, out, err = deidentify(folder, "--json")
    assert code == 0, err
    output = json.loads(out)
    assert output["kept"] == {"Patient": 1}
    assert {"path": "Patient.name", "reason": "not needed by the study", "count": 1} in output["dropped"]
    (name,) = [path for path in (folder / "out").iterdir() if not path.name.startswith(".")]
    assert json.loads(name.read_text())["birthDate"] == "1980"
    assert "C4n4ry" not in name.name + name.read_text()


def test_the_counts_are_a_table(folder):
    code, out, _ = deidentify(folder)
    assert code == 0
    assert "Patient.name" in out


def test_standard_input_is_read(folder):
    record = (folder / "C4n4ry.json").read_bytes()
    arguments = [
        "records",
        "deidentify",
        "-",
        "--study",
        folder / "study.toml",
        "--out",
        folder / "out",
        "--key",
        folder / "study.key",
    ]
    code, _, err = abaton(*arguments, stdin=record + b"\n" + record.replace(b'"1"', b'"2"'))
    assert code == 0, err
    assert len((folder / "out" / "stdin.ndjson").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('{"resourceType":"C4n4ry"}', "type"),
        ('{"resourceType":"Patient","animal":{"x":"C4n4ry"}}', "FHIR STU3"),
        ('{"resourceType":"Patient","id":"C4n4ry","id":"2"}', "duplicate key"),
        ('<Patient xmlns="C4n4ry"/>', "XML"),
        ('{"resourceType":"Patient","x":NaN}', "NaN"),
    ],
)
def test_a_refused_record_is_one_line_code_3_and_no_file(folder, document, message):
    (folder / "bad.json").write_text(document)
    code, out, err = deidentify(folder, source="bad.json")
    assert code == 3
    assert message in err
    assert "C4n4ry" not in out + err.replace(str(folder), "")
    assert not [path for path in (folder / "out").iterdir() if not path.name.startswith(".abaton")]


def test_a_missing_or_weak_key_is_refused(folder):
    (folder / "weak.key").write_bytes(b"weak")
    for key, message in (
        (None, "--key is missing"),
        ("weak.key", "not usable"),
        ("none.key", "cannot be read"),
    ):
        code, _, err = deidentify(folder, key=key)
        assert (code, message in err) == (2, True), err
        assert not (folder / "out").exists()


def test_a_missing_study_input_or_mapping_is_refused(folder):
    assert abaton("records", "deidentify", folder / "C4n4ry.json", "--out", folder / "out")[0] == 2
    assert deidentify(folder, source="nothing.json")[0] == 2
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace('identity = "pseudonym"', 'identity = "pseudo-identity"'))
    assert deidentify(folder)[0] == 2
    assert deidentify(folder, "--mapping", folder / "out" / "map.db")[0] == 3
    assert not (folder / "out").exists()
    assert deidentify(folder, "--mapping", folder / "map.db")[0] == 0


def test_an_unknown_rule_is_refused_before_anything_is_written(folder):
    text = (folder / "study.toml").read_text()
    rule = '\n[[deidentification.rules]]\npath = "Patient.nmae"\nmethod = "redact"\n'
    (folder / "study.toml").write_text(text + rule)
    code, _, err = deidentify(folder)
    assert code == 2
    assert "R4 has no such element" in err
    assert not (folder / "out").exists()


def test_check_lists_paths_and_rules(folder):
    assert abaton("records", "check", folder / "C4n4ry.json")[0] == 0
    (folder / "C4n4ry.json").write_text('{"resourceType":"Patient","gender":[],"C4n4ry":1}')
    code, out, err = abaton("records", "check", folder / "C4n4ry.json", "--json")
    assert code == 1
    assert {row["path"] for row in json.loads(out)["problems"]} == {"Patient.gender", "Patient.(unknown)"}
    assert "C4n4ry" not in out + err


def test_explain_lists_rules_without_values(folder):
    code, out, _ = abaton(
        "records", "explain", folder / "C4n4ry.json", "--study", folder / "study.toml", "--json"
    )
    assert code == 0
    rows = {row["path"]: row for row in json.loads(out)}
    assert rows["Patient.birthDate"]["rule"].startswith("generalise")
    assert not any(word in out for word in ("C4n4ry", "1980", '"male'))
    assert abaton("records", "explain", folder / "C4n4ry.json")[0] == 0


def test_the_report_lists_elements_and_checks(folder):
    code, _, err = deidentify(folder, "--report", folder / "privacy.json")
    assert code == 0, err
    report = json.loads((folder / "privacy.json").read_text())
    assert {"path": "Patient.name", "count": 1, "reason": "not needed by the study"} in report["removed"]
    assert any(row["path"] == "Patient.gender" and row["count"] == 1 for row in report["retained"])
    assert report["checks"] == {
        "resources_validated": 1,
        "resources_invalid": 0,
        "identifiers_sought": 1,
        "identifiers_found": 0,
        "outputs_scanned": 1,
    }
    assert report["residual"]["attachments"] == 0
    assert report["not_supplied"] == ["anonymity", "consents", "models"]
    assert "C4n4ry" not in (folder / "privacy.json").read_text()


def test_a_report_completes_an_earlier_one(folder):
    assert deidentify(folder, "--report", folder / "first.json")[0] == 0
    (folder / "table.csv").write_text("age,sex\n" + "40,male\n" * 6)
    arguments = ["records", "anonymity", folder / "table.csv", "--study", folder / "study.toml"]
    arguments += ["--one-row-per-subject"]
    code, _, err = abaton(
        *arguments, "--report-inputs", folder / "first.json", "--report", folder / "second.json"
    )
    assert code == 0, err
    report = json.loads((folder / "second.json").read_text())
    assert report["not_supplied"] == ["consents", "models"]
    assert report["checks"]["resources_validated"] == 1


def test_standard_input_cannot_be_reported_on(folder):
    arguments = ["records", "deidentify", "-", "--study", folder / "study.toml", "--out", folder / "out"]
    code, _, err = abaton(
        *arguments, "--key", folder / "study.key", "--report", folder / "r.html", stdin=b"{}"
    )
    assert code == 2
    assert "read twice" in err
    assert not (folder / "out").exists()


def test_the_legal_basis_is_in_the_audit_log_before_deidentification(folder):
    database = folder / "governance.db"
    legal_basis = ["--legal-basis", "approval 7/2026 of Dr C4n4ry", "--database", database]
    assert deidentify(folder, *legal_basis)[0] == 0
    code, out, _ = abaton("audit", "export", "--database", database)
    assert code == 0
    assert "legal-basis-stated" in out
    assert "C4n4ry" not in out
    code, _, error = deidentify(folder, "--legal-basis", " ", "--database", database)
    assert code == 2
    assert "the legal basis is empty" in error
