"""De-identification measured against the limit of JSON itself, in one run on one core.

The limit is what orjson needs to read and write the same document and do nothing with it. Documents are
drawn here, in the form of a synthetic patient's Bundle, so that the benchmark runs anywhere; where the data
folder lies beside the checkout, its real documents are measured too.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from abaton.bench import Measure, at_least, at_most
from abaton.records import Consented, Deidentifier, Mechanism, Need, Pseudonyms, Record, dump, parse
from abaton.records.exporting import Job, export
from abaton.records.need import Deidentification
from abaton.records.sources import Source

KEY = bytes(range(32))
UCUM = "http://unitsofmeasure.org"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "fhir"
PAPER = {  # Table I: seconds on a phone for anonymisation
    "Composition (132 KB)": (132_000, 0.887420),
    "Diagnostic report (131 KB)": (131_000, 0.470300),
    "Document reference (126 KB)": (126_000, 0.342727),
    "Patient (1.07 KB)": (1_070, 0.005492),
    "Practitioner (504 byte)": (504, 0.001545),
}


def _interleaved(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """The least CPU seconds of each call; they take turns, so that all meet the same machine."""
    gc.collect()
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            best[i] = min(best[i], time.process_time() - start)
    return best


def _make() -> Deidentifier:
    return Deidentifier(Need("bench"), Pseudonyms("bench", KEY), year=2026)


def _whole(make: Deidentifier, raw: bytes) -> bytes:
    make.names.forget()  # every identity is computed anew, as for a document never seen
    made = make(Consented.on_ground(Record(parse(raw)), "benchmark"))
    assert made is not None
    return dump(made.content)


def _uuid(n: int) -> str:
    return f"d78af07c-9cb9-4f31-9b11-{n:012x}"


def dense(size: int) -> bytes:
    """A Bundle of one patient's encounters, conditions and observations, about as large as asked."""
    patient = {
        "resourceType": "Patient",
        "id": _uuid(0),
        "gender": "female",
        "birthDate": "1961-02-03",
        "name": [{"family": "Rossi", "given": ["Ada"]}],
        "address": [{"line": ["Via Roma 1"], "city": "Pisa", "country": "IT"}],
    }
    entries: list[dict[str, Any]] = [{"fullUrl": f"urn:uuid:{_uuid(0)}", "resource": patient}]
    number = total = 0
    while total < size:
        number += 1
        coding = {"system": "http://loinc.org", "code": "8302-2", "display": "Body Height"}
        category = {
            "system": "http://terminology.hl7.org/CodeSystem/observation-category",
            "code": "vital-signs",
            "display": "vital-signs",
        }
        made = {
            "resourceType": "Observation", "id": _uuid(number), "status": "final", "category": [{"coding": [category]}],
            "code": {"coding": [coding], "text": "Body Height"}, "subject": {"reference": f"urn:uuid:{_uuid(0)}"},
            "encounter": {"reference": f"urn:uuid:{_uuid(10_000 + number // 8)}"},
            "effectiveDateTime": "2012-09-10T15:29:24+00:00", "issued": "2012-09-10T15:29:24.181+00:00",
            "valueQuantity": {"value": 168.8 + number / 7, "unit": "cm", "system": UCUM, "code": "cm"},
        }  # fmt: skip
        entry = {
            "fullUrl": f"urn:uuid:{made['id']}",
            "resource": made,
            "request": {"method": "POST", "url": "Observation"},
        }
        total += len(orjson.dumps(entry))
        entries.append(entry)
    return orjson.dumps({"resourceType": "Bundle", "type": "transaction", "entry": entries})


def _speed() -> list[Measure]:
    rows: list[Measure] = []
    make = _make()
    documents = {"drawn": dense(128_000)}
    for path in sorted(DATA.glob("synthea-bundles/[CJN]*.json")) if DATA.is_dir() else ():
        documents[f"Synthea {path.name.partition('_')[0]}"] = orjson.dumps(orjson.loads(path.read_bytes()))
    for path in DATA.glob("miracum-fixtures/Ashleigh*.json") if DATA.is_dir() else ():
        documents["miracum benchmark"] = path.read_bytes()
    ratios = []
    for name, raw in documents.items():
        calls: list[Callable[[], object]] = [
            lambda r=raw: orjson.dumps(orjson.loads(r)),
            lambda r=raw: _whole(make, r),
        ]
        plain, whole = _interleaved(calls, 120 if len(raw) < 300_000 else 40)
        ratios.append(100 * plain / whole)
        rows.append(
            at_least(f"whole plan against plain orjson, {name} ({len(raw):,} bytes)", ratios[-1], 25, "%")
        )
        rows.append(Measure(f"throughput, {name}", len(raw) / whole / 1e6, "MB/s"))
    raw = dense(130_000)
    _, whole = _interleaved([lambda: orjson.loads(raw), lambda: _whole(make, raw)], 120)
    rows.append(at_most(f"a document of {len(raw):,} bytes", 1e3 * whole, 3, "ms"))
    return rows


