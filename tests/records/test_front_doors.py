"""What a hospital engineer calls: records to a table, a table to an anonymous one, without a submodule's name."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from abaton.errors import Refused, SettingsError
from abaton.records import Deidentified, Record, anonymise, opened, view
from abaton.anonymity import AnonymitySettings, BinHierarchy, QuasiIdentifier

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
PEOPLE = {"resource": "Patient", "select": [{"column": [{"name": "subject", "path": "getResourceKey()"}]}]}


class Capsule:
    """A table of somebody else's make, known by the Arrow interchange alone."""

    def __init__(self, frame):
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema=None):
        return self._frame.__arrow_c_stream__(requested_schema)


EXPECTED = [{"age": "30-39", "ill": row["ill"]} for row in ROWS]


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (pl.DataFrame, lambda made: made.to_dicts()),
        (pl.LazyFrame, lambda made: made.collect().to_dicts()),
        (list, list),
        (tuple, list),
        (
            lambda rows: {key: [row[key] for row in rows] for key in rows[0]},
            lambda made: pl.DataFrame(made).to_dicts(),
        ),
        (lambda rows: Capsule(pl.DataFrame(rows)), lambda made: made.to_dicts()),
    ],
)
def test_a_table_comes_back_in_its_make(make, plain):
    given = make(ROWS)
    made = anonymise(given, AGE, subject="patient", k=4, keep=["ill"])
    assert plain(made.table) == EXPECTED
    if not isinstance(given, Capsule | tuple):
        assert isinstance(made.table, type(given))
    assert (made.before.k, made.after.k, made.after.people) == (1, 4, 4)
    assert "Karolidis" not in repr(made)


def test_a_file_is_a_table_too(tmp_path):
    pl.DataFrame(ROWS).write_csv(tmp_path / "stays.csv")
    made = anonymise(tmp_path / "stays.csv", AGE, subject="patient", k=4, keep=["ill"])
    assert made.table.to_dicts() == EXPECTED


def test_settings_in_every_form(tmp_path):
    whole = AnonymitySettings((QuasiIdentifier("age", BinHierarchy((5.0, 10.0))),), k=4, keep=("ill",))
    study = tmp_path / "study.toml"
    study.write_text(
        "[privacy.anonymity]\nk = 4\nkeep = ['ill']\nrows_are_people = true\n"
        "quasi_identifiers = [{ column = 'age', hierarchy = 'ages.csv' }]\n"
    )
    (tmp_path / "ages.csv").write_text(
        "".join(f"{age};30-34;30-39\n" for age in range(30, 40)).replace("35;30-34", "35;35-39")
    )
    listed = [{"column": "age", "hierarchy": {"bins": [5, 10]}, "weight": 2}]
    for asked in (AGE, listed):
        assert anonymise(ROWS, asked, subject="patient", k=4, keep=["ill"]).table == EXPECTED
        assert anonymise(ROWS, asked, subject="patient", study=whole).table == EXPECTED
    assert anonymise(ROWS, study=whole, subject="patient").table == EXPECTED
    assert anonymise(ROWS, study=study, subject="patient").after.k == 4
    assert anonymise(ROWS, study=str(study), k=2).after.people == 6
    made = anonymise(ROWS, ["sex"], subject="patient", k=4, sensitive={"ill": {"diversity": {"l": 2}}})
    assert made.after.sensitive[0].distinct >= 2
    assert anonymise(ROWS, ["sex"], subject="patient", k=4, sensitive=["ill"]).table[0] == {
        "sex": "f",
        "ill": "x",
    }


def test_without_a_word_about_people_nothing_is_made():
    with pytest.raises(SettingsError, match="subject = "):
        anonymise(ROWS, AGE, k=3)
    assert anonymise(ROWS, AGE, k=3, rows_are_people=True).after.people == 6


