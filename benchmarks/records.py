"""De-identification measured against the limit of JSON itself, in one run on one core.

The limit is what orjson needs to read and write the same document and do nothing with it. Documents are
drawn here, in the form of a synthetic patient's Bundle, so that the benchmark runs anywhere; where the data
folder lies beside the checkout, its real documents are measured too.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from abaton.benchmark import Measure, at_least, at_most
from abaton.records import Deidentifier, Mechanism, Need, Pseudonyms
from abaton.deid.reference_index import Addresses, asked
from abaton.deid.settings import Deidentification
from abaton.records.export import LOT, Job, deidentified, export
from abaton.fhir.file_reader import Source

# A ground as an audit chain would hold it: nobody's records are measured.
GROUND = SimpleNamespace(words="benchmark", chain="0" * 64)
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
    """The CPU seconds of each call when little disturbs it; they take turns, so that all meet the same machine.

    A tenth of the calls took less: the very least is not to be trusted, because the clock stands still now and then.
    """
    gc.collect()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for took, call in zip(times, calls, strict=True):
            start = time.process_time()
            call()
            took.append(time.process_time() - start)
    return [sorted(took)[repeats // 10] for took in times]


def _make(*documents: bytes) -> Deidentifier:
    """A de-identifier that knows where references lead which documents do not answer, as after a look at all files."""
    names = {name for raw in documents for name in asked(orjson.loads(raw))}
    places = {
        name: (name.partition("?")[0] or "Practitioner", str(n)) for n, name in enumerate(sorted(names))
    }
    return Deidentifier(Need("bench"), Pseudonyms("bench", KEY), year=2026, addresses=Addresses(places))


def _whole(make: Deidentifier, raw: bytes) -> bytes:
    make.names.forget()  # every identity is computed anew, as for a document never seen
    (made,) = deidentified([raw], make, ground=GROUND)
    assert isinstance(made, bytes)
    return made


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
            "encounter": {"reference": f"Encounter/{_uuid(10_000 + number // 8)}"},
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
    documents = {"drawn": dense(128_000)}
    for path in sorted(DATA.glob("synthea-bundles/[CJN]*.json")) if DATA.is_dir() else ():
        documents[f"Synthea {path.name.partition('_')[0]}"] = orjson.dumps(orjson.loads(path.read_bytes()))
    for path in DATA.glob("miracum-fixtures/Ashleigh*.json") if DATA.is_dir() else ():
        documents["miracum benchmark"] = path.read_bytes()
    ratios = []
    make = _make(*documents.values())
    for name, raw in documents.items():
        calls: list[Callable[[], object]] = [
            lambda r=raw: orjson.dumps(orjson.loads(r)),
            lambda r=raw: _whole(make, r),
        ]
        plain, whole = _interleaved(calls, 120 if len(raw) < 300_000 else 40)
        ratios.append(100 * plain / whole)
        rows.append(
            at_least(f"whole plan against plain orjson, {name} ({len(raw):,} bytes)", ratios[-1], 20, "%")
        )
        rows.append(Measure(f"throughput, {name}", len(raw) / whole / 1e6, "MB/s"))
    raw = dense(130_000)
    _, whole = _interleaved([lambda: orjson.loads(raw), lambda: _whole(make, raw)], 120)
    rows.append(at_most(f"a document of {len(raw):,} bytes", 1e3 * whole, 3, "ms"))
    return rows


def _lines_speed() -> list[Measure]:
    """Lines of NDJSON in lots, as an export reads them, against orjson line by line; identities are computed anew."""
    observations = [entry["resource"] for entry in orjson.loads(dense(1_000_000))["entry"][1:]]
    for number, each in enumerate(observations):
        each["subject"] = {"reference": f"Patient/{number % 100}"}
        each["encounter"] = {"reference": f"Encounter/{number // 8}"}
    kinds = {"small Observations": [orjson.dumps(each) for each in observations]}
    real = [
        line
        for path in sorted(DATA.glob("bulk-ndjson/10.*.ndjson"))
        for line in path.read_bytes().splitlines()
    ]
    if real:
        kinds["a real bulk export"] = real[::3]
    rows = []
    for name, lines in kinds.items():
        make = _make(*lines)

        def through(make: Deidentifier = make, lines: list[bytes] = lines) -> None:
            make.forget()
            for start in range(0, len(lines), LOT):
                deidentified(lines[start : start + LOT], make, ground=GROUND)

        def plain(lines: list[bytes] = lines) -> None:
            for line in lines:
                orjson.dumps(orjson.loads(line))

        limit, whole = _interleaved([plain, through], 20)
        size = sum(map(len, lines)) / len(lines)
        told = f"NDJSON, {name} ({size:,.0f} bytes a line)"
        rows.append(at_least(f"{told}: whole plan against plain orjson", 100 * limit / whole, 20, "%"))
        rows.append(Measure(f"{told}: one line", 1e6 * whole / len(lines), "us"))
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


def _streaming(megabytes: int) -> list[Measure]:
    """NDJSON through the export, with one process and with two; memory after a quarter of it and after all."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        quarter = _exported(_lines(folder / "Quarter.ndjson", megabytes / 4), processes=1)
        path = _lines(folder / "Whole.ndjson", megabytes)
        one, two = (_exported(path, processes=n) for n in (1, 2))
        size = path.stat().st_size / 1e6
    named = f"NDJSON of {megabytes:,} MB"
    return [
        Measure(f"{named}, one process", size / one["wall"], "MB/s"),
        Measure(f"{named}, one process, by its CPU time", size / one["cpu"], "MB/s"),
        Measure(f"{named}, two processes", size / two["wall"], "MB/s"),
        _two(one["wall"] / two["wall"], megabytes),
        Measure(
            "work that two processes add (CPU time, start included)", 100 * (two["cpu"] / one["cpu"] - 1), "%"
        ),
        Measure(f"{named}: most memory of one process", one["peak"], "MB"),
        at_most("memory added by four times the NDJSON", one["peak"] - quarter["peak"], 60, "MB"),
    ]


