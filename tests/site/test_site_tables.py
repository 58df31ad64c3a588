"""Tables as a source: Excel's habits are read right, everything else is refused with its line and without content."""

from __future__ import annotations

import gzip

import pytest
from fhir.resources.R4B import get_fhir_model_class

from abaton.errors import AbatonError, Refused, SettingsError
from abaton.records import problems
from abaton.site.sources.tabular.mapping import TYPES, MappingError, mapping_from_toml
from abaton.site.sources.tabular.tabular_source import TableSource

ALL = frozenset(TYPES.values()) | {"Patient"}
CANARY = "Canaria"
WIDE = """
[files]
decimal = ","
dates = ["%d.%m.%Y"]
[[tables]]
file = "people.csv"
subject = "id"
sex = "sex"
born = "born"
when = "seen"
[tables.columns]
age = { code = "loinc|30525-0", unit = "a" }
chol = { code = "loinc|2093-3", unit = "mg/dL" }
smoking = { code = "loinc|72166-2", values = { daily = "snomed|449868002", never = "snomed|266919005" } }
diabetes = { code = "snomed|44054006", type = "condition" }
failure = { code = "snomed|84114007", type = "condition", when = "failure" }
"""
HEAD = "id;sex;born;seen;age;chol;smoking;diabetes;failure"
LONG = """
[units]
"mg%" = "mg/dL"
[[tables]]
file = "labs.csv"
subject = "id"
when = "taken"
[tables.rows]
code = "test"
value = "value"
unit = "unit"
[tables.rows.codes]
SBP = { code = "loinc|8480-6", unit = "mm[Hg]" }
CHOL = { code = "loinc|2093-3" }
"""


PEOPLE = """
[[tables]]
file = "born.*"
subject = "id"
born = "born"
[[tables]]
file = "sex.csv"
subject = "id"
sex = "sex"
"""


def made(tmp_path, mapping, types=ALL, **files):
    for name, text in files.items():
        raw = text if isinstance(text, bytes) else text.encode()
        (tmp_path / f"{name}.csv").write_bytes(raw)
    source = TableSource([tmp_path], mapping_from_toml(mapping), types)
    return [record.content for record in source.records()], source.faults


def told(tmp_path, mapping, **files):
    """The one line with which a table is refused; it never shows what stands in a cell."""
    with pytest.raises(AbatonError) as caught:
        made(tmp_path, mapping, **files)
    words = str(caught.value)
    assert "\n" not in words
    assert CANARY not in words
    assert caught.value.remedy
    return caught.value


def people(*rows, head=HEAD):
    return "\r\n".join([head, *rows]) + "\r\n"