@pytest.mark.parametrize(
    ("call", "guess"),
    [
        (lambda: anonymise(ROWS, {"agee": None}, subject="patient"), "'age'"),
        (lambda: anonymise(ROWS, AGE, subject="pateint"), "'patient'"),
        (lambda: anonymise(ROWS, AGE, subject="patient", keep=["ilness"]), "its columns are"),
        (lambda: anonymise(ROWS, AGE, subject="patient", supression_limit=1), "'suppression_limit'"),
        (lambda: anonymise(ROWS, {"age": {"bin": [5]}}, subject="patient"), "one of file"),
        (lambda: anonymise(7, AGE, subject="patient"), "list of dicts"),
        (lambda: anonymise([{"a": 1}, 3], AGE, subject="patient"), "list of dicts"),
        (
            lambda: anonymise({"age": [1], "patient": ["Karolidis", "x"]}, AGE, subject="patient"),
            "rows alike",
        ),
        (lambda: anonymise(ROWS, 5, subject="patient"), "'quasi_identifiers' must be a list"),
        (lambda: anonymise(ROWS, subject="patient"), "'quasi_identifiers' must be given"),
        (lambda: anonymise(ROWS, AGE, subject="patient", sensitive="ill"), "'sensitive' must be a list"),
        (
            lambda: anonymise(ROWS, AGE, subject="patient", sensitive=[{"column": "ill", "l": 2}]),
            "it belongs in another table",
        ),
        (lambda: anonymise(ROWS, AGE, study="none.toml"), "cannot be read"),
        (lambda: view(PEOPLE | {"resource": "Pateint"}, []), "'Patient'"),
        (lambda: view(TYPO, []), "'gender'"),
        (lambda: view(PEOPLE | {"wehre": [{"path": "active"}]}, []), "did you mean 'where'"),
        (lambda: view(PEOPLE | {"where": [{"paht": "active"}]}, []), "did you mean 'path'"),
        (lambda: anonymise(ROWS, quasi_identifers=["age"], subject="patient"), "'quasi_identifiers'?"),
        (lambda: view(PEOPLE, 7), "give resources"),
        (lambda: view("none.json", []), "No such file"),
    ],
)
def test_typos_are_refused_with_the_nearest_name(call, guess):
    with pytest.raises(SettingsError) as told:
        call()
    assert guess in str(told.value)
    assert "Karolidis" not in str(told.value)


def test_a_view_reads_what_deidentify_reads_and_refuses_what_is_nested_without_end():
    patient = {"resourceType": "Patient", "id": "p1", "gender": "female"}
    text = json.dumps(patient)
    for given in (patient, text, text.encode(), [text], (each for each in [patient, text])):
        assert view(PEOPLE, given)[0].to_dicts() == view(PEOPLE, [patient]).to_dicts()
    inner = patient
    for _ in range(3000):
        inner["extension"] = [{"url": "x"}]
        inner = inner["extension"][0]
    with pytest.raises(Refused, match="64 levels"):
        view(PEOPLE, patient)


def test_no_records_make_an_empty_table():
    assert view(PEOPLE, []).shape == (0, len(PEOPLE["select"][0]["column"]))


def test_what_cannot_be_anonymous_is_refused():
    with pytest.raises(Refused):
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
        Deidentified(BUNDLE),
        tmp_path / "a.json",
        [str(tmp_path / "a.json")],
    ):
        assert view(DEVICES, records).to_dicts() == devices
    assert view(tmp_path / "view.json", BUNDLE).to_dicts() == devices
    assert view(PEOPLE, [PATIENT, BUNDLE]).to_dicts() == [{"subject": "Patient/p1"}] * 2
    assert before == BUNDLE
    assert next(opened(BUNDLE)) is PATIENT  # what is not changed is not copied


def test_from_records_to_an_anonymous_table():
    people = [{**PATIENT, "id": f"p{i}", "birthDate": f"{1980 + i % 7}-02-01"} for i in range(20)]
    columns = [
        {"name": "subject", "path": "getResourceKey()"},
        {"name": "born", "path": "birthDate"},
        {"name": "sex", "path": "gender"},
    ]
    table = view({"resource": "Patient", "select": [{"column": columns}]}, people)
    made = anonymise(table, {"born": {"dates": ["year", "decade"]}, "sex": None}, subject="subject", k=5)
    assert set(made.table["born"]) == {"1980s"}


def test_the_doors_open_without_what_they_need_until_they_are_called():
    code = (
        "import abaton.records, sys; print([m for m in ('numpy', 'polars', 'pydantic') if m in sys.modules]);"
        "from abaton.records import anonymise, view; print(callable(anonymise), callable(view))"
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
