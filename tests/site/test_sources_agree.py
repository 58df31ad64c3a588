"""The same people as FHIR, as OMOP and as spreadsheets: the feature tables are equal, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from tests.site.population import HOSPITALS, load_omop, opened, study, write_population


def table_of(folder, kind, name, document=None, **more):
    site = opened(folder, kind, name, document, **more)
    made = site.table()
    assert site.faults.reasons == {}
    return made.table, site.funnel


def same(one, other):
    assert one.columns == other.columns
    first, second = np.argsort(one.subjects), np.argsort(other.subjects)
    assert np.array(one.subjects)[first].tolist() == np.array(other.subjects)[second].tolist()
    assert np.array_equal(one.x[first], other.x[second], equal_nan=True)
    assert np.array_equal(one.y[first], other.y[second])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small hospital that codes in ICD-10, forgets units and answers in LOINC: the hardest of the four."""
    folder = tmp_path_factory.mktemp("trikala")
    write_population(folder, "trikala", 0.2)
    load_omop(folder / "omop", f"sqlite:///{folder / 'omop.db'}")
    return folder


@pytest.mark.parametrize("kind", ["csv", "sqlite", "folder"])
def test_a_small_hospital_is_the_same_in_every_form(small, kind):
    if kind == "folder":
        pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    expected, funnel = table_of(small, "ndjson", "trikala")
    assert len(expected) > 20
    table, mine = table_of(small, kind, "trikala")
    same(expected, table)
    assert funnel == mine


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """All four hospitals as in the demonstration: 2,160 people."""
    folder = tmp_path_factory.mktemp("population")
    counts = [write_population(folder / name, name, 1.0) for name in HOSPITALS]
    assert sum(counts) >= 2_000
    return folder


@pytest.fixture(scope="module")
def expected(population):
    """The feature tables of the four hospitals from FHIR, as it is and de-identified; made once."""
    return {
        (name, raw): table_of(population / name, "ndjson", name, study(raw=raw))[0]
        for name in HOSPITALS
        for raw in (True, False)
    }


@pytest.mark.slow
@pytest.mark.parametrize("raw", [True, False], ids=["as it is", "de-identified"])
@pytest.mark.parametrize("kind", ["csv", "folder", "sqlite", "duckdb"])
def test_the_population_is_the_same_in_every_form(population, expected, kind, raw):
    pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    rows = 0
    for name in HOSPITALS:
        place = population / name
        for file, url in (("omop.db", "sqlite"), ("omop.duckdb", "duckdb")):
            if kind == url and not (place / file).exists():
                load_omop(place / "omop", f"{url}:///{place / file}")
        table, _ = table_of(place, kind, name, study(raw=raw))
        same(expected[name, raw], table)
        rows += len(table)
    assert rows > 1_500


@pytest.mark.postgres
def test_the_population_is_the_same_in_postgresql(population, expected, new_database):
    for name in HOSPITALS:
        url = new_database()
        load_omop(population / name / "omop", url)
        asked = f'kind = "omop"\ndatabase = "{url}"\ntimezone = "+02:00"'
        for raw in (True, False):
            table, _ = table_of(population / name, "postgres", name, study(raw=raw), records=asked)
            same(expected[name, raw], table)
