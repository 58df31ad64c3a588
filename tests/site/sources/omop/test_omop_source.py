"""OMOP as a source: FHIR resources, SQL queries, and refused instances."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date

import pytest
import sqlalchemy as sql
from fhir.resources.R4B import get_fhir_model_class
from tests.site.site_population import load_omop, study, write_population

from abaton.deid.settings import CodeFilter, CodePattern, DataRequest, DataRequirement, DateFilter
from abaton.errors import AbatonError, RefusedError, SettingsError, StoreError
from abaton.fhir.partial_dates import parse_time_zone
from abaton.fhir.validation import validate_resource
from abaton.site.sources.omop.concept_map import ConceptMap
from abaton.site.sources.omop.omop_database import OmopDatabase
from abaton.site.sources.omop.omop_queries import build_queries
from abaton.site.sources.omop.omop_source import OmopSource
from abaton.study import Criterion, Eligibility

CANARY = "Canaria"
TABLES = """
CREATE TABLE person (person_id INT, gender_concept_id INT, year_of_birth INT, month_of_birth INT, day_of_birth INT);
CREATE TABLE death (person_id INT, death_date DATE);
CREATE TABLE concept (concept_id INT, vocabulary_id TEXT, concept_code TEXT);
CREATE TABLE concept_relationship (concept_id_1 INT, concept_id_2 INT, relationship_id TEXT);
CREATE TABLE visit_occurrence (visit_occurrence_id INT, person_id INT, visit_concept_id INT, visit_start_date DATE,
    visit_start_datetime TIMESTAMP, visit_end_date DATE, visit_source_concept_id INT);
CREATE TABLE condition_occurrence (condition_occurrence_id INT, person_id INT, condition_concept_id INT,
    condition_start_date DATE, condition_end_date DATE, condition_source_concept_id INT);
CREATE TABLE measurement (measurement_id INT, person_id INT, measurement_concept_id INT, measurement_date DATE,
    measurement_datetime TIMESTAMP, operator_concept_id INT, value_as_number NUMERIC, value_as_concept_id INT,
    unit_concept_id INT, measurement_source_concept_id INT);
CREATE TABLE observation (observation_id INT, person_id INT, observation_concept_id INT, observation_date DATE,
    value_as_number NUMERIC, value_as_string TEXT, value_as_concept_id INT, unit_concept_id INT,
    observation_source_concept_id INT);
CREATE TABLE drug_exposure (drug_exposure_id INT, person_id INT, drug_concept_id INT, drug_exposure_start_date DATE,
    drug_exposure_end_date DATE, drug_type_concept_id INT, drug_source_concept_id INT);
CREATE TABLE procedure_occurrence (procedure_occurrence_id INT, person_id INT, procedure_concept_id INT,
    procedure_date DATE, procedure_source_concept_id INT{procedure});
CREATE TABLE device_exposure (device_exposure_id INT, person_id INT, device_concept_id INT,
    device_exposure_start_date DATE, device_exposure_end_date DATE, device_source_concept_id INT);
INSERT INTO concept VALUES (1, 'LOINC', '8480-6'), (2, 'UCUM', 'mm[Hg]'), (3, 'SNOMED', '44054006'),
    (4, 'ICD10', 'E11.9'), (5, 'RxNorm', '35296'), (6, 'SNOMED', '80146002'), (7, 'SNOMED', '14106009'),
    (8, 'LOINC', '72166-2'), (9, 'SNOMED', '266919005'), (10, 'ICD10', 'I50.9'), (9202, 'Visit', 'OP'),
    (2000000001, 'Our lab', 'BP'), (2000000002, 'Our lab', 'XY');
INSERT INTO concept_relationship VALUES (2000000001, 1, 'Maps to'), (4, 3, 'Maps to');
INSERT INTO person VALUES (1, 8532, 1950, 2, 1), (2, 8507, 1960, NULL, NULL), (3, 0, 1970, 5, NULL);
INSERT INTO death VALUES (2, '2024-05-06');
INSERT INTO visit_occurrence VALUES (1, 1, 9202, '2023-03-01', '2023-03-01 09:30:00', '2023-03-01', 0);
INSERT INTO condition_occurrence VALUES (1, 1, 3, '2020-01-01', NULL, 4), (2, 2, 0, '2020-01-01', NULL, 2000000002),
    (3, 99, 3, '2020-01-01', NULL, 4);
