"""Every refusal of the records commands: one clear line, its exit code, and no partial output file."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests import cli_runner as typed

CALL = "import sys; from abaton.cli import main; main()"
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); " + CALL
PATIENT = {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1980-02-03"}
MARK = "C4n4ry"


def abaton(*arguments):
    """Return exit code and output of a command."""
    done = typed.abaton(*arguments)
    return done.returncode, done.stdout, done.stderr


def run_process(call, *arguments):
    """Run the command line in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", call, *map(str, arguments)], capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def outputs(folder):
    """Return the names of all output files except the export state."""
    return (
        sorted(p.name for p in folder.iterdir() if p.name != ".abaton-export.json") if folder.is_dir() else []
    )


def lines(count, start=0):
    return "".join(json.dumps(PATIENT | {"id": str(i)}) + "\n" for i in range(start, start + count)).encode()


@pytest.fixture
def folder(tmp_path):
    assert abaton("study", "new", tmp_path / "study.toml")[0] == 0
    assert abaton("records", "key", tmp_path / "study.key")[0] == 0
    (tmp_path / "good.ndjson").write_bytes(lines(3))
    return tmp_path


def deidentify(folder, *more, source="bad.json", call=""):
    arguments = [
        "records",
        "deidentify",
        folder / source,
        "--study",
        folder / "study.toml",
        "--out",
        folder / "out",
    ]
    arguments += ["--key", folder / "study.key", *more]
    return run_process(call, *arguments) if call else abaton(*arguments)


