"""De-identification speed relative to the cost of JSON, in one run on one core.

The limit is the time that orjson needs to read and write the same document. Documents are generated in the form of a
synthetic patient's Bundle, so that the benchmark runs anywhere; real documents of the data folder are measured as well
where it is available.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.deid import DataRequest, Deidentifier, Mechanism, Pseudonyms
from abaton.deid.reference_index import ReferenceIndex, reference_names
from abaton.deid.settings import DeidentificationSettings
from abaton.fhir.file_reader import RecordFile
from abaton.records.export import BATCH_RECORDS, ExportJob, deidentify_documents, export_records

# A legal basis as the audit log records it; the records are synthetic.
LEGAL_BASIS = SimpleNamespace(text="benchmark", audit_hash="0" * 64)
KEY = bytes(range(32))
UCUM = "http://unitsofmeasure.org"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "fhir"
PAPER = {  # Table I: seconds on a phone for anonymisation
    "Composition (132 KB)": ("Composition", 132_000, 0.887420),
    "Diagnostic report (131 KB)": ("DiagnosticReport", 131_000, 0.470300),
    "Document reference (126 KB)": ("DocumentReference", 126_000, 0.342727),
    "Patient (1.07 KB)": ("Patient", 1_070, 0.005492),
    "Practitioner (504 byte)": ("Practitioner", 504, 0.001545),
}


def _interleaved(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the CPU seconds of each call as the tenth percentile; calls alternate.

    The minimum is not reliable because the clock sometimes does not advance.
    """
    gc.collect()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call_times, call in zip(times, calls, strict=True):
            start = time.process_time()
            call()
            call_times.append(time.process_time() - start)
    return [sorted(call_times)[repeats // 10] for call_times in times]


def _make_deidentifier(*documents: bytes) -> Deidentifier:
    """Return a de-identifier with an index of external references, as after a pass over all files."""
    names = {name for raw in documents for name in reference_names(orjson.loads(raw))}
    targets = {
        name: (name.partition("?")[0] or "Practitioner", str(n)) for n, name in enumerate(sorted(names))
    }
    return Deidentifier(
        DataRequest("bench"), Pseudonyms("bench", KEY), year=2026, reference_index=ReferenceIndex(targets)
    )


def _json_only(raw: bytes) -> bytes:
    return orjson.dumps(orjson.loads(raw))


def _deidentify(deidentifier: Deidentifier, raw: bytes) -> bytes:
    deidentifier.pseudonyms.clear_cache()  # compute every pseudonym, as for a new document
    (record,) = deidentify_documents([raw], deidentifier, legal_basis=LEGAL_BASIS)
    assert isinstance(record, bytes)
    return record


def _uuid(n: int) -> str:
    return f"d78af07c-9cb9-4f31-9b11-{n:012x}"


def dense(size: int) -> bytes:
    """Return a Bundle of one patient's encounters, conditions and observations of about the given size."""
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
        resource = {
            "resourceType": "Observation", "id": _uuid(number), "status": "final", "category": [{"coding": [category]}],
            "code": {"coding": [coding], "text": "Body Height"}, "subject": {"reference": f"urn:uuid:{_uuid(0)}"},
            "encounter": {"reference": f"Encounter/{_uuid(10_000 + number // 8)}"},
            "effectiveDateTime": "2012-09-10T15:29:24+00:00", "issued": "2012-09-10T15:29:24.181+00:00",
            "valueQuantity": {"value": 168.8 + number / 7, "unit": "cm", "system": UCUM, "code": "cm"},
        }  # fmt: skip
        entry = {
            "fullUrl": f"urn:uuid:{resource['id']}",
            "resource": resource,
            "request": {"method": "POST", "url": "Observation"},
        }
        total += len(orjson.dumps(entry))
        entries.append(entry)
    return orjson.dumps({"resourceType": "Bundle", "type": "transaction", "entry": entries})


def _speed() -> list[BenchmarkResult]:
    rows: list[BenchmarkResult] = []
    documents = {"generated": dense(128_000)}
    for path in sorted(DATA.glob("synthea-bundles/[CJN]*.json")) if DATA.is_dir() else ():
        documents[f"Synthea {path.name.partition('_')[0]}"] = orjson.dumps(orjson.loads(path.read_bytes()))
    for path in DATA.glob("miracum-fixtures/Ashleigh*.json") if DATA.is_dir() else ():
        documents["miracum benchmark"] = path.read_bytes()
    ratios = []
    deidentifier = _make_deidentifier(*documents.values())
    for name, raw in documents.items():
        calls: list[Callable[[], object]] = [
            partial(_json_only, raw),
            partial(_deidentify, deidentifier, raw),
        ]
        json_seconds, deid_seconds = _interleaved(calls, 120 if len(raw) < 300_000 else 40)
        ratios.append(100 * json_seconds / deid_seconds)
        rows.append(at_least(f"all rules against orjson, {name} ({len(raw):,} bytes)", ratios[-1], 20, "%"))
        rows.append(BenchmarkResult(f"throughput, {name}", len(raw) / deid_seconds / 1e6, "MB/s"))
    raw = dense(130_000)
    _, deid_seconds = _interleaved([lambda: orjson.loads(raw), lambda: _deidentify(deidentifier, raw)], 120)
    rows.append(at_most(f"a document of {len(raw):,} bytes", 1e3 * deid_seconds, 3, "ms"))
    return rows


def _lines_speed() -> list[BenchmarkResult]:
    """Measure NDJSON lines in batches against orjson line by line; pseudonyms are not cached."""
    observations = [entry["resource"] for entry in orjson.loads(dense(1_000_000))["entry"][1:]]
    for number, observation in enumerate(observations):
        observation["subject"] = {"reference": f"Patient/{number % 100}"}
        observation["encounter"] = {"reference": f"Encounter/{number // 8}"}
    files = {"small Observations": [orjson.dumps(observation) for observation in observations]}
    real = [
        line
        for path in sorted(DATA.glob("bulk-ndjson/10.*.ndjson"))
        for line in path.read_bytes().splitlines()
    ]
    if real:
        files["a real bulk export"] = real[::3]
    rows = []
    for name, lines in files.items():
        deidentifier = _make_deidentifier(*lines)

        def deidentify(deidentifier: Deidentifier = deidentifier, lines: list[bytes] = lines) -> None:
            deidentifier.clear_cache()
            for start in range(0, len(lines), BATCH_RECORDS):
                batch = lines[start : start + BATCH_RECORDS]
                deidentify_documents(batch, deidentifier, legal_basis=LEGAL_BASIS)

        def json_only(lines: list[bytes] = lines) -> None:
            for line in lines:
                _json_only(line)

        json_seconds, deid_seconds = _interleaved([json_only, deidentify], 20)
        size = sum(map(len, lines)) / len(lines)
        label = f"NDJSON, {name} ({size:,.0f} bytes per line)"
        rows.append(
            at_least(f"{label}: all rules against orjson", 100 * json_seconds / deid_seconds, 20, "%")
        )
        rows.append(BenchmarkResult(f"{label}: one line", 1e6 * deid_seconds / len(lines), "us"))
    return rows


def _table_1() -> list[BenchmarkResult]:
    """Measure the paper's five resources in their sizes; the paper's times are of a phone of 2022."""
    deidentifier, rows = _make_deidentifier(), []
    for name, (resource_type, size, seconds) in PAPER.items():
        raw = _of_type(resource_type, size)
        (deid_seconds,) = _interleaved([partial(_deidentify, deidentifier, raw)], 30)
        rows.append(BenchmarkResult(f"Table I, {name}: anonymisation", 1e3 * deid_seconds, "ms"))
        rows.append(BenchmarkResult(f"Table I, {name}: on the paper's phone", 1e3 * seconds, "ms"))
    return rows


def _of_type(resource_type: str, size: int) -> bytes:
    base: dict[str, Any] = {"resourceType": resource_type, "id": "1", "language": "en"}
    text = {"status": "generated", "div": f"<div>{'x' * max(0, size - 400)}</div>"}
    extra: dict[str, dict[str, Any]] = {
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
    }
    return orjson.dumps(base | extra[resource_type])


def _peers() -> list[BenchmarkResult]:
    """Measure general libraries on the same documents."""
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
            deidentifier = _make_deidentifier()
            deid_seconds, validate, path = _interleaved(
                [
                    lambda: _deidentify(deidentifier, orjson.dumps(single)),
                    lambda: Observation.model_validate(single),
                    lambda: rule(single, None),
                ],
                200,
            )
        rows.append(BenchmarkResult("one Observation through all rules", 1e6 * deid_seconds, "us"))
        rows.append(BenchmarkResult("one Observation validated by fhir.resources", 1e6 * validate, "us"))
        rows.append(BenchmarkResult("one compiled rule of fhirpathpy on one Observation", 1e6 * path, "us"))
    except ImportError:
        pass
    return rows


def _streaming(megabytes: int) -> list[BenchmarkResult]:
    """Measure NDJSON through the export with one and two processes; memory after a quarter and after all."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        quarter = _exported(_lines(folder / "Quarter.ndjson", megabytes / 4), processes=1)
        path = _lines(folder / "Whole.ndjson", megabytes)
        one, two = (_exported(path, processes=n) for n in (1, 2))
        size = path.stat().st_size / 1e6
    label = f"NDJSON of {megabytes:,} MB"
    return [
        BenchmarkResult(f"{label}, one process", size / one["wall"], "MB/s"),
        BenchmarkResult(f"{label}, one process, by its CPU time", size / one["cpu"], "MB/s"),
        BenchmarkResult(f"{label}, two processes", size / two["wall"], "MB/s"),
        _two_processes(one["wall"] / two["wall"], megabytes),
        BenchmarkResult(
            "CPU time that two processes add, start included", 100 * (two["cpu"] / one["cpu"] - 1), "%"
        ),
        BenchmarkResult(f"{label}: peak memory of one process", one["peak"], "MB"),
        at_most("memory added by four times the NDJSON", one["peak"] - quarter["peak"], 60, "MB"),
    ]


def _two_processes(speedup: float, megabytes: int) -> BenchmarkResult:
    """Return the target of two processes; below 200 MB their start dominates."""
    name = "two processes against one (wall-clock time)"
    return at_least(name, speedup, 1.6, "x") if megabytes >= 200 else BenchmarkResult(name, speedup, "x")


def _lines(path: Path, megabytes: float) -> Path:
    """Write a file of generated Observations, each with its own id and a subject."""
    records = [entry["resource"] for entry in orjson.loads(dense(100_000))["entry"][1:]]
    for n, observation in enumerate(records):
        observation["subject"] = {"reference": f"Patient/{n}"}
        observation["encounter"] = {"reference": f"Encounter/{n // 8}"}
    number = written = 0
    with path.open("wb") as stream:
        while written < megabytes * 1e6:
            number += 1
            record = records[number % len(records)]
            written += stream.write(orjson.dumps(record | {"id": _uuid(number)}) + b"\n")
    return path


def _exported(path: Path, *, processes: int) -> dict[str, float]:
    """Return wall and CPU seconds and peak memory in MB of an export in a child process."""
    code = f"import runpy; runpy.run_path({__file__!r})['stream']({str(path)!r}, {processes})"
    start = time.perf_counter()
    completed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    measured: dict[str, float] = json.loads(completed.stdout)
    return measured | {"wall": time.perf_counter() - start}


def stream(path: str, processes: int) -> None:
    """Export one file and print its cost."""
    request = DataRequest("bench", (), DeidentificationSettings(mechanism=Mechanism.PSEUDONYMISE))
    out = Path(f"{path}.{processes}")
    export_records(
        [RecordFile(path, Path(path).name)],
        out,
        ExportJob(request, KEY, 2026, LEGAL_BASIS),
        processes=processes,
    )
    shutil.rmtree(out)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    scale = 1 if sys.platform == "darwin" else 1024
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"cpu": cpu, "peak": max(usage.ru_maxrss for usage in used) * scale / 1e6}))


def run(megabytes: int = 200) -> list[BenchmarkResult]:
    """Measure speed, the paper's table, peers and streaming."""
    return _speed() + _lines_speed() + _table_1() + _peers() + _streaming(megabytes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="the size of the streamed NDJSON")
    parser.add_argument("--only-stream", action="store_true", help="measure the streaming only")
    arguments = parser.parse_args()
    rows = _streaming(arguments.megabytes) if arguments.only_stream else run(arguments.megabytes)
    print(json.dumps([measure.to_row() for measure in rows], indent=1))
