"""The same people from NDJSON and from OMOP to a feature table: time, and memory as measurements grow tenfold.

ABATON_ROWS says how many measurements there are: 1,000,000 by default, some minutes. Every reading runs in a process
of its own, so that the memory it needed at most is its own. Time is compared as the processor counts it: these
databases work within the process, and a busy machine does not change it.
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

from abaton.bench import Measure, at_most
from abaton.cli.output import note
from abaton.lab.hospitals import load_omop, study_text, write_omop

ROWS = int(os.environ.get("ABATON_ROWS", "1000000"))
PEOPLE = max(20, ROWS // 500)
_SITE = """[site]
id = "bench"
name = "Bench"
[records]
{records}
[consent]
ground = "Nobody here is real"
[keys]
study = "study.key"
"""
_KINDS = {
    "NDJSON": 'kind = "ndjson"\npaths = ["ndjson"]',
    "OMOP in SQLite": 'kind = "omop"\ndatabase = "sqlite:///omop.db"',
    "OMOP as CSV by DuckDB": 'kind = "omop"\npaths = ["omop"]',
}
_READ = """
import hashlib, json, resource, sys, time
from datetime import UTC, datetime
from pathlib import Path
from abaton.site import load_site, open_site
from abaton.study import load_study

folder = Path(sys.argv[1])
site = open_site(load_site(folder / sys.argv[2]), load_study(folder / "study.toml"), datetime(2026, 11, 16, tzinfo=UTC))
begun, worked = time.perf_counter(), time.process_time()
table = site.table().table
seconds, worked = time.perf_counter() - begun, time.process_time() - worked
digest = hashlib.sha256(table.x.tobytes() + table.y.tobytes()).hexdigest()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([worked, peak, seconds, digest]))
"""


def run() -> list[Measure]:
    """Time and memory of every source, as ratios to NDJSON in the same run."""
    kinds = {name: text for name, text in _KINDS.items() if "DuckDB" not in name or _has_duckdb()}
    with tempfile.TemporaryDirectory() as place:
        small, large = Path(place) / "small", Path(place) / "large"
        _write(small, ROWS // 10 // PEOPLE)
        _write(large, ROWS // PEOPLE)
        found = {}
        for name in kinds:
            note(f"sources: {name}")
            found[name] = _read(small, name), _read(large, name)
            note(f"sources: {name}: {found[name][1][0]:.1f} s of the processor, {found[name][1][1]:.0f} MiB")
    theirs = found["NDJSON"][1]
    made = [Measure("sources: measurements", float(ROWS), ""), Measure("sources: people", float(PEOPLE), "")]
    for name, (few, many) in found.items():
        made.append(Measure(f"{name} to a feature table, processor", many[0], "s"))
        made.append(Measure(f"{name} to a feature table, waiting included", many[2], "s"))
        if name != "NDJSON":
            made.append(at_most(f"{name}: time over NDJSON", many[0] / theirs[0], 1.3, "x"))
            same = many[3] == theirs[3]
            made.append(Measure(f"{name}: table equal to NDJSON's", float(same), "1 = yes", "1", same))
        made.append(Measure(f"{name}: memory at most", many[1], "MiB"))
        growth = f"{name}: memory over a tenth of the measurements"
        # Files have no index by person: DuckDB sorts them, within its own limit of 256 MB.
        sorts = "DuckDB" in name
        made.append(
            at_most(f"{name}: more memory than for a tenth", many[1] - few[1], 256, "MiB")
            if sorts
            else at_most(growth, many[1] / few[1], 1.1, "x")
        )
    return made


def _has_duckdb() -> bool:
    found = importlib.util.find_spec("duckdb_engine") is not None
    if not found:
        note("sources: DuckDB is left out: it needs abaton[omop]")
    return found


def _read(folder: Path, name: str) -> list[Any]:
    site = f"{name.replace(' ', '-')}.toml"
    (folder / site).write_text(
        _SITE.format(records=_KINDS[name] + ('\ntimezone = "+02:00"' if "OMOP" in name else ""))
    )
    words = [sys.executable, "-c", _READ, str(folder), site]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    made: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def _write(folder: Path, each: int) -> None:
    """People with so many pressures each, all of which the study wants: as NDJSON, as CSV and in SQLite."""
    (folder / "ndjson").mkdir(parents=True)
    streams = {
        kind: (folder / "ndjson" / f"{kind}.ndjson").open("w")
        for kind in ("Patient", "Encounter", "Condition", "Observation")
    }
    for resource in _people(each):
        streams[resource["resourceType"]].write(json.dumps(resource).replace("p-", "") + "\n")
    for stream in streams.values():
        stream.close()
    write_omop(folder / "omop", _people(each))
    load_omop(folder / "omop", f"sqlite:///{folder / 'omop.db'}")
    with sqlite3.connect(folder / "omop.db") as base:
        base.execute("ANALYZE")
    base.close()
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.toml").write_text(study_text())


def _people(each: int) -> Iterator[dict[str, Any]]:
    snomed = "http://snomed.info/sct"
    number = 0
    for i in range(1, PEOPLE + 1):
        about = {"reference": f"Patient/p-{i}"}
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
                "type": [{"coding": [{"system": snomed, "code": code}]}], "subject": about,
                "period": {"start": f"{day}T09:00:00+02:00", "end": f"{day}T10:00:00+02:00"},
            }  # fmt: skip
        codes = [("38341003", "2020-01-01"), *([("84114007", "2023-11-01")] if i % 3 == 0 else [])]
        for code, day in codes:
            number += 1
            yield {
                "resourceType": "Condition", "id": f"c-{number}", "subject": about, "onsetDateTime": day,
                "code": {"coding": [{"system": snomed, "code": code}]},
            }  # fmt: skip
        for code, unit, value in (
            ("2093-3", "mg/dL", 200),
            ("2160-0", "mg/dL", 1.1),
            ("39156-5", "kg/m2", 27.5),
        ):
            number += 1
            yield _measured(number, about, code, "2023-05-01T09:00:00+02:00", value, unit)
        for k in range(each):
            number += 1
            day = f"{2022 + k % 2}-{1 + k % 5:02d}-{1 + k % 27:02d}T{8 + k % 9:02d}:{k % 60:02d}:00+02:00"
            yield _measured(number, about, "8480-6", day, 110 + (7 * i + k) % 70, "mm[Hg]")


def _measured(
    number: int, about: dict[str, str], code: str, day: str, value: float, unit: str
) -> dict[str, Any]:
    ucum = "http://unitsofmeasure.org"
    return {
        "resourceType": "Observation",
        "id": f"o-{number}",
        "status": "final",
        "code": {"coding": [{"system": "http://loinc.org", "code": code}]},
        "subject": about,
        "effectiveDateTime": day,
        "valueQuantity": {"value": value, "unit": unit, "system": ucum, "code": unit},
    }