def _two(gain: float, megabytes: int) -> Measure:
    """Below 200 MB the start of two processes weighs too much for a target."""
    name = "two processes against one (wall time, this machine's load included)"
    return at_least(name, gain, 1.6, "x") if megabytes >= 200 else Measure(name, gain, "x")


def _lines(path: Path, megabytes: float) -> Path:
    """A file of drawn Observations, each with an id of its own and a subject."""
    records = [entry["resource"] for entry in orjson.loads(dense(100_000))["entry"][1:]]
    for n, each in enumerate(records):
        each["subject"] = {"reference": f"Patient/{n}"}
        each["encounter"] = {"reference": f"Encounter/{n // 8}"}
    number = written = 0
    with path.open("wb") as stream:
        while written < megabytes * 1e6:
            number += 1
            record = records[number % len(records)]
            written += stream.write(orjson.dumps(record | {"id": _uuid(number)}) + b"\n")
    return path


def _exported(path: Path, *, processes: int) -> dict[str, float]:
    """What an export in a process of its own took: seconds of wall and CPU time, and its most memory in MB."""
    code = f"import runpy; runpy.run_path({__file__!r})['stream']({str(path)!r}, {processes})"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told | {"wall": time.perf_counter() - start}


def stream(path: str, processes: int) -> None:
    """Export one file and print what it took."""
    need = Need("bench", (), Deidentification(mechanism=Mechanism.PSEUDONYMISE))
    out = Path(f"{path}.{processes}")
    export([Source(path, Path(path).name)], out, Job(need, KEY, 2026, GROUND), processes=processes)
    shutil.rmtree(out)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    scale = 1 if sys.platform == "darwin" else 1024
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps({"cpu": cpu, "peak": max(each.ru_maxrss for each in used) * scale / 1e6}))


def run(megabytes: int = 200) -> list[Measure]:
    """Speed, the paper's table, peers and streaming."""
    return _speed() + _lines_speed() + _table_1() + _peers() + _streaming(megabytes)


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--megabytes", type=int, default=200, help="the size of the streamed NDJSON")
    words.add_argument("--only-stream", action="store_true", help="measure the streaming alone")
    asked = words.parse_args()
    rows = _streaming(asked.megabytes) if asked.only_stream else run(asked.megabytes)
    print(json.dumps([measure.row() for measure in rows], indent=1))
