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
from tests import typed

CALL = "import sys; from abaton.cli import main; main()"
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); " + CALL
PATIENT = {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1980-02-03"}
MARK = "C4n4ry"


def abaton(*words):
    """What a command ends with and prints."""
    done = typed.abaton(*words)
    return done.returncode, done.stdout, done.stderr


def elsewhere(call, *words):
    """Run the command line in a process of its own."""
    done = subprocess.run([sys.executable, "-c", call, *map(str, words)], capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def outputs(folder):
    """Everything in the output but the note of what is done."""
    return (
        sorted(p.name for p in folder.iterdir() if p.name != ".abaton-export.json") if folder.is_dir() else []
    )


def lines(count, start=0):
    return "".join(json.dumps(PATIENT | {"id": str(i)}) + "\n" for i in range(start, start + count)).encode()


@pytest.fixture
def place(tmp_path):
    assert abaton("study", "new", tmp_path / "study.toml")[0] == 0
    assert abaton("records", "key", tmp_path / "study.key")[0] == 0
    (tmp_path / "good.ndjson").write_bytes(lines(3))
    return tmp_path


def deidentify(place, *more, source="bad.json", call=""):
    words = ["records", "deidentify", place / source, "--study", place / "study.toml", "--out", place / "out"]
    words += ["--key", place / "study.key", *more]
    return elsewhere(call, *words) if call else abaton(*words)


DOCUMENTS = {
    "an unknown type": (f'{{"resourceType":"{MARK}"}}', "no type that R4 knows"),
    "no type": (f'{{"id":"{MARK}"}}', "no type that R4 knows"),
    "a type that is a list": ('{"resourceType":["Patient"]}', "no type that R4 knows"),
    "an unknown type in a Bundle": (
        f'{{"resourceType":"Bundle","entry":[{{"resource":{{"resourceType":"{MARK}"}}}}]}}',
        "no type that R4 knows",
    ),
    "another version": (f'{{"resourceType":"Patient","animal":{{"x":"{MARK}"}}}}', "FHIR STU3"),
    "a type of another version": (f'{{"resourceType":"DeviceUsage","id":"{MARK}"}}', "FHIR R5"),
    "XML": (f'<Patient xmlns="{MARK}"/>', "XML"),
    "XML after spaces": (f'\n  <?xml version="1.0"?><Patient id="{MARK}"/>', "XML"),
    "a byte order mark": ("\ufeff" + json.dumps(PATIENT), "byte order mark"),
    "not a number": (f'{{"resourceType":"Patient","{MARK}":NaN}}', "NaN"),
    "an infinite number": ('{"resourceType":"Patient","x":1e999}', "finite"),
    "a key twice": (f'{{"resourceType":"Patient","id":"{MARK}","id":"2"}}', "twice"),
    "a key twice, written otherwise": (f'{{"resourceType":"Patient","id":"{MARK}","\\u0069d":"2"}}', "twice"),
    "too deep": ('{"resourceType":"Patient","x":' + "[" * 500 + "]" * 500 + "}", "deep"),
    "cut off": (f'{{"resourceType":"Patient","id":"{MARK}', "not valid JSON"),
    "a list": ("[]", "not a JSON object"),
    "nothing": ("", "not valid JSON"),
    "half a surrogate pair": ('{"resourceType":"Patient","id":"\\ud800"}', "surrogate"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_refused_document_gives_code_3_and_no_file(place, name):
    text, words = DOCUMENTS[name]
    (place / "bad.json").write_text(text, encoding="utf-8")
    code, out, err = deidentify(place)
    assert code == 3, err
    assert words in err
    assert len(err.strip().splitlines()) <= 2
    assert MARK not in out + err
    assert outputs(place / "out") == []


def test_bytes_that_are_no_text_and_gzip_that_is_cut_are_refused(place):
    packed = gzip.compress(lines(5000))
    middle = packed[: len(packed) // 2] + b"\0" * 64 + packed[len(packed) // 2 + 64 :]
    for name, data, words in (
        ("latin.json", b'{"resourceType":"Patient","id":"\xe9"}', "UTF-8"),
        ("cut.ndjson.gz", packed[:-20], "gzip"),
        ("no.ndjson.gz", b"plain", "gzip"),
        ("broken.ndjson.gz", middle, "file 1"),
    ):
        (place / name).write_bytes(data)
        code, _, err = deidentify(place, source=name)
        assert (code, words in err) == (3, True), err
        assert "Traceback" not in err
        assert outputs(place / "out") == []
        (place / "out" / ".abaton-export.json").unlink(missing_ok=True)


def test_names_of_files_are_shown_on_request_only(place):
    (place / "Jo_Smith.json").write_text('{"resourceType":')
    for command in ("deidentify", "check"):
        for more, shown in ((), False), (("--show-names",), True):
            words = ["records", command, place / "Jo_Smith.json", *more]
            if command == "deidentify":
                words += [
                    "--study",
                    place / "study.toml",
                    "--key",
                    place / "study.key",
                    "--out",
                    place / f"{shown}",
                ]
            code, out, err = abaton(*words, "--json")
            assert ("Smith" in out + err) is shown
            assert ("file 1" in err) is not shown
            assert code == 3


SETTINGS = {
    "an unknown element": ('path = "Patient.nmae"\nmethod = "redact"', "nmae"),
    "an unknown type": ('path = "Pateint.name"\nmethod = "redact"', "Pateint"),
    "unknown syntax": ('path = "Patient.name.first()"\nmethod = "redact"', "first"),
    "a union": ('path = "Patient.name | Patient.photo"\nmethod = "redact"', "not understood"),
    "an unknown method": ('path = "Patient.gender"\nmethod = "encrypt"', "encrypt"),
    "a method that does not fit": ('path = "Patient.gender"\nmethod = "shift"', "not a date"),
    "a structural element": ('path = "Patient.id"\nmethod = "keep"', "identity"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_rule_that_is_not_understood_gives_code_2_before_anything_is_written(place, name):
    rule, words = SETTINGS[name]
    text = (place / "study.toml").read_text()
    (place / "study.toml").write_text(f"{text}\n[[deidentification.rules]]\n{rule}\n")
    code, _, err = deidentify(place, source="good.ndjson")
    assert code == 2, err
    assert words in err
    assert not (place / "out").exists()


def test_a_missing_study_key_input_or_place_gives_code_2(place):
    (place / "weak.key").write_bytes(b"a" * 64)
    (place / "file").touch()
    source = place / "good.ndjson"
    study = ["--study", place / "study.toml", "--key", place / "study.key"]
    for words in (
        ["deidentify", source, "--out", place / "out"],
        ["deidentify", source, "--out", place / "out", "--study", place / "none.toml"],
        ["deidentify", source, "--out", place / "out", "--study", place / "study.toml"],
        ["deidentify", source, "--out", place / "out", "--study", place / "study.toml", "--key", place / "weak.key"],
        ["deidentify", place / "none.json", "--out", place / "out", *study],
        ["deidentify", source, "--out", place / "file" / "out", *study],
        ["deidentify", source, "--out", place / "out", *study, "--jobs", "0"],
        ["explain", place / "none.json"],
        ["check", place / "none.json"],
    ):  # fmt: skip
        code, _, err = abaton("records", *words)
        assert code == 2, (words, err)
        assert "Traceback" not in err
    assert not (place / "out").exists()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_refusal_in_the_middle_leaves_nothing_of_a_large_file(place, jobs):
    bad = f'{{"resourceType":"{MARK}"}}\n'.encode()
    (place / "large.ndjson").write_bytes(lines(9_000) + bad + lines(9_000, 9_000))
    code, out, err = deidentify(place, "--jobs", jobs, source="large.ndjson", call=CALL)
    assert code == 3
    assert "line" in err
    assert MARK not in out + err
    assert outputs(place / "out") == []
    (place / "large.ndjson").write_bytes(lines(9_000))
    assert deidentify(place, "--resume", source="large.ndjson")[0] == 0
    (name,) = outputs(place / "out")
    assert (place / "out" / name).read_bytes().count(b"\n") == 9_000


def test_a_full_disk_leaves_nothing_half_and_the_export_goes_on_later(place):
    (place / "large.ndjson").write_bytes(lines(5_000))
    code, _, err = deidentify(place, source="large.ndjson", call=LIMITED)
    assert code == 1
    assert "not read or written to its end" in err
    assert "Traceback" not in err
    assert outputs(place / "out") == []
    code, _, err = deidentify(place, "--resume", source="large.ndjson")
    assert code == 0, err
    assert len(outputs(place / "out")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_interrupted_by_the_keyboard_nothing_half_stays_and_the_export_goes_on_later(place, jobs):
    (place / "in").mkdir()
    for n in range(12):
        (place / "in" / f"Patient.{n:03d}.ndjson").write_bytes(lines(4_000, n * 4_000))
    words = ["records", "deidentify", place / "in", "--study", place / "study.toml", "--out", place / "out"]
    words += ["--key", place / "study.key", "--jobs", jobs]
    run = subprocess.Popen(
        [sys.executable, "-c", CALL, *map(str, words)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while (
        len([n for n in outputs(place / "out") if n.startswith("Patient")]) < 2 and time.monotonic() < until
    ):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"Traceback" not in err
    done = outputs(place / "out")
    assert done
    assert all(name.startswith("Patient.") for name in done)
    assert all((place / "out" / name).read_bytes().count(b"\n") == 4_000 for name in done)
    code, _, told = elsewhere(CALL, *words, "--resume")
    assert code == 0, told
    assert len(outputs(place / "out")) == 12


def test_what_a_killed_export_left_is_swept_when_it_goes_on(place):
    assert deidentify(place, source="good.ndjson")[0] == 0
    (place / "out" / ".abaton-0123456789abcdef.begun").write_text("half")
    assert deidentify(place, "--resume", source="good.ndjson")[0] == 0
    assert len(outputs(place / "out")) == 1
    (place / "out" / ".abaton-export.json").write_text("{half")
    code, _, err = deidentify(place, "--resume", source="good.ndjson")
    assert (code, "start again" in err) == (2, True)


def test_an_incomplete_anonymous_export_says_that_it_still_holds_its_key(place):
    text = (place / "study.toml").read_text()
    (place / "study.toml").write_text(text.replace('mechanism = "pseudonymise"', 'mechanism = "anonymise"'))
    (place / "bad.json").write_text("{}")
    code, _, err = deidentify(place)
    assert (code, "still holds the key" in err) == (3, True), err