def _table_1() -> list[Measure]:
    """The paper's five resources in their sizes; ours on this machine, theirs on a phone of 2022."""
    make, rows = _make(), []
    for name, (size, seconds) in PAPER.items():
        kind = {
            "C": "Composition",
            "Di": "DiagnosticReport",
            "Do": "DocumentReference",
            "Pa": "Patient",
            "Pr": "Practitioner",
        }
        type_name = next(value for start, value in kind.items() if name.startswith(start))
        raw = _of_type(type_name, size)
        (whole,) = _interleaved([lambda r=raw: _whole(make, r)], 30)
        rows.append(Measure(f"Table I, {name}: anonymisation", 1e3 * whole, "ms"))
        rows.append(Measure(f"Table I, {name}: the paper's phone took", 1e3 * seconds, "ms"))
    return rows


def _of_type(kind: str, size: int) -> bytes:
    base: dict[str, Any] = {"resourceType": kind, "id": "1", "language": "en"}
    text = {"status": "generated", "div": f"<div>{'x' * max(0, size - 400)}</div>"}
    extra: dict[str, Any] = {
        "Composition": {
            "status": "final",
            "type": {"text": "Report"},
            "date": "2020-01-02",
            "title": "Report",
            "author": [{"display": "A"}],
            "section": [{"title": "All", "text": text}],
        },
        "DiagnosticReport": {
            "status": "final",
            "code": {"text": "Imaging"},
            "presentedForm": [{"data": "QUJD" * (size // 4)}],
        },
        "DocumentReference": {
            "status": "current",
            "content": [{"attachment": {"data": "QUJD" * (size // 4)}}],
        },
        "Patient": {"name": [{"family": "Rossi"}], "birthDate": "1961-02-03", "text": text},
        "Practitioner": {"name": [{"family": "Bianchi"}], "text": text},
    }[kind]
    return orjson.dumps(base | extra)


def _peers() -> list[Measure]:
    """What general parts cost on the same documents."""
    raw = dense(128_000)
    document = orjson.loads(raw)
    single = document["entry"][1]["resource"]
    rows = []
    try:
        from fhir.resources.R4B.observation import Observation
        from fhirpathpy import compile as compile_path

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rule = compile_path("Observation.subject.display")
            make = _make()
            whole, validate, path = _interleaved(
                [
                    lambda: _whole(make, orjson.dumps(single)),
                    lambda: Observation.model_validate(single),
                    lambda: rule(single),
                ],
                200,
            )
        rows.append(Measure("one Observation through the whole plan", 1e6 * whole, "us"))
        rows.append(Measure("one Observation validated by fhir.resources", 1e6 * validate, "us"))
        rows.append(Measure("one compiled rule of fhirpathpy on one Observation", 1e6 * path, "us"))
    except ImportError:
        pass
    return rows


def _streaming() -> list[Measure]:
    """NDJSON through the export, one process and two; memory after 16 MB and after 64 MB."""
    rows = []
    document = orjson.loads(dense(4_000))["entry"][1]["resource"]
    job = Job(Need("bench", (), Deidentification(mechanism=Mechanism.PSEUDONYMISE)), KEY, 2026, "benchmark")
    with tempfile.TemporaryDirectory() as place:
        folder, seconds, peaks = Path(place), {}, []
        for megabytes in (16, 64):
            path = folder / f"{megabytes}.ndjson"
            with path.open("wb") as stream:
                for n in range(megabytes * 1_000_000 // len(orjson.dumps(document))):
                    stream.write(orjson.dumps(document | {"id": _uuid(n)}) + b"\n")
            start = time.perf_counter()
            export([Source(str(path), path.name)], folder / f"one{megabytes}", job)
            seconds[1] = time.perf_counter() - start
            peaks.append(
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            )
        start = time.perf_counter()
        export([Source(str(path), path.name)], folder / "two", job, processes=2)
        seconds[2] = time.perf_counter() - start
        size = path.stat().st_size
    rows.append(Measure("NDJSON of 64 MB, one process", size / seconds[1] / 1e6, "MB/s"))
    rows.append(Measure("NDJSON of 64 MB, two processes", size / seconds[2] / 1e6, "MB/s"))
    rows.append(
        Measure(
            "two processes against one (wall time, this machine's load included)",
            seconds[1] / seconds[2],
            "x",
        )
    )
    rows.append(at_most("memory added by four times the NDJSON", (peaks[1] - peaks[0]) / 1e6, 60, "MB"))
    return rows


def run() -> list[Measure]:
    """Speed, the paper's table, peers and streaming."""
    return _speed() + _table_1() + _peers() + _streaming()


if __name__ == "__main__":
    print(json.dumps([measure.row() for measure in run()], indent=1))
