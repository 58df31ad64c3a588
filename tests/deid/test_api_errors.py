"""Public functions from records to an anonymous table, and their errors."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from abaton.anonymity import AnonymitySettings, BinHierarchy, QuasiIdentifier, anonymise
from abaton.errors import RefusedError, SettingsError
from abaton.fhir.bundles import bundle_resources
from abaton.record_types import DeidentifiedRecord, Record
from abaton.views import view

ROWS = [
    {"patient": who, "age": age, "sex": sex, "ill": ill, "note": "Karolidis"}
    for who, age, sex, ill in [
        ("a", 31, "f", "x"),
        ("a", 31, "f", "y"),
        ("a", 32, "f", "x"),
        ("b", 33, "f", "y"),
        ("c", 36, "f", "x"),
        ("d", 38, "f", "z"),
    ]
]
AGE = {"age": {"bins": [5, 10]}}
PATIENT = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1980-02-01"}
BUNDLE = {
    "resourceType": "Bundle",
    "type": "transaction",
    "entry": [
        {"fullUrl": "urn:uuid:7", "resource": PATIENT},
        {
            "fullUrl": "urn:uuid:8",
            "resource": {
                "resourceType": "Device",
                "patient": {"reference": "urn:uuid:7", "display": "Karolidis"},
            },
        },
        {"resource": {"resourceType": "Device", "id": "d2", "patient": {"reference": "Patient/p9"}}},
        {"request": {"method": "GET"}},
        "spoilt",
    ],
}
DEVICES = {
    "resource": "Device",
    "select": [
        {
            "column": [
                {"name": "device", "path": "getResourceKey()"},
                {"name": "subject", "path": "getReferenceKey(Patient)"},
            ]
        }
    ],
}
TYPO = {"resource": "Patient", "select": [{"column": [{"name": "x", "path": "gendr"}]}]}
PATIENT_VIEW = {
    "resource": "Patient",
    "select": [{"column": [{"name": "subject", "path": "getResourceKey()"}]}],
}


class Capsule:
    """A table of another library that supports the Arrow interchange only."""

    def __init__(self, frame):
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self._frame.__arrow_c_stream__(requested_schema)


EXPECTED = [{"age": "30-39", "ill": row["ill"]} for row in ROWS]


@pytest.mark.parametrize(
    ("make", "plain_text"),
    [
        (pl.DataFrame, lambda anonymised: anonymised.to_dicts()),
        (pl.LazyFrame, lambda anonymised: anonymised.collect().to_dicts()),
        (list, list),
        (tuple, list),
        (
            lambda rows: {key: [row[key] for row in rows] for key in rows[0]},
            lambda anonymised: pl.DataFrame(anonymised).to_dicts(),
        ),
        (lambda rows: Capsule(pl.DataFrame(rows)), lambda anonymised: anonymised.to_dicts()),
    ],
)
def test_a_table_is_returned_in_its_own_type(make, plain_text):
    given = make(ROWS)
    anonymised = anonymise(given, AGE, subject="patient", k=4, passthrough_columns=["ill"])
    assert plain_text(anonymised.table) == EXPECTED
    if not isinstance(given, Capsule | tuple):
        assert isinstance(anonymised.table, type(given))
    assert (anonymised.before.k, anonymised.after.k, anonymised.after.subjects) == (1, 4, 4)
    assert "Karolidis" not in repr(anonymised)


def test_a_file_is_accepted_as_a_table(tmp_path):
    pl.DataFrame(ROWS).write_csv(tmp_path / "stays.csv")
    anonymised = anonymise(tmp_path / "stays.csv", AGE, subject="patient", k=4, passthrough_columns=["ill"])
    assert anonymised.table.to_dicts() == EXPECTED


def test_settings_in_every_form(tmp_path):
    complete = AnonymitySettings(
        (QuasiIdentifier("age", BinHierarchy((5.0, 10.0))),), k=4, passthrough_columns=("ill",)
    )
    study = tmp_path / "study.toml"
    study.write_text(
        "[privacy.anonymity]\nk = 4\npassthrough_columns = ['ill']\none_row_per_subject = true\n"
        "quasi_identifiers = [{ column = 'age', hierarchy = 'ages.csv' }]\n"
    )
    (tmp_path / "ages.csv").write_text(
        "".join(f"{age};30-34;30-39\n" for age in range(30, 40)).replace("35;30-34", "35;35-39")
    )
    listed = [{"column": "age", "hierarchy": {"bins": [5, 10]}, "weight": 2}]
    for requested in (AGE, listed):
        assert (
            anonymise(ROWS, requested, subject="patient", k=4, passthrough_columns=["ill"]).table == EXPECTED
        )
        assert anonymise(ROWS, requested, subject="patient", study=complete).table == EXPECTED
    assert anonymise(ROWS, study=complete, subject="patient").table == EXPECTED
    assert anonymise(ROWS, study=study, subject="patient").after.k == 4
    assert anonymise(ROWS, study=str(study), k=2).after.subjects == 6
    anonymised = anonymise(ROWS, ["sex"], subject="patient", k=4, sensitive={"ill": {"diversity": {"l": 2}}})
    assert anonymised.after.sensitive[0].distinct >= 2
    assert anonymise(ROWS, ["sex"], subject="patient", k=4, sensitive=["ill"]).table[0] == {
        "sex": "f",
        "ill": "x",
    }


def test_a_missing_subject_setting_is_refused():
    with pytest.raises(SettingsError, match="subject = "):
        anonymise(ROWS, AGE, k=3)
    assert anonymise(ROWS, AGE, k=3, one_row_per_subject=True).after.subjects == 6


@pytest.mark.parametrize(
    ("call", "guess"),
    [
        (lambda: anonymise(ROWS, {"agee": None}, subject="patient"), "'age'"),
        (lambda: anonymise(ROWS, AGE, subject="pateint"), "'patient'"),
        (lambda: anonymise(ROWS, AGE, subject="patient", passthrough_columns=["ilness"]), "its columns are"),
        (lambda: anonymise(ROWS, AGE, subject="patient", supression_limit=1), "'suppression_limit'"),
        (lambda: anonymise(ROWS, {"age": {"bin": [5]}}, subject="patient"), "one of file"),
        (lambda: anonymise(7, AGE, subject="patient"), "list of dicts"),
        (lambda: anonymise([{"a": 1}, 3], AGE, subject="patient"), "list of dicts"),
        (
            lambda: anonymise({"age": [1], "patient": ["Karolidis", "x"]}, AGE, subject="patient"),
            "equal rows",
        ),
        (lambda: anonymise(ROWS, 5, subject="patient"), "'quasi_identifiers' must be a list"),
        (lambda: anonymise(ROWS, subject="patient"), "'quasi_identifiers' must be given"),
        (lambda: anonymise(ROWS, AGE, subject="patient", sensitive="ill"), "'sensitive' must be a list"),
        (
            lambda: anonymise(ROWS, AGE, subject="patient", sensitive=[{"column": "ill", "l": 2}]),
            "move it to the table it belongs to",
        ),
        (lambda: anonymise(ROWS, AGE, study="none.toml"), "cannot be read"),
        (lambda: view(PATIENT_VIEW | {"resource": "Pateint"}, []), "'Patient'"),
        (lambda: view(TYPO, []), "'gender'"),
        (lambda: view(PATIENT_VIEW | {"wehre": [{"path": "active"}]}, []), "did you mean 'where'"),
        (lambda: view(PATIENT_VIEW | {"where": [{"paht": "active"}]}, []), "did you mean 'path'"),
        (lambda: anonymise(ROWS, quasi_identifers=["age"], subject="patient"), "'quasi_identifiers'?"),
        (lambda: view(PATIENT_VIEW, 7), "give resources"),
        (lambda: view("none.json", []), "No such file"),
    ],
)
def test_typos_are_refused_with_the_nearest_name(call, guess):
    with pytest.raises(SettingsError) as output:
        call()
    assert guess in str(output.value)
    assert "Karolidis" not in str(output.value)


def test_a_view_reads_what_deidentify_reads_and_refuses_what_is_nested_without_end():
    patient = {"resourceType": "Patient", "id": "p1", "gender": "female"}
    text = json.dumps(patient)
    for given in (patient, text, text.encode(), [text], (resource for resource in [patient, text])):
        assert view(PATIENT_VIEW, given)[0].to_dicts() == view(PATIENT_VIEW, [patient]).to_dicts()
    inner = patient
    for _ in range(3000):
        inner["extension"] = [{"url": "x"}]
        inner = inner["extension"][0]
    with pytest.raises(RefusedError, match="64 levels"):
        view(PATIENT_VIEW, patient)


def test_no_records_make_an_empty_table():
    assert view(PATIENT_VIEW, []).shape == (0, len(PATIENT_VIEW["select"][0]["column"]))


def test_a_table_that_cannot_be_anonymised_is_refused():
    with pytest.raises(RefusedError):
        anonymise(ROWS, AGE, subject="patient", k=5)


def test_bundles_are_opened_and_their_addresses_become_keys(tmp_path):
    before = copy.deepcopy(BUNDLE)
    devices = [
        {"device": "Device/8", "subject": "Patient/p1"},
        {"device": "Device/d2", "subject": "Patient/p9"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(BUNDLE))
    (tmp_path / "view.json").write_text(json.dumps(DEVICES))
    for records in (
        BUNDLE,
        [BUNDLE],
        Record(BUNDLE),
        DeidentifiedRecord(BUNDLE),
        tmp_path / "a.json",
        [str(tmp_path / "a.json")],
    ):
        assert view(DEVICES, records).to_dicts() == devices
    assert view(tmp_path / "view.json", BUNDLE).to_dicts() == devices
    assert view(PATIENT_VIEW, [PATIENT, BUNDLE]).to_dicts() == [{"subject": "Patient/p1"}] * 2
    assert before == BUNDLE
    assert next(bundle_resources(BUNDLE)) is PATIENT  # what is not changed is not copied


def test_from_records_to_an_anonymous_table():
    patients = [{**PATIENT, "id": f"p{i}", "birthDate": f"{1980 + i % 7}-02-01"} for i in range(20)]
    columns = [
        {"name": "subject", "path": "getResourceKey()"},
        {"name": "born", "path": "birthDate"},
        {"name": "sex", "path": "gender"},
    ]
    table = view({"resource": "Patient", "select": [{"column": columns}]}, patients)
    anonymised = anonymise(
        table, {"born": {"dates": ["year", "decade"]}, "sex": None}, subject="subject", k=5
    )
    assert set(anonymised.table["born"]) == {"1980s"}


def test_public_functions_import_dependencies_only_when_called():
    code = (
        "import abaton.records, abaton.deid, sys;"
        "print([m for m in ('numpy', 'polars', 'pydantic') if m in sys.modules]);"
        "from abaton import anonymise, view; print(callable(anonymise), callable(view))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nTrue True\n"


@pytest.mark.parametrize("page", ["anonymity", "views"])
def test_the_examples_of_the_pages_run_and_print_what_is_shown(page, capsys):
    text = (Path(__file__).parents[2] / f"docs/{page}.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.S)
    assert blocks
    for code, printed in blocks:
        exec(compile(code, page, "exec"), {})
        assert capsys.readouterr().out == printed
