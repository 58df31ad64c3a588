"""File names of OMOP tables are data: not patterns, not SQL, not columns."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.site.sources.omop.test_omop_exports import write_export

from abaton.site.sources.omop.omop_database import OmopDatabase

duckdb = pytest.importorskip("duckdb", reason="DuckDB is missing: install abaton[omop]")

NAMES = [
    "plain",
    "it's",
    "x'; DROP TABLE person; --",
    "a*b",
    "q?x",
    "[ab]",
    "]x[",
    "{x,y}",
    "100% %s %(x)s",
    "person_id=5",
    "back\\slash",
    "a\\*b",
    'quote"d',
    "line\nbreak",
    ":name",
    "$1",
]


def person_ids(address: str | Path) -> list[int]:
    database = OmopDatabase(address)
    try:
        person = database.table("person", ("person_id",))
        return sorted(row[0] for row in database.fetch_all(person.select()))
    finally:
        database.close()


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write_export(folder / "omop")
    return folder / "omop"


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_read_alone_whatever_its_name(tmp_path, export, name, ending):
    folder = tmp_path / name
    folder.mkdir()
    # Folders that DuckDB would read, too, if the name were a pattern.
    for other in ("aZb", "qZx", "a", "b", "back", "x"):
        (tmp_path / other).mkdir(exist_ok=True)
        (tmp_path / other / f"person{ending}").write_bytes(_persons(export, ending, tmp_path, [99]))
    (folder / f"person{ending}").write_bytes(_persons(export, ending, tmp_path, [1, 2]))
    assert person_ids(folder) == [1, 2]


def _persons(export: Path, ending: str, folder: Path, ids: list[int]) -> bytes:
    if ending == ".csv":
        return "".join(
            ["person_id,gender_concept_id,year_of_birth\n", *(f"{i},8507,1950\n" for i in ids)]
        ).encode()
    file = folder / "persons.parquet"
    with duckdb.connect() as connection:
        rows = ", ".join(f"({i}, 8507, 1950)" for i in ids)
        connection.execute(
            f"COPY (SELECT * FROM (VALUES {rows}) AS t(person_id, gender_concept_id, year_of_birth)) "
            f"TO '{file}' (FORMAT parquet)"
        )
    return file.read_bytes()


def test_a_file_whose_name_is_sql_is_not_opened(tmp_path, export):
    folder = tmp_path / "omop"
    shutil.copytree(export, folder)
    for name in ('x" AS SELECT 1; DROP VIEW person; --.csv', "person'.csv", "*.csv", "select.csv"):
        (folder / name).write_text("person_id\n7\n")
    assert person_ids(folder) == list(range(1, 28))


def test_a_column_may_have_the_name_of_a_keyword(tmp_path):
    (tmp_path / "person.csv").write_text("person_id,order,select\n1,2,3\n")
    database = OmopDatabase(tmp_path)
    assert database.columns("person") == ("person_id", "order", "select")
    database.close()


@pytest.mark.parametrize(
    "name", ["plain", "it's", "a?b", "a#b", "100%20 %s", "x;y", "a*b", "&mode=rwc", 'quote"d']
)
@pytest.mark.parametrize("backend", ["sqlite", "duckdb"])
def test_a_database_file_is_opened_whatever_its_name(tmp_path, name, backend):
    import sqlite3

    file = tmp_path / f"{name}.db"
    connect = sqlite3.connect if backend == "sqlite" else duckdb.connect
    connection = connect(str(file))
    connection.execute("CREATE TABLE person (person_id BIGINT)")
    connection.execute("INSERT INTO person VALUES (3)")
    connection.commit()
    connection.close()
    assert person_ids(f"{backend}:///{quote(str(file))}") == [3]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