DOCUMENTS = {
    "an unknown type": (f'{{"resourceType":"{MARK}"}}', "no R4 resource type"),
    "no type": (f'{{"id":"{MARK}"}}', "no R4 resource type"),
    "a type that is a list": ('{"resourceType":["Patient"]}', "no R4 resource type"),
    "an unknown type in a Bundle": (
        f'{{"resourceType":"Bundle","entry":[{{"resource":{{"resourceType":"{MARK}"}}}}]}}',
        "no R4 resource type",
    ),
    "another version": (f'{{"resourceType":"Patient","animal":{{"x":"{MARK}"}}}}', "FHIR STU3"),
    "a type of another version": (f'{{"resourceType":"DeviceUsage","id":"{MARK}"}}', "FHIR R5"),
    "XML": (f'<Patient xmlns="{MARK}"/>', "XML"),
    "XML after spaces": (f'\n  <?xml version="1.0"?><Patient id="{MARK}"/>', "XML"),
    "a byte order mark": ("\ufeff" + json.dumps(PATIENT), "byte order mark"),
    "not a number": (f'{{"resourceType":"Patient","{MARK}":NaN}}', "NaN"),
    "an infinite number": ('{"resourceType":"Patient","x":1e999}', "finite"),
    "a key twice": (f'{{"resourceType":"Patient","id":"{MARK}","id":"2"}}', "duplicate key"),
    "a key twice, written otherwise": (f'{{"resourceType":"Patient","id":"{MARK}","\\u0069d":"2"}}', "duplicate key"),
    "too deep": ('{"resourceType":"Patient","x":' + "[" * 500 + "]" * 500 + "}", "deep"),
    "cut off": (f'{{"resourceType":"Patient","id":"{MARK}', "not valid JSON"),
    "a list": ("[]", "not a JSON object"),
    "nothing": ("", "not valid JSON"),
    "half a surrogate pair": ('{"resourceType":"Patient","id":"\\ud800"}', "surrogate"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_refused_document_gives_code_3_and_no_file(folder, name):
    text, message = DOCUMENTS[name]
    (folder / "bad.json").write_text(text, encoding="utf-8")
    code, out, err = deidentify(folder)
    assert code == 3, err
    assert message in err
    assert len(err.strip().splitlines()) <= 2
    assert MARK not in out + err
    assert outputs(folder / "out") == []


def test_invalid_utf8_and_truncated_gzip_are_refused(folder):
    packed = gzip.compress(lines(5000))
    middle = packed[: len(packed) // 2] + b"\0" * 64 + packed[len(packed) // 2 + 64 :]
    for name, data, message in (
        ("latin.json", b'{"resourceType":"Patient","id":"\xe9"}', "UTF-8"),
        ("cut.ndjson.gz", packed[:-20], "gzip"),
        ("no.ndjson.gz", b"plain", "gzip"),
        ("broken.ndjson.gz", middle, "file 1"),
    ):
        (folder / name).write_bytes(data)
        code, _, err = deidentify(folder, source=name)
        assert (code, message in err) == (3, True), err
        assert "Traceback" not in err
        assert outputs(folder / "out") == []
        (folder / "out" / ".abaton-export.json").unlink(missing_ok=True)


def test_names_of_files_are_shown_on_request_only(folder):
    (folder / "Jo_Smith.json").write_text('{"resourceType":')
    for command in ("deidentify", "check"):
        for more, shown in ((), False), (("--show-names",), True):
            arguments = ["records", command, folder / "Jo_Smith.json", *more]
            if command == "deidentify":
                arguments += [
                    "--study",
                    folder / "study.toml",
                    "--key",
                    folder / "study.key",
                    "--out",
                    folder / f"{shown}",
                ]
            code, out, err = abaton(*arguments, "--json")
            assert ("Smith" in out + err) is shown
            assert ("file 1" in err) is not shown
            assert code == 3


SETTINGS = {
    "an unknown element": ('path = "Patient.nmae"\nmethod = "redact"', "R4 has no such element"),
    "an unknown type": ('path = "Pateint.name"\nmethod = "redact"', "its resource type is not in R4"),
    "unknown syntax": ('path = "Patient.name.first()"\nmethod = "redact"', "R4 has no such element"),
    "a union": ('path = "Patient.name | Patient.photo"\nmethod = "redact"', "is invalid"),
    "an unknown method": ('path = "Patient.gender"\nmethod = "encrypt"', "no method of this name"),
    "a method that does not fit": ('path = "Patient.gender"\nmethod = "shift"', "not a date"),
    "a structural element": ('path = "Patient.id"\nmethod = "keep"', "identity"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_rule_that_is_not_understood_gives_code_2_before_anything_is_written(folder, name):
    rule, message = SETTINGS[name]
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(f"{text}\n[[deidentification.rules]]\n{rule}\n")
    code, _, err = deidentify(folder, source="good.ndjson")
    assert code == 2, err
    assert message in err
    assert not (folder / "out").exists()


def test_a_missing_study_key_input_or_folder_gives_code_2(folder):
    (folder / "weak.key").write_bytes(b"a" * 64)
    (folder / "file").touch()
    source = folder / "good.ndjson"
    study = ["--study", folder / "study.toml", "--key", folder / "study.key"]
    for arguments in (
        ["deidentify", source, "--out", folder / "out"],
        ["deidentify", source, "--out", folder / "out", "--study", folder / "none.toml"],
        ["deidentify", source, "--out", folder / "out", "--study", folder / "study.toml"],
        ["deidentify", source, "--out", folder / "out", "--study", folder / "study.toml", "--key", folder / "weak.key"],
        ["deidentify", folder / "none.json", "--out", folder / "out", *study],
        ["deidentify", source, "--out", folder / "file" / "out", *study],
        ["deidentify", source, "--out", folder / "out", *study, "--jobs", "0"],
        ["explain", folder / "none.json"],
        ["check", folder / "none.json"],
    ):  # fmt: skip
        code, _, err = abaton("records", *arguments)
        assert code == 2, (arguments, err)
        assert "Traceback" not in err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_refusal_in_the_middle_leaves_nothing_of_a_large_file(folder, jobs):
    bad = f'{{"resourceType":"{MARK}"}}\n'.encode()
    (folder / "large.ndjson").write_bytes(lines(9_000) + bad + lines(9_000, 9_000))
    code, out, err = deidentify(folder, "--jobs", jobs, source="large.ndjson", call=CALL)
    assert code == 3
    assert "line" in err
    assert MARK not in out + err
    assert outputs(folder / "out") == []
    (folder / "large.ndjson").write_bytes(lines(9_000))
    assert deidentify(folder, "--resume", source="large.ndjson")[0] == 0
    (name,) = outputs(folder / "out")
    assert (folder / "out" / name).read_bytes().count(b"\n") == 9_000


def test_a_full_disk_leaves_no_partial_file_and_the_export_resumes(folder):
    (folder / "large.ndjson").write_bytes(lines(5_000))
    code, _, err = deidentify(folder, source="large.ndjson", call=LIMITED)
    assert code == 1
    assert "not read or written completely" in err
    assert "Traceback" not in err
    assert outputs(folder / "out") == []
    code, _, err = deidentify(folder, "--resume", source="large.ndjson")
    assert code == 0, err
    assert len(outputs(folder / "out")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_leaves_no_partial_file_and_the_export_resumes(folder, jobs):
    (folder / "in").mkdir()
    for n in range(12):
        (folder / "in" / f"Patient.{n:03d}.ndjson").write_bytes(lines(4_000, n * 4_000))
    arguments = [
        "records",
        "deidentify",
        folder / "in",
        "--study",
        folder / "study.toml",
        "--out",
        folder / "out",
    ]
    arguments += ["--key", folder / "study.key", "--jobs", jobs]
    run = subprocess.Popen(
        [sys.executable, "-c", CALL, *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while (
        len([n for n in outputs(folder / "out") if n.startswith("Patient")]) < 2 and time.monotonic() < until
    ):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"Traceback" not in err
    done = outputs(folder / "out")
    assert done
    assert all(name.startswith("Patient.") for name in done)
    assert all((folder / "out" / name).read_bytes().count(b"\n") == 4_000 for name in done)
    code, _, message = run_process(CALL, *arguments, "--resume")
    assert code == 0, message
    assert len(outputs(folder / "out")) == 12


def test_temporary_files_of_a_killed_export_are_deleted_on_resume(folder):
    assert deidentify(folder, source="good.ndjson")[0] == 0
    (folder / "out" / ".abaton-0123456789abcdef.tmp").write_text("half")
    assert deidentify(folder, "--resume", source="good.ndjson")[0] == 0
    assert len(outputs(folder / "out")) == 1
    (folder / "out" / ".abaton-export.json").write_text("{half")
    code, _, err = deidentify(folder, "--resume", source="good.ndjson")
    assert (code, "start again" in err) == (2, True)


def test_an_incomplete_anonymous_export_warns_of_its_key(folder):
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace('mechanism = "pseudonymise"', 'mechanism = "anonymise"'))
    (folder / "bad.json").write_text("{}")
    code, _, err = deidentify(folder)
    assert (code, "still contains the key" in err) == (3, True), err
