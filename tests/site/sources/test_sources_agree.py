"""The same patients as FHIR, OMOP and spreadsheets give equal feature tables."""

from __future__ import annotations

import numpy as np
import pytest
from tests.site.site_population import FOUR_HOSPITALS, load_omop, opened, study, write_population


def table_of(folder, kind, name, document=None, **more):
    site = opened(folder, kind, name, document, **more)
    features = site.table()
    assert site.errors.reasons == {}
    return features.table, site.attrition


def same(one, other):
    assert one.columns == other.columns
    first, second = np.argsort(one.subjects), np.argsort(other.subjects)
    assert np.array(one.subjects)[first].tolist() == np.array(other.subjects)[second].tolist()
    assert np.array_equal(one.x[first], other.x[second], equal_nan=True)
    assert np.array_equal(one.y[first], other.y[second])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Hospital with ICD-10 codes, missing units and LOINC answers."""
    folder = tmp_path_factory.mktemp("trikala")
    write_population(folder, "trikala", 0.2)
    load_omop(folder / "omop", f"sqlite:///{folder / 'omop.db'}")
    return folder


@pytest.mark.parametrize("kind", ["csv", "sqlite", "folder"])
def test_small_hospital_is_equal_in_every_source(small, kind):
    if kind == "folder":
        pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    expected, attrition = table_of(small, "ndjson", "trikala")
    assert len(expected) > 20
    table, other_attrition = table_of(small, kind, "trikala")
    same(expected, table)
    assert attrition == other_attrition


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """All four hospitals of the demonstration, 2,160 patients."""
    folder = tmp_path_factory.mktemp("population")
    counts = [write_population(folder / name, name, 1.0) for name in FOUR_HOSPITALS.hospitals]
    assert sum(counts) >= 2_000
    return folder


@pytest.fixture(scope="module")
def expected(population):
    """Feature tables of the four hospitals from FHIR, original and de-identified."""
    return {
        (name, raw): table_of(population / name, "ndjson", name, study(raw=raw))[0]
        for name in FOUR_HOSPITALS.hospitals
        for raw in (True, False)
    }


@pytest.mark.slow
@pytest.mark.parametrize("raw", [True, False], ids=["as it is", "de-identified"])
@pytest.mark.parametrize("kind", ["csv", "folder", "sqlite", "duckdb"])
def test_population_is_equal_in_every_source(population, expected, kind, raw):
    pytest.importorskip("duckdb_engine", reason="DuckDB is missing: install abaton[omop]")
    rows = 0
    for name in FOUR_HOSPITALS.hospitals:
        path = population / name
        for file, url in (("omop.db", "sqlite"), ("omop.duckdb", "duckdb")):
            if kind == url and not (path / file).exists():
                load_omop(path / "omop", f"{url}:///{path / file}")
        table, _ = table_of(path, kind, name, study(raw=raw))
        same(expected[name, raw], table)
        rows += len(table)
    assert rows > 1_500


@pytest.mark.postgres
def test_population_is_equal_in_postgresql(population, expected, new_database):
    for name in FOUR_HOSPITALS.hospitals:
        url = new_database()
        load_omop(population / name / "omop", url)
        records = f'source = "omop"\ndatabase = "{url}"\ntimezone = "+02:00"'
        for raw in (True, False):
            table, _ = table_of(population / name, "postgres", name, study(raw=raw), records=records)
            same(expected[name, raw], table)
