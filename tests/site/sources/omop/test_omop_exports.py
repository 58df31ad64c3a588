"""OMOP exports of the same 27 persons in the formats of common tools."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, date, timedelta
from pathlib import Path

import pytest
from tests.site.site_population import opened

from abaton.deid.settings import DataRequest
from abaton.errors import AbatonError
from abaton.site.sources.omop.omop_source import OmopSource
from abaton.study import study_from_toml

pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")

UNMAPPED = "the concept of a row has no code in a FHIR code system"
STUDY = """
outcome.hypertension = { snomed = "59621000" }
eligibility.criteria = [{ type = "sex", sex = ["female", "male"] }]
centre = { name = "Centre", email = "a@b.example", city = "Kos", country = "GR", url = "https://centre.example" }
deidentification = { mechanism = "pseudonymise", identity = "pseudonym", dates = "shift" }
[inputs]
age = { reference_date = 2023-01-01 }
sex = {}
systolic = { loinc = "8480-6", unit = "mm[Hg]" }
bmi = { loinc = "39156-5", unit = "kg/m2", aggregation = "mean" }
lisinopril = { rxnorm = "314076", view = "medicines" }
[study]
id = "twenty-seven"
title = "Twenty-seven people"
purpose = "health-services-research"
question = "Is high blood pressure found?"
shared_data = ["updates"]
regions = ["US"]
period = { start = 2026-01-01, end = 2029-12-31 }
[consent]
text = "You are asked."
"""

CONCEPTS = [  # identifiers of the vocabularies, and no names
    (3004249, "LOINC", "8480-6"), (3038553, "LOINC", "39156-5"), (8876, "UCUM", "mm[Hg]"), (9531, "UCUM", "kg/m2"),
    (320128, "SNOMED", "59621000"), (19080128, "RxNorm", "314076"), (9202, "Visit", "OP"), (8507, "Gender", "M"),
    (8532, "Gender", "F"), (32838, "Type Concept", "OMOP4976911"), (2000000001, "Local", "x"),
]  # fmt: skip


def tables() -> dict[str, tuple[list[str], list[list[object]]]]:
    """Return 27 persons with visits, blood pressures, diagnoses, medicines and a local concept."""
    features: dict[str, list[list[object]]] = {
        name: [] for name in ("person", "visit_occurrence", "measurement")
    }
    features |= {name: [] for name in ("condition_occurrence", "drug_exposure", "observation", "death")}
    for who in range(1, 28):
        day = date(2019, 1, 1) + timedelta(days=17 * who)
        features["person"].append(
            [who, 8507 if who % 2 else 8532, 1940 + who, who % 12 + 1, who, f"{who:04d}-ü"]
        )
        features["visit_occurrence"].append([who, who, 9202, day, day, day, None])
        for i, (concept, unit, value) in enumerate(
            [(3004249, 8876, 110 + 2.5 * who), (3038553, 9531, 20 + who / 3)]
        ):
            row = [100 * who + i, who, concept, day, day, None, round(value, 2), None, unit, None]
            features["measurement"].append(row)
        features["measurement"].append([100 * who + 9, who, 2000000001, day, day, None, 1, None, None, 0])
        if who % 3 == 0:
            features["condition_occurrence"].append([who, who, 320128, day, None, None])
            features["drug_exposure"].append([who, who, 19080128, day, day, 32838, None])
    names = {
        "person": "person_id gender_concept_id year_of_birth month_of_birth day_of_birth person_source_value",
        "visit_occurrence": "visit_occurrence_id person_id visit_concept_id visit_start_date visit_start_datetime "
        "visit_end_date visit_source_concept_id",
        "measurement": "measurement_id person_id measurement_concept_id measurement_date measurement_datetime "
        "operator_concept_id value_as_number value_as_concept_id unit_concept_id measurement_source_concept_id",
        "condition_occurrence": "condition_occurrence_id person_id condition_concept_id condition_start_date "
        "condition_end_date condition_source_concept_id",
        "drug_exposure": "drug_exposure_id person_id drug_concept_id drug_exposure_start_date drug_exposure_end_date "
        "drug_type_concept_id drug_source_concept_id",
        "observation": "observation_id person_id observation_concept_id observation_date value_as_number "
        "value_as_string value_as_concept_id unit_concept_id",
        "death": "person_id death_date",
        "concept": "concept_id vocabulary_id concept_code concept_name valid_start_date",
    }
    features["concept"] = [[*row, 'a "name", of ours', "19700101"] for row in CONCEPTS]
    return {name: (names[name].split(), rows) for name, rows in features.items()}


def write_export(
    folder: Path, *, delimiter=",", upper=False, date_format="%Y-%m-%d", time_format="%Y-%m-%d 00:00:00", empty="",
    quoting=csv.QUOTE_MINIMAL, decimals=False, mark=False, athena=False, ending=".csv",
) -> None:  # fmt: skip
    def subject_ndjson(column: str, cell: object) -> str:
        if cell is None:
            return empty
        if isinstance(cell, date):
            return cell.strftime(time_format if column.endswith("datetime") else date_format)
        return f"{cell}.0" if decimals and column.endswith("_id") and isinstance(cell, int) else str(cell)

    folder.mkdir()
    for name, (columns, rows) in tables().items():
        reference_export = athena and name == "concept"
        opener = gzip.open if ending.endswith(".gz") else open
        file = folder / ((name.upper() if upper else name) + ending)
        with opener(file, "wt", encoding="utf-8-sig" if mark else "utf-8", newline="") as stream:
            if reference_export:
                lines = [columns, *([str(cell) for cell in row] for row in rows)]
                stream.write("".join("\t".join(line) + "\n" for line in lines))
                continue
            writer = csv.writer(
                stream, delimiter=delimiter, quoting=quoting, lineterminator="\r\n" if mark else "\n"
            )
            writer.writerow([column.upper() if upper else column for column in columns])
            for row in rows:
                writer.writerow(
                    [subject_ndjson(column, cell) for column, cell in zip(columns, row, strict=True)]
                )


EXPORTS = {
    "lower-case CSV with a header": {},
    "upper-case names, Athena's vocabulary": {"upper": True, "athena": True},
    "tabulators, everything quoted": {"delimiter": "\t", "quoting": csv.QUOTE_ALL},
    "semicolons, a byte order mark, CRLF": {"delimiter": ";", "mark": True},
    "compact dates": {"date_format": "%Y%m%d", "time_format": "%Y%m%d"},
    "timestamps with fractions": {"time_format": "%Y-%m-%d 00:00:00.000000"},
    "moments of ISO 8601": {"time_format": "%Y-%m-%dT00:00:00", "date_format": "%Y-%m-%d"},
    "NA where there is nothing": {"empty": "NA"},
    "NULL where there is nothing": {"empty": "NULL"},
    "integers with decimals": {"decimals": True},
    "packed": {"ending": ".csv.gz"},
}


def table_of(folder: Path, path: str = "omop"):
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(bytes(range(32)))
    site = opened(
        folder, "folder", "kos", study_from_toml(STUDY), records=f'source = "omop"\npaths = ["{path}"]'
    )
    return site.table(), site.errors


@pytest.fixture(scope="module")
def reference_export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_export(folder / "omop")
    return table_of(folder)


def test_local_concepts_are_counted_and_others_are_in_the_table(reference_export):
    features, errors = reference_export
    assert len(features.table) == 27
    assert features.table.y.sum() == 9
    names = [column.name for column in features.table.columns]
    assert sorted(features.table.x[:, names.index("systolic")]) == [110 + 2.5 * who for who in range(1, 28)]
    assert features.table.x[:, names.index("lisinopril")].sum() == 9
    assert errors.reasons == {UNMAPPED: 27}  # counted by the database without reading the rows


def read_all(path: Path):
    """Return all records of an export, and its errors."""
    source = OmopSource(path, DataRequest("all"), None, UTC)
    return [record for record in source.records()], source.errors


def test_rows_of_local_concepts_are_counted(tmp_path):
    write_export(tmp_path / "omop")
    persons, errors = read_all(tmp_path / "omop")
    assert len(persons) == 27
    assert errors.reasons == {UNMAPPED: 27}
    assert set(errors.locations[UNMAPPED]) == {"measurement"}


@pytest.mark.parametrize("kind", EXPORTS)
def test_every_export_format_gives_the_same_table(kind, reference_export, tmp_path):
    write_export(tmp_path / "omop", **EXPORTS[kind])
    features, errors = table_of(tmp_path)
    assert features.table.subjects == reference_export[0].table.subjects
    assert features.table.x.tobytes() == reference_export[0].table.x.tobytes()
    assert features.table.y.tolist() == reference_export[0].table.y.tolist()
    assert errors.reasons == reference_export[1].reasons


@pytest.mark.parametrize("texts", [False, True])
def test_parquet_gives_the_same_table_with_types_and_as_text(texts, reference_export, tmp_path):
    pl = pytest.importorskip("polars")
    (tmp_path / "omop").mkdir()
    for name, (columns, rows) in tables().items():
        frame = pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)
        frame = frame.cast(pl.String) if texts else frame
        frame.write_parquet(tmp_path / "omop" / f"{name.upper()}.PARQUET")
    features, _ = table_of(tmp_path)
    assert features.table.x.tobytes() == reference_export[0].table.x.tobytes()


def test_empty_file_is_a_missing_table(reference_export, tmp_path):
    write_export(tmp_path / "omop")
    (tmp_path / "omop" / "death.csv").write_text("")
    (tmp_path / "omop" / "observation.csv").unlink()
    features, _ = table_of(tmp_path)
    assert features.table.x.tobytes() == reference_export[0].table.x.tobytes()


BAD = {
    "a date that is none": ("measurement.csv", "2019-01-18", "2019-02-30", "the column 'measurement_date'"),
    "a word for a number": ("measurement.csv", "112.5", "Canaria", "the column 'value_as_number'"),
    "another encoding": ("person.csv", "0001-ü", "Canaria-\udcfc", "the file is not a valid table"),
    "a cell too many": (
        "visit_occurrence.csv",
        "2,2,9202",
        "2,2,9202,Canaria,1,1,1,1,1",
        "the file is not a valid table",
    ),
    "no Parquet": ("measurement.parquet", "", "Canaria", "the file is not a valid table"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_file_is_refused_in_one_line(case, tmp_path):
    name, old, new, what = BAD[case]
    write_export(tmp_path / "omop")
    file = tmp_path / "omop" / name
    text = file.read_text() if file.exists() else ""
    assert old in text
    file.write_bytes(text.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    if name.endswith("parquet"):
        file.with_suffix(".csv").unlink()
    with pytest.raises(AbatonError) as caught:
        table_of(tmp_path)
    assert what in caught.value.what
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Canaria" not in str(caught.value)


def exports(folder: Path) -> list[Path]:
    """Return the folders with an export."""
    persons = (
        path for path in folder.rglob("*") if path.name.lower().split(".")[0] == "person" and path.is_file()
    )
    return sorted({path.parent for path in persons})


@pytest.mark.shared
def test_persons_of_the_shared_export_are_in_the_table(shared, tmp_path):
    folder = shared / "data" / "omop"
    if not folder.is_dir() or not exports(folder):
        pytest.skip(
            "no OMOP export here: put the tables of one into '../shared/data/omop', as CSV or Parquet"
        )
    for path in exports(folder):
        features, errors = table_of(tmp_path, str(path))
        subject_count = int(features.report.subjects)
        assert subject_count >= 27
        assert len(features.table) == subject_count
        persons, all_errors = read_all(path)
        assert len(persons) == subject_count
        print(f"{path.name}: {subject_count} subjects, {dict(all_errors.reasons)}")  # noqa: T201 - shown with -rP
        for errors_seen in (errors, all_errors):
            assert set(errors_seen.reasons) <= {UNMAPPED, "the concept of a unit is not in UCUM"}