INSERT INTO measurement VALUES (1, 1, 1, '2023-03-01', '2023-03-01 09:30:00', 4172704, 140.5, NULL, 2, 0),
    (2, 1, 0, '2023-03-02', '2023-03-02 00:00:00', NULL, 150, NULL, 2, 2000000001),
    (3, 2, 2000000002, '2023-03-02', NULL, NULL, 7, NULL, NULL, 0),
    (4, 3, 1, '2023-03-02', NULL, NULL, 120, NULL, 2000000002, 0);
INSERT INTO observation VALUES (1, 1, 8, '2023-03-01', NULL, NULL, 9, NULL, 0),
    (2, 2, 8, '2023-03-01', NULL, 'x', 0, 0, 0);
INSERT INTO drug_exposure VALUES (1, 1, 5, '2023-03-01', '2023-04-01', 32838, 0),
    (2, 1, 5, '2023-03-01', '2023-04-01', 32818, 0),
    (3, 2, 5, '2023-03-01', NULL, 44787730, 0);
INSERT INTO procedure_occurrence (procedure_occurrence_id, person_id, procedure_concept_id, procedure_date)
    VALUES (1, 2, 6, '2023-03-01');
INSERT INTO device_exposure VALUES (1, 2, 7, '2023-03-01', NULL, 0);
"""
TYPES = (
    "Encounter", "Condition", "Observation", "MedicationRequest", "MedicationStatement", "MedicationAdministration",
    "Procedure", "Device", "DeviceUseStatement",
)  # fmt: skip
ANYBODY = Eligibility(name="all", criteria=(Criterion(type="sex", sex=("female", "male")),))
EVERYTHING = DataRequest("test", tuple(DataRequirement(kind) for kind in TYPES))


@pytest.fixture(params=["5.3", "5.4"])
def instance(request, tmp_path):
    more = ", procedure_end_date DATE" if request.param == "5.4" else ""
    return write(tmp_path / "omop.db", TABLES.replace("{procedure}", more))


@pytest.fixture
def newer(tmp_path):
    return write(tmp_path / "omop.db", TABLES.replace("{procedure}", ""))


def write(path, script):
    with sqlite3.connect(path) as base:
        base.executescript(script)
    base.close()
    return path


def source(path, need=EVERYTHING, eligibility=None, zone="+02:00", **more):
    path = f"sqlite:///{path}" if path.suffix == ".db" else path
    return OmopSource(path, need, eligibility or ANYBODY, parse_time_zone(zone), **more)


def read(path, need=EVERYTHING, **more):
    opened = source(path, need, **more)
    return [
        [entry["resource"] for entry in record.content["entry"]] for record in opened.records()
    ], opened.errors


def test_every_table_becomes_valid_fhir(instance):
    (first, second, third), errors = read(instance)
    kinds = [[resource["resourceType"] for resource in person] for person in (first, second, third)]
    assert kinds[0] == [
        "Patient", "Encounter", "Condition", "Observation", "Observation", "Observation", "MedicationRequest",
        "MedicationAdministration",
    ]  # fmt: skip
    assert kinds[1] == [
        "Patient",
        "Observation",
        "MedicationStatement",
        "Procedure",
        "Device",
        "DeviceUseStatement",
    ]
    for person in (first, second, third):
        for resource in person:
            get_fhir_model_class(resource["resourceType"]).model_validate(resource)
            assert validate_resource(resource) == []
    assert first[0] == {"resourceType": "Patient", "id": "1", "gender": "female", "birthDate": "1950-02-01"}
    assert second[0] | {"birthDate": "1960", "deceasedDateTime": "2024-05-06"} == second[0]
    assert third[0]["birthDate"] == "1970-05"
    visit, condition, high, local, smoking, *_ = first[1:]
    assert (visit["class"]["code"], visit["period"]["start"]) == ("AMB", "2023-03-01T09:30:00+02:00")
    assert [code["code"] for code in condition["code"]["coding"]] == ["44054006", "E11.9"]
    assert (
        high["valueQuantity"] | {"value": 140.5, "comparator": ">", "code": "mm[Hg]"} == high["valueQuantity"]
    )
    assert local["code"]["coding"] == high["code"]["coding"]
    assert local["effectiveDateTime"] == "2023-03-02"
    assert smoking["valueCodeableConcept"]["coding"][0]["code"] == "266919005"
    assert errors.reasons == {
        "the concept of a row has no code in a FHIR code system": 2,
        "the concept of a unit is not in UCUM": 1,
        "the Patient of a record is missing or ambiguous": 1,
    }
    assert errors.locations["the concept of a row has no code in a FHIR code system"] == [
        "condition_occurrence",
        "measurement",
    ]


def test_folder_of_csv_and_parquet_equals_the_database(newer, tmp_path):
    pl = pytest.importorskip("polars")
    pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    folder = tmp_path / "files"
    folder.mkdir()
    with sqlite3.connect(newer) as base:
        names = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = base.execute(f"SELECT * FROM {name}")
            columns = [resource[0] for resource in rows.description]
            rows = rows.fetchall()
            frame = pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)
            if name == "measurement":
                frame.write_parquet(folder / f"{name}.parquet")
            elif name.startswith("concept"):
                frame.write_csv(folder / f"{name.upper()}.csv", separator="\t")
            else:
                frame.write_csv(folder / f"{name}.csv")
    base.close()
    assert read(folder) == read(newer)


def statements(path, need, eligibility=None):
    database = OmopDatabase(f"sqlite:///{path}")
    try:
        queries = build_queries(database, ConceptMap(database), need, eligibility or ANYBODY)
        return {
            resource.table.name: str(resource.statement.compile(compile_kwargs={"literal_binds": True}))
            for resource in queries
        }
    finally:
        database.close()


def test_only_tables_concepts_and_dates_of_the_study_are_queried(newer):
    loinc, icd = "http://loinc.org", "http://hl7.org/fhir/sid/icd-10"
    wants = (
        DataRequirement("Observation", codes=(CodeFilter("code", (CodePattern(loinc, "8480-6"),)),)),
        DataRequirement(
            "Condition",
            codes=(CodeFilter("code", (CodePattern(icd, "E11", is_prefix=True),)),),
            dates=(DateFilter("onset", "2019-06-01"),),
        ),
        DataRequirement("MedicationRequest"),
    )
    queries = statements(newer, DataRequest("test", wants))
    assert set(queries) == {"condition_occurrence", "measurement", "observation", "drug_exposure"}
    assert "IN (1, 2000000001)" in queries["measurement"]
    assert "condition_concept_id IN (4)" in queries["condition_occurrence"]
    assert "condition_start_date >= '2019-05-31'" in queries["condition_occurrence"]
    assert "drug_type_concept_id IN (32838" in queries["drug_exposure"]
    assert all(
        "ORDER BY" in resource and "person_id" in resource.split("ORDER BY")[1]
        for resource in queries.values()
    )
    persons, _ = read(newer, DataRequest("test", wants))
    assert [[resource["resourceType"] for resource in person[1:]] for person in persons] == [
        ["Condition", "Observation", "Observation", "MedicationRequest"],
        [],
        ["Observation"],
    ]


def test_request_without_requirements_reads_everything(newer):
    assert len(statements(newer, DataRequest("test"))) == 7
    assert read(newer, DataRequest("test")) == read(newer)


def test_tables_of_eligibility_criteria_are_not_filtered(newer):
    document = study()
    queries = statements(newer, document.data_request(date(2026, 1, 1)), document.eligibility)
    assert "WHERE" not in queries["condition_occurrence"]
    assert "measurement_concept_id IN" in queries["measurement"]


BAD = {
    "no table of people": ("DROP TABLE person", SettingsError, "the table 'person' does not exist"),
    "a lost column": ("ALTER TABLE measurement DROP COLUMN unit_concept_id", SettingsError, "no column 'unit_con"),
    "no vocabulary": ("DROP TABLE concept", SettingsError, "vocabulary table 'concept'"),
    "two people with one id": (
        f"INSERT INTO person VALUES (2, 8507, 1980, 1, 1); UPDATE concept SET concept_code = '{CANARY}' "
        "WHERE concept_id = 7",
        RefusedError,
        "two persons have the same id",
    ),
    "a bad date": ("UPDATE condition_occurrence SET condition_start_date = '2023-02-30'", RefusedError, "not valid"),
    "an invalid birth": ("UPDATE person SET month_of_birth = 2, day_of_birth = 30", RefusedError, "not a valid date"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_instance_is_refused_in_one_line(newer, case):
    script, kind, what = BAD[case]
    write(newer, script)
    with pytest.raises(kind) as caught:
        read(newer)
    assert what in caught.value.what
    assert caught.value.remedy
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("sqlite:///nowhere.db", "does not exist"),
        ("nothing at all", "not a database URL"),
        ("oracle://host/name", "no driver"),
        ("postgresql+psycopg://reader@127.0.0.1:1/none", "does not respond"),
    ],
)
def test_missing_database_is_refused(path, what):
    pytest.importorskip("psycopg")
    with pytest.raises(AbatonError) as caught:
        list(OmopSource(path, EVERYTHING, ANYBODY, UTC).records())
    assert what in caught.value.what
    assert "\n" not in str(caught.value)


@pytest.mark.postgres
def test_lost_connection_is_an_error(tmp_path, new_database):
    write_population(tmp_path, "kos", 3.0)
    url = new_database()
    load_omop(tmp_path / "omop", url)
    document = study()
    opened = OmopSource(url, document.data_request(date(2026, 1, 1)), document.eligibility, UTC)
    rows = opened.records()
    next(rows)
    engine = sql.create_engine(url)
    with engine.connect() as connection:
        connection.execute(
            sql.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        )
    engine.dispose()
    with pytest.raises(StoreError, match="does not respond"):
        list(rows)


ODD = {
    "a death is recorded twice": ("INSERT INTO death VALUES (2, '2024-05-07')", ""),
    "an empty text is nothing": ("UPDATE measurement SET value_as_number = '' WHERE measurement_id = 1", ""),
    "a row without a person": ("UPDATE measurement SET person_id = NULL WHERE measurement_id = 4", ""),
    "a person without an id": ("UPDATE person SET person_id = NULL WHERE person_id = 1", "a person has no id"),
    "a word for a number": ("UPDATE measurement SET value_as_number = 'Canaria'", "the column 'value_as_number'"),
    "a word for a concept": ("UPDATE measurement SET unit_concept_id = 'Canaria'", "the column 'unit_concept_id'"),
    "a word for a person": ("UPDATE measurement SET person_id = 'Canaria'", "the column 'person_id'"),
    "a word for a sex": ("UPDATE person SET gender_concept_id = 'Canaria'", "the column 'gender_concept_id'"),
    "a year of three digits": ("UPDATE person SET year_of_birth = 195", "not a valid date"),
    "a thirteenth month": ("UPDATE person SET month_of_birth = 13, day_of_birth = NULL", "not a valid date"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_untyped_sqlite_cells_are_converted_or_refused(case, newer):
    script, refused = ODD[case]
    write(newer, script)
    if not refused:
        persons, _ = read(newer)
        assert [person[0]["id"] for person in persons] == ["1", "2", "3"]
        assert persons[1][0]["deceasedDateTime"] == "2024-05-06"
        return
    with pytest.raises(AbatonError, match=refused) as caught:
        read(newer)
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_nan_values_are_counted(number, tmp_path):
    pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    write_population(tmp_path, "kos", 0.02)
    file = tmp_path / "omop" / "measurement.csv"
    head, first, *rest = file.read_text().splitlines()
    cells = first.split(",")
    cells[6] = number.lower()
    file.write_text("\n".join([head, ",".join(cells), *rest]) + "\n")
    _, errors = read(tmp_path / "omop")
    assert errors.reasons["a value is NaN or infinite"] == 1


def test_file_that_is_not_a_database_is_refused(tmp_path):
    (tmp_path / "omop.db").write_bytes(b"Canaria" * 500)
    with pytest.raises(StoreError) as caught:
        read(tmp_path / "omop.db")
    assert CANARY not in str(caught.value)


def test_duckdb_file_with_inferred_types(tmp_path):
    """DuckDB imports an empty table or column as text."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is missing: install abaton[omop]")
    write_population(tmp_path, "kos", 0.2)
    observations = tmp_path / "omop" / "observation.csv"
    observations.write_text(observations.read_text().splitlines()[0] + "\n")
    with duckdb.connect(str(tmp_path / "omop.duckdb")) as base:
        for file in (tmp_path / "omop").glob("*.csv"):
            base.execute(f"CREATE TABLE {file.stem} AS SELECT * FROM read_csv('{file}')")
    read_by = OmopSource(
        f"duckdb:///{tmp_path / 'omop.duckdb'}", study().data_request(date(2026, 11, 16)), None, UTC
    )
    assert sum(1 for _ in read_by.records()) > 0
    with duckdb.connect(str(tmp_path / "omop.duckdb")) as base:
        base.execute("ALTER TABLE person ALTER person_id TYPE VARCHAR")
    with pytest.raises(StoreError, match="the column 'person_id'"):
        list(read_by.records())
