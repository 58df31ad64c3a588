"""Tables as a source: Excel exports are converted, invalid cells are refused with their line."""

from __future__ import annotations

import gzip

import pytest
from fhir.resources.R4B import get_fhir_model_class

from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.fhir.validation import validate_resource
from abaton.site.sources.tabular.mapping import TYPES, MappingError, mapping_from_toml
from abaton.site.sources.tabular.tabular_source import TabularSource

ALL = frozenset(TYPES.values()) | {"Patient"}
CANARY = "Canaria"
WIDE_MAPPING = """
[files]
decimal = ","
dates = ["%d.%m.%Y"]
[[tables]]
file = "patients.csv"
subject = "id"
sex = "sex"
birth_date = "born"
date_column = "seen"
[tables.columns]
age = { code = "loinc|30525-0", unit = "a" }
chol = { code = "loinc|2093-3", unit = "mg/dL" }
smoking = { code = "loinc|72166-2", values = { daily = "snomed|449868002", never = "snomed|266919005" } }
diabetes = { code = "snomed|44054006", type = "condition" }
failure = { code = "snomed|84114007", type = "condition", date_column = "failure" }
"""
HEAD = "id;sex;born;seen;age;chol;smoking;diabetes;failure"
LONG_MAPPING = """
[units]
"mg%" = "mg/dL"
[[tables]]
file = "labs.csv"
subject = "id"
date_column = "taken"
[tables.code_rows]
code = "test"
value = "value"
unit = "unit"
[tables.code_rows.codes]
SBP = { code = "loinc|8480-6", unit = "mm[Hg]" }
CHOL = { code = "loinc|2093-3" }
"""


PATIENT_MAPPING = """
[[tables]]
file = "born.*"
subject = "id"
birth_date = "born"
[[tables]]
file = "sex.csv"
subject = "id"
sex = "sex"
"""


def read_tables(tmp_path, mapping, types=ALL, **files):
    for name, text in files.items():
        raw = text if isinstance(text, bytes) else text.encode()
        (tmp_path / f"{name}.csv").write_bytes(raw)
    source = TabularSource([tmp_path], mapping_from_toml(mapping), types)
    return [record.content for record in source.records()], source.errors


def refusal(tmp_path, mapping, **files):
    """Return the error of a table, which is one line without the content of a cell."""
    with pytest.raises(AbatonError) as caught:
        read_tables(tmp_path, mapping, **files)
    message = str(caught.value)
    assert "\n" not in message
    assert CANARY not in message
    assert caught.value.remedy
    return caught.value


def csv_text(*rows, head=HEAD):
    return "\r\n".join([head, *rows]) + "\r\n"


def test_excel_export_is_converted(tmp_path):
    rows = csv_text(
        "1;m;01.02.1950;03.04.2023;>89;201,5;daily;1;05.06.2023", '2;F;;03.04.2023;63;NA;"never";nein;#N/A'
    )
    resources, _ = read_tables(tmp_path, WIDE_MAPPING, patients=b"\xef\xbb\xbfsep=;\r\n" + rows.encode())
    by = {resource["id"]: resource for resource in resources if resource["resourceType"] == "Patient"}
    assert by["1"] == {"resourceType": "Patient", "id": "1", "gender": "male", "birthDate": "1950-02-01"}
    assert by["2"] == {"resourceType": "Patient", "id": "2", "gender": "female"}
    first = [
        resource for resource in resources if resource.get("subject", {}).get("reference") == "Patient/1"
    ]
    age, chol, smoking, diabetes, failure = first
    assert age["valueQuantity"] | {"value": 89, "comparator": ">", "code": "a"} == age["valueQuantity"]
    assert age["effectiveDateTime"] == "2023-04-03"
    assert chol["valueQuantity"]["value"] == 201.5
    assert smoking["valueCodeableConcept"]["coding"][0]["code"] == "449868002"
    assert diabetes["onsetDateTime"] == "2023-04-03"
    assert failure["onsetDateTime"] == "2023-06-05"
    second = [
        resource for resource in resources if resource.get("subject", {}).get("reference") == "Patient/2"
    ]
    assert [resource["code"]["coding"][0]["code"] for resource in second] == ["30525-0", "72166-2"]
    for resource in resources:
        get_fhir_model_class(resource["resourceType"]).model_validate(resource)
        assert validate_resource(resource) == []


