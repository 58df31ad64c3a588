"""The same patients from NDJSON and from OMOP to a feature table: time, and memory for ten times as many patients.

ABATON_ROWS is the number of measurements: 1,000,000 by default, half an hour. Every measurement runs in its own
process, for its peak memory. A tenth of the measurements belongs to a tenth of the patients. Embedded databases are
compared by processor time, servers by wall-clock time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import _postgres

from abaton.benchmark import BenchmarkResult, at_most
from abaton.cli.output import note
from abaton.lab.synthetic_hospitals import load_omop, study_text, write_omop

ROWS = int(os.environ.get("ABATON_ROWS", "1000000"))
PATIENTS = max(200, ROWS // 500)
MEASUREMENTS_PER_PATIENT = ROWS // PATIENTS
_SITE = """[site]
id = "bench"
name = "Bench"
[records]
{records}
[consent]
legal_basis = "Synthetic records"
[keys]
study = "study.key"
"""
_SOURCES = {
    "NDJSON": 'source = "ndjson"\npaths = ["ndjson"]',
    "OMOP in SQLite": 'source = "omop"\ndatabase = "sqlite:///omop.db"',
    "OMOP in PostgreSQL": 'source = "omop"\ndatabase = "{postgres}"\ncdm_schema = "{folder}"',
    "OMOP in DuckDB": 'source = "omop"\ndatabase = "duckdb:///omop.duckdb"',
    "OMOP as CSV": 'source = "omop"\npaths = ["omop"]',
    "OMOP as Parquet": 'source = "omop"\npaths = ["parquet"]',
}
_READ_BY_DUCKDB = ("OMOP in DuckDB", "OMOP as CSV", "OMOP as Parquet")


def run() -> list[BenchmarkResult]:
    """Measure time and memory of every source relative to NDJSON in the same run."""
    with tempfile.TemporaryDirectory() as temporary, _postgres.server() as postgres:
        folders = Path(temporary) / "tenth", Path(temporary) / "whole"
        for folder, patients in zip(folders, (PATIENTS // 10, PATIENTS), strict=True):
            note(f"sources: {patients} patients are written")
            _write(folder, patients, postgres)
        measured = {name: _measure(folders, name, postgres) for name in _available_sources(postgres)}
    ndjson = measured["NDJSON"]["table"][1]
    results = [
        BenchmarkResult("sources: measurements", float(PATIENTS * MEASUREMENTS_PER_PATIENT), ""),
        BenchmarkResult("sources: patients", float(PATIENTS), ""),
    ]
    for name, measurements in measured.items():
        tenth, many = measurements["table"]
        results.append(BenchmarkResult(f"{name} to a feature table, processor time", many[0], "s"))
        results.append(BenchmarkResult(f"{name} to a feature table, wall-clock time", many[2], "s"))
        if name != "NDJSON":
            label, index = (", wall-clock time", 2) if "PostgreSQL" in name else ("", 0)
            results.append(at_most(f"{name}: time over NDJSON{label}", many[index] / ndjson[index], 1.3, "x"))
            same = many[3] == ndjson[3]
            results.append(
                BenchmarkResult(f"{name}: table equal to NDJSON's", float(same), "1 = yes", "1", same)
            )
        results.append(BenchmarkResult(f"{name}: peak memory", many[1], "MiB"))
        results.append(
            BenchmarkResult(
                f"{name}: more memory than for a tenth of the patients", many[1] - tenth[1], "MiB"
            )
        )
        if name == "NDJSON":
            continue
        reader_tenth, reader_many = measurements["reader"]
        results.append(BenchmarkResult(f"{name}: memory of the reader only", reader_many[1], "MiB"))
        reader = f"{name}: memory of the reader only"
        if name in _READ_BY_DUCKDB:  # without an index by person it sorts, within 256 MB and then on disk
            more = f"{reader}, more than for a tenth of the patients"
            results.append(at_most(more, reader_many[1] - reader_tenth[1], 256, "MiB"))
            continue
        # The table has a row per patient, some kilobytes each; the reader stores nothing.
        results.append(at_most(f"{name}: memory over a tenth of the patients", many[1] / tenth[1], 1.1, "x"))
        # A tenth must fill the reader's batches of thousands of rows, or it needs less memory.
        limit = 1.05 if ROWS >= 200_000 else 1.1
        results.append(
            at_most(f"{reader} over a tenth of the patients", reader_many[1] / reader_tenth[1], limit, "x")
        )
    return results


def _available_sources(postgres: str) -> Iterator[str]:
    """Return the sources that are available."""
    duckdb = importlib.util.find_spec("duckdb_engine") is not None
    if not duckdb:
        note("sources: DuckDB is skipped: it needs abaton[omop]")
    if not postgres:
        note("sources: PostgreSQL is skipped: it needs a server's programs and abaton[postgres]")
    for name in _SOURCES:
        if (duckdb or name not in _READ_BY_DUCKDB) and (postgres or "PostgreSQL" not in name):
            yield name


def _measure(folders: tuple[Path, Path], name: str, postgres: str) -> dict[str, list[list[Any]]]:
    measured = {}
    for target in ("table",) if name == "NDJSON" else ("table", "reader"):
        measured[target] = [_read(folder, name, target, postgres) for folder in folders]
        (_, tenth_memory, *_), (cpu_seconds, memory, seconds, _) = measured[target]
        seconds_text = f"{cpu_seconds:.1f} s CPU, {seconds:.1f} s"
        note(f"sources: {name}, {target}: {seconds_text}, {tenth_memory:.1f} to {memory:.1f} MiB")
    return measured


def _read(folder: Path, name: str, target: str, postgres: str) -> list[Any]:
    site = f"{name.replace(' ', '-')}.toml"
    records = _SOURCES[name].replace("{postgres}", postgres).replace("{folder}", folder.name)
    (folder / site).write_text(
        _SITE.format(records=records + ('\ntimezone = "+02:00"' if "OMOP" in name else ""))
    )
    arguments = [sys.executable, str(Path(__file__).with_name("_read_source.py")), str(folder), site, target]
    completed = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    measured: list[Any] = json.loads(completed.stdout.splitlines()[-1])
    return measured


def _write(folder: Path, patients: int, postgres: str) -> None:
    """Write patients with blood-pressure measurements as NDJSON, as files and to databases."""
    (folder / "ndjson").mkdir(parents=True)
    streams = {
        kind: (folder / "ndjson" / f"{kind}.ndjson").open("w")
        for kind in ("Patient", "Encounter", "Condition", "Observation")
    }
    for resource in _resources(patients):
        streams[resource["resourceType"]].write(json.dumps(resource).replace("p-", "") + "\n")
    for stream in streams.values():
        stream.close()
    write_omop(folder / "omop", _resources(patients))
    load_omop(folder / "omop", f"sqlite:///{folder / 'omop.db'}")
    with sqlite3.connect(folder / "omop.db") as base:
        base.execute("ANALYZE")
    base.close()
    if importlib.util.find_spec("duckdb_engine") is not None:
        _write_by_duckdb(folder)
    if postgres:
        _load_postgres(folder, postgres)
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.toml").write_text(study_text())


def _write_by_duckdb(folder: Path) -> None:
    """Write the tables of the SQLite file as Parquet and to a DuckDB file."""
    import duckdb

    (folder / "parquet").mkdir()
    with duckdb.connect(str(folder / "omop.duckdb")) as base:
        for file in sorted((folder / "omop").glob("*.csv")):
            base.execute(f"CREATE TABLE {file.stem} AS SELECT * FROM read_csv('{file}')")
            base.execute(f"COPY {file.stem} TO '{folder / 'parquet' / file.stem}.parquet'")


def _load_postgres(folder: Path, postgres: str) -> None:
    import sqlalchemy as sql

    engine = sql.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE SCHEMA {folder.name}"))
        load_omop(folder / "omop", f"{postgres}&options=-csearch_path%3D{folder.name}")
        connection.execute(sql.text("ANALYZE"))
    engine.dispose()


def _resources(patients: int) -> Iterator[dict[str, Any]]:
    snomed = "http://snomed.info/sct"
    number = 0
    for i in range(1, patients + 1):
        subject = {"reference": f"Patient/p-{i}"}
        sex = "female" if i % 2 else "male"
        yield {
            "resourceType": "Patient",
            "id": f"p-{i}",
            "gender": sex,
            "birthDate": f"{1940 + i % 40}-03-0{1 + i % 9}",
        }
        for day, code in (("2023-06-01", "185349003"), ("2024-08-01", "390906007")):
            number += 1
            yield {
                "resourceType": "Encounter", "id": f"v-{number}", "status": "finished", "class": {"code": "AMB"},
                "type": [{"coding": [{"system": snomed, "code": code}]}], "subject": subject,
                "period": {"start": f"{day}T09:00:00+02:00", "end": f"{day}T10:00:00+02:00"},
            }  # fmt: skip
        codes = [("38341003", "2020-01-01"), *([("84114007", "2023-11-01")] if i % 3 == 0 else [])]
        for code, day in codes:
            number += 1
            yield {
                "resourceType": "Condition", "id": f"c-{number}", "subject": subject, "onsetDateTime": day,
                "code": {"coding": [{"system": snomed, "code": code}]},
            }  # fmt: skip
        for code, unit, value in (
            ("2093-3", "mg/dL", 200),
            ("2160-0", "mg/dL", 1.1),
            ("39156-5", "kg/m2", 27.5),
        ):
            number += 1
            yield _observation(number, subject, code, "2023-05-01T09:00:00+02:00", value, unit)
        for k in range(MEASUREMENTS_PER_PATIENT):
            number += 1
            day = f"{2022 + k % 2}-{1 + k % 5:02d}-{1 + k % 27:02d}T{8 + k % 9:02d}:{k % 60:02d}:00+02:00"
            yield _observation(number, subject, "8480-6", day, 110 + (7 * i + k) % 70, "mm[Hg]")


def _observation(
    number: int, subject: dict[str, str], code: str, day: str, value: float, unit: str
) -> dict[str, Any]:
    ucum = "http://unitsofmeasure.org"
    return {
        "resourceType": "Observation",
        "id": f"o-{number}",
        "status": "final",
        "code": {"coding": [{"system": "http://loinc.org", "code": code}]},
        "subject": subject,
        "effectiveDateTime": day,
        "valueQuantity": {"value": value, "unit": unit, "system": ucum, "code": unit},
    }