def test_an_export_of_excel_is_read_right(tmp_path):
    rows = people(
        "1;m;01.02.1950;03.04.2023;>89;201,5;daily;1;05.06.2023", '2;F;;03.04.2023;63;NA;"never";nein;#N/A'
    )
    found, _ = made(tmp_path, WIDE, people=b"\xef\xbb\xbfsep=;\r\n" + rows.encode())
    by = {each["id"]: each for each in found if each["resourceType"] == "Patient"}
    assert by["1"] == {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1950-02-01"}
    assert by["2"] == {"resourceType": "Patient", "id": "2", "gender": "female"}
    first = [each for each in found if each.get("subject", {}).get("reference") == "Patient/1"]
    age, chol, smoking, diabetes, failure = first
    assert age["valueQuantity"] | {"value": 89, "comparator": ">", "code": "a"} == age["valueQuantity"]
    assert age["effectiveDateTime"] == "2023-04-03"
    assert chol["valueQuantity"]["value"] == 201.5
    assert smoking["valueCodeableConcept"]["coding"][0]["code"] == "449868002"
    assert diabetes["onsetDateTime"] == "2023-04-03"
    assert failure["onsetDateTime"] == "2023-06-05"
    second = [each for each in found if each.get("subject", {}).get("reference") == "Patient/2"]
    assert [each["code"]["coding"][0]["code"] for each in second] == ["30525-0", "72166-2"]
    for each in found:
        get_fhir_model_class(each["resourceType"]).model_validate(each)
        assert problems(each) == []


@pytest.mark.parametrize("how", ["utf-16", "cp1252"])
def test_other_encodings(tmp_path, how):
    text = people("1;männlich;;03.04.2023;63;;;;")
    mapping = WIDE if how == "utf-16" else WIDE.replace("[files]", '[files]\nencoding = "cp1252"')
    found, _ = made(tmp_path, mapping, people=text.encode(how))
    assert found[0]["gender"] == "male"
    assert "write the right 'encoding'" in told(tmp_path, WIDE, people=text.encode("cp1252")).remedy


def test_several_files_are_joined_by_subject_and_packed_ones_are_read(tmp_path):
    (tmp_path / "labs.csv").write_text(
        "id,test,value,unit,taken\n1,SBP,140,,2023-01-01\n1,ESR,3,,2023-01-01\n"
    )
    with gzip.open(tmp_path / "born.csv.gz", "wt") as stream:
        stream.write("id,born\n1,1950\n")
    (tmp_path / "sex.csv").write_text("id,sex\n1,f\n2,m\n")
    both = LONG + PEOPLE
    source = TableSource([tmp_path], mapping_from_toml(both), ALL)
    found = [record.content for record in source.records()]
    assert found[:2] == [
        {"resourceType": "Patient", "id": "1", "gender": "female", "birthDate": "1950"},
        {"resourceType": "Patient", "id": "2", "gender": "male"},
    ]
    assert [each["valueQuantity"]["code"] for each in found[2:]] == ["mm[Hg]"]
    assert source.faults.reasons == {"a row has a code that the mapping does not name": 1}


def test_units_are_translated(tmp_path):
    text = "id,test,value,unit,taken\n1,CHOL,200,mg%,2023-01-01T09:00:00+02:00\n1,CHOL,200,mg/dl,2023-01\n"
    found, _ = made(tmp_path, LONG, labs=text)
    assert [each["valueQuantity"]["code"] for each in found[1:]] == ["mg/dL", "mg/dL"]
    assert [each["effectiveDateTime"] for each in found[1:]] == ["2023-01-01T09:00:00+02:00", "2023-01"]


def test_only_what_a_study_needs_is_made(tmp_path):
    text = people("1;m;01.02.1950;03.04.2023;63;200;daily;1;")
    found, _ = made(tmp_path, WIDE, frozenset({"Patient", "Condition"}), people=text)
    assert [each["resourceType"] for each in found] == ["Patient", "Condition"]


BAD = {
    "a number": (
        f"1;m;01.02.1950;03.04.2023;{CANARY};;;;",
        "people.csv line 2, column 'age'",
        "not a number",
    ),
    "a point for a comma": ("1;m;01.02.1950;03.04.2023;63;201.5;;;", "column 'chol'", "written with '.'"),
    "an impossible date": ("1;m;31.02.1950;03.04.2023;63;;;;", "column 'born'", "no such date"),
    "a date of another form": ("1;m;01.02.1950;2023-04-03;63;;;;", "column 'seen'", "no such date"),
    "a word": (
        f"1;m;01.02.1950;03.04.2023;63;;{CANARY};;",
        "column 'smoking'",
        "does not say what this means",
    ),
    "neither yes nor no": (
        "1;m;01.02.1950;03.04.2023;63;;;maybe;",
        "column 'diabetes'",
        "neither yes nor no",
    ),
    "a sex": (f"1;{CANARY};01.02.1950;03.04.2023;63;;;;", "column 'sex'", "which sex"),
    "a cell too many": ("1;m;01.02.1950;03.04.2023;63;;;;;x", "line 2", "10 cells and the table 9 columns"),
    "nobody": (";m;01.02.1950;03.04.2023;63;;;;", "column 'id'", "about nobody"),
    "a quotation mark": ('1;"m;01.02.1950;03.04.2023;63;;;;', "line 2", "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_cell_that_cannot_be_read_is_refused_with_its_line(tmp_path, case):
    row, where, what = BAD[case]
    error = told(tmp_path, WIDE, people=people(row))
    assert isinstance(error, Refused)
    assert where in error.where
    assert what in error.what


def test_rows_and_columns_of_empty_cells_below_and_beside_are_no_rows(tmp_path):
    text = people("1;m;01.02.1950;03.04.2023;63;;;;;;", ";;;;;;;;;;", " ; ;;;;;;;;;", "", head=HEAD + ";;")
    found, _ = made(tmp_path, WIDE, people=text)
    assert [each["id"] for each in found if each["resourceType"] == "Patient"] == ["1"]


def test_years_of_two_digits_are_never_in_the_future_and_births_never_guessed(tmp_path):
    short = WIDE.replace("%d.%m.%Y", "%d.%m.%y")
    found, _ = made(tmp_path, short, people=people("1;m;01.02.50;03.04.23;63;;;;"))
    assert found[0]["birthDate"] == "1950-02-01"
    assert found[1]["effectiveDateTime"] == "2023-04-03"
    error = told(tmp_path, short, people=people("1;m;01.02.20;03.04.23;63;;;;"))
    assert error.where == "people.csv line 2, column 'born'"
    assert "does not say its century" in error.what


def test_a_number_of_days_is_no_date(tmp_path):
    for mapping in (WIDE, WIDE.replace('dates = ["%d.%m.%Y"]', "")):
        error = told(tmp_path, mapping, people=people("1;m;;45000;63;;;;"))
        assert error.where == "people.csv line 2, column 'seen'"


def test_an_empty_file(tmp_path):
    assert told(tmp_path, WIDE, people="").what == "the file is empty"


def test_two_people_with_one_id(tmp_path):
    text = people(
        "1;m;01.02.1950;03.04.2023;63;;;;", "1;m;01.02.1950;04.04.2023;63;;;;", "1;f;;03.04.2023;63;;;;"
    )
    error = told(tmp_path, WIDE, people=text)
    assert error.where == "people.csv line 4, column 'id'"
    assert "two people have one id" in error.what


def test_a_wrong_delimiter_and_a_missing_column(tmp_path):
    text = people("1;m;01.02.1950;03.04.2023;63;;;;")
    wrong = told(tmp_path, WIDE.replace("[files]", '[files]\ndelimiter = ","'), people=text)
    assert isinstance(wrong, SettingsError)
    assert "only one column" in wrong.what
    assert wrong.remedy == "write delimiter = ';' under [files]"
    lost = told(tmp_path, WIDE, people=people("x", head=HEAD.replace("chol", CANARY)))
    assert lost.what == "the file has no column 'chol'"
    twice = told(tmp_path, WIDE, people=people("x", head=HEAD + ";chol"))
    assert twice.what == "two columns are called 'chol'"


def test_an_unknown_unit(tmp_path):
    text = f"id,test,value,unit,taken\n1,SBP,140,,2023-01-01\n1,CHOL,200,{CANARY},2023-01-01\n"
    error = told(tmp_path, LONG, labs=text)
    assert error.where == "labs.csv line 3, column 'unit'"
    assert "UCUM" in error.what


def test_a_file_that_is_cut_off_and_one_that_is_not_there(tmp_path):
    (tmp_path / "labs.csv.gz").write_bytes(
        gzip.compress(b"id,test,value,unit,taken\n1,SBP,1,,2023\n" * 99)[:-20]
    )
    error = told(tmp_path, LONG.replace("labs.csv", "labs.*"))
    assert "not complete gzip" in error.what
    assert "no file is called" in told(tmp_path, LONG).what


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('unit = "a"', 'unit = "years"', "not one of UCUM"),
        ("loinc|30525-0", "30525-0", "not a code"),
        ("loinc|30525-0", "loink|30525-0", "no code system"),
        ("%d.%m.%Y", "dd.mm.yyyy", "not the form of a date"),
        ('type = "condition" }', 'type = "condition", unit = "a" }', "only an observation"),
        ('sex = "sex"', 'gender = "sex"', "not a known key"),
    ],
)
def test_a_wrong_mapping_is_told_with_its_line(old, new, what):
    with pytest.raises(MappingError) as caught:
        mapping_from_toml(WIDE.replace(old, new))
    assert what in str(caught.value)
    assert caught.value.problems[0].line