@pytest.mark.parametrize("how", ["utf-16", "cp1252"])
def test_other_encodings(tmp_path, how):
    text = csv_text("1;männlich;;03.04.2023;63;;;;")
    mapping = (
        WIDE_MAPPING if how == "utf-16" else WIDE_MAPPING.replace("[files]", '[files]\nencoding = "cp1252"')
    )
    resources, _ = read_tables(tmp_path, mapping, patients=text.encode(how))
    assert resources[0]["gender"] == "male"
    assert (
        "set encoding under [files]" in refusal(tmp_path, WIDE_MAPPING, patients=text.encode("cp1252")).remedy
    )


def test_files_are_joined_by_subject_and_gzip_is_read(tmp_path):
    (tmp_path / "labs.csv").write_text(
        "id,test,value,unit,taken\n1,SBP,140,,2023-01-01\n1,ESR,3,,2023-01-01\n"
    )
    with gzip.open(tmp_path / "born.csv.gz", "wt") as stream:
        stream.write("id,born\n1,1950\n")
    (tmp_path / "sex.csv").write_text("id,sex\n1,f\n2,m\n")
    both = LONG_MAPPING + PATIENT_MAPPING
    source = TabularSource([tmp_path], mapping_from_toml(both), ALL)
    resources = [record.content for record in source.records()]
    assert resources[:2] == [
        {"resourceType": "Patient", "id": "1", "gender": "female", "birthDate": "1950"},
        {"resourceType": "Patient", "id": "2", "gender": "male"},
    ]
    assert [resource["valueQuantity"]["code"] for resource in resources[2:]] == ["mm[Hg]"]
    assert source.errors.reasons == {"the code of a row is not in the mapping": 1}


def test_units_are_translated(tmp_path):
    text = "id,test,value,unit,taken\n1,CHOL,200,mg%,2023-01-01T09:00:00+02:00\n1,CHOL,200,mg/dl,2023-01\n"
    resources, _ = read_tables(tmp_path, LONG_MAPPING, labs=text)
    assert [resource["valueQuantity"]["code"] for resource in resources[1:]] == ["mg/dL", "mg/dL"]
    assert [resource["effectiveDateTime"] for resource in resources[1:]] == [
        "2023-01-01T09:00:00+02:00",
        "2023-01",
    ]


def test_only_required_types_are_built(tmp_path):
    text = csv_text("1;m;01.02.1950;03.04.2023;63;200;daily;1;")
    resources, _ = read_tables(tmp_path, WIDE_MAPPING, frozenset({"Patient", "Condition"}), patients=text)
    assert [resource["resourceType"] for resource in resources] == ["Patient", "Condition"]


BAD = {
    "a number": (
        f"1;m;01.02.1950;03.04.2023;{CANARY};;;;",
        "patients.csv line 2, column 'age'",
        "not a number",
    ),
    "a point for a comma": (
        "1;m;01.02.1950;03.04.2023;63;201.5;;;",
        "column 'chol'",
        "a number contains '.'",
    ),
    "an impossible date": ("1;m;31.02.1950;03.04.2023;63;;;;", "column 'born'", "not a valid date"),
    "a date of another form": ("1;m;01.02.1950;2023-04-03;63;;;;", "column 'seen'", "not a valid date"),
    "a word": (
        f"1;m;01.02.1950;03.04.2023;63;;{CANARY};;",
        "column 'smoking'",
        "not in the mapping",
    ),
    "neither yes nor no": (
        "1;m;01.02.1950;03.04.2023;63;;;maybe;",
        "column 'diabetes'",
        "not boolean",
    ),
    "a sex": (f"1;{CANARY};01.02.1950;03.04.2023;63;;;;", "column 'sex'", "the sex is not in the mapping"),
    "a cell too many": (
        "1;m;01.02.1950;03.04.2023;63;;;;;x",
        "line 2",
        "10 cells but the table has 9 columns",
    ),
    "no subject": (";m;01.02.1950;03.04.2023;63;;;;", "column 'id'", "the subject of the row is missing"),
    "a quotation mark": ('1;"m;01.02.1950;03.04.2023;63;;;;', "line 2", "malformed"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_cell_is_refused_with_its_line(tmp_path, case):
    row, where, what = BAD[case]
    error = refusal(tmp_path, WIDE_MAPPING, patients=csv_text(row))
    assert isinstance(error, RefusedError)
    assert where in error.where
    assert what in error.what


def test_empty_rows_and_columns_are_ignored(tmp_path):
    text = csv_text("1;m;01.02.1950;03.04.2023;63;;;;;;", ";;;;;;;;;;", " ; ;;;;;;;;;", "", head=HEAD + ";;")
    resources, _ = read_tables(tmp_path, WIDE_MAPPING, patients=text)
    assert [resource["id"] for resource in resources if resource["resourceType"] == "Patient"] == ["1"]


def test_two_digit_years_are_in_the_past_and_ambiguous_births_refused(tmp_path):
    short = WIDE_MAPPING.replace("%d.%m.%Y", "%d.%m.%y")
    resources, _ = read_tables(tmp_path, short, patients=csv_text("1;m;01.02.50;03.04.23;63;;;;"))
    assert resources[0]["birthDate"] == "1950-02-01"
    assert resources[1]["effectiveDateTime"] == "2023-04-03"
    error = refusal(tmp_path, short, patients=csv_text("1;m;01.02.20;03.04.23;63;;;;"))
    assert error.where == "patients.csv line 2, column 'born'"
    assert "the century of a two-digit birth year" in error.what


def test_day_numbers_are_refused_as_dates(tmp_path):
    for mapping in (WIDE_MAPPING, WIDE_MAPPING.replace('dates = ["%d.%m.%Y"]', "")):
        error = refusal(tmp_path, mapping, patients=csv_text("1;m;;45000;63;;;;"))
        assert error.where == "patients.csv line 2, column 'seen'"


def test_an_empty_file(tmp_path):
    assert refusal(tmp_path, WIDE_MAPPING, patients="").what == "the file is empty"


def test_contradictory_demographics_are_refused(tmp_path):
    text = csv_text(
        "1;m;01.02.1950;03.04.2023;63;;;;", "1;m;01.02.1950;04.04.2023;63;;;;", "1;f;;03.04.2023;63;;;;"
    )
    error = refusal(tmp_path, WIDE_MAPPING, patients=text)
    assert error.where == "patients.csv line 4, column 'id'"
    assert "contradicts an earlier row" in error.what


def test_wrong_delimiter_and_missing_column_are_refused(tmp_path):
    text = csv_text("1;m;01.02.1950;03.04.2023;63;;;;")
    error = refusal(tmp_path, WIDE_MAPPING.replace("[files]", '[files]\ndelimiter = ","'), patients=text)
    assert isinstance(error, SettingsError)
    assert "only one column" in error.what
    assert error.remedy == "set delimiter = ';' under [files]"
    lost = refusal(tmp_path, WIDE_MAPPING, patients=csv_text("x", head=HEAD.replace("chol", CANARY)))
    assert lost.what == "the file has no column 'chol'"
    twice = refusal(tmp_path, WIDE_MAPPING, patients=csv_text("x", head=HEAD + ";chol"))
    assert twice.what == "two columns have the name 'chol'"


def test_unknown_unit_is_refused(tmp_path):
    text = f"id,test,value,unit,taken\n1,SBP,140,,2023-01-01\n1,CHOL,200,{CANARY},2023-01-01\n"
    error = refusal(tmp_path, LONG_MAPPING, labs=text)
    assert error.where == "labs.csv line 3, column 'unit'"
    assert "UCUM" in error.what


def test_truncated_and_missing_files_are_refused(tmp_path):
    (tmp_path / "labs.csv.gz").write_bytes(
        gzip.compress(b"id,test,value,unit,taken\n1,SBP,1,,2023\n" * 99)[:-20]
    )
    error = refusal(tmp_path, LONG_MAPPING.replace("labs.csv", "labs.*"))
    assert "the gzip file is incomplete" in error.what
    assert "no file matches" in refusal(tmp_path, LONG_MAPPING).what


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('unit = "a"', 'unit = "years"', "not a UCUM unit"),
        ("loinc|30525-0", "30525-0", "the text is not a code"),
        ("loinc|30525-0", "loink|30525-0", "a code system is not known"),
        ("%d.%m.%Y", "dd.mm.yyyy", "not a date format"),
        ('type = "condition" }', 'type = "condition", unit = "a" }', "'unit' and 'number' do not apply"),
        ('sex = "sex"', 'gender = "sex"', "not a known key"),
    ],
)
def test_invalid_mapping_is_refused_with_its_line(old, new, what):
    with pytest.raises(MappingError) as caught:
        mapping_from_toml(WIDE_MAPPING.replace(old, new))
    assert what in str(caught.value)
    assert caught.value.problems[0].line
