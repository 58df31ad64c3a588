"""Views against fhirpathpy on the same columns, and their cost relative to parsing the resource."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abaton.benchmark import BenchmarkResult, at_least, at_most, best_seconds
from abaton.fhir.json_format import dump, parse
from abaton.views import ViewDefinition

_RACE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race"
COLUMNS = [
    ("id", "id", "id"),
    ("gender", "gender", "code"),
    ("born", "birthDate", "date"),
    ("family", "name.where(use='official').family.first()", "string"),
    ("given", "name.first().given.first()", "string"),
    ("city", "address.city.first()", "string"),
    ("married", "maritalStatus.coding.code.first()", "code"),
    ("race", f"extension('{_RACE}').extension('ombCategory').value.ofType(Coding).code.first()", "code"),
    ("phone", "telecom.where(system='phone').value.first()", "string"),
    ("named", "name.exists()", "boolean"),
]


def run() -> list[BenchmarkResult]:
    """Measure views on real patients where available, on synthetic ones otherwise."""
    import fhirpathpy
    from fhirpathpy.models import models

    patients = _patients()
    columns = [{"name": name, "path": path, "type": fhir_type} for name, path, fhir_type in COLUMNS]
    view = ViewDefinition.load({"resource": "Patient", "select": [{"column": columns}]})
    compiled = [fhirpathpy.compile(path, models["r4"]) for _, path, _ in COLUMNS]
    sample = patients[:20]
    own_seconds = best_seconds(lambda: [view.rows(patient) for patient in sample], repeats=25, inner=3) / len(
        sample
    )
    peer_seconds = best_seconds(
        lambda: [[evaluate(patient, None) for evaluate in compiled] for patient in sample], repeats=3
    ) / len(sample)
    raw = [dump(patient) for patient in patients]
    parsing = best_seconds(lambda: [parse(resource) for resource in raw]) / len(raw)
    seconds_per_patient = best_seconds(lambda: [view.rows(patient) for patient in patients]) / len(patients)
    cells = [view.rows(patient)[0] for patient in sample]
    same = all(
        ([] if cell is None else [cell]) == value
        for patient, row in zip(sample, cells, strict=True)
        for cell, value in zip(row, (evaluate(patient, None) for evaluate in compiled), strict=True)
    )
    return [
        at_least("views: speed over fhirpathpy, compiled, same columns", peer_seconds / own_seconds, 20, "x"),
        BenchmarkResult("views: cells equal to fhirpathpy's", float(same), "1 = all", "1", same),
        at_most(
            "views: cost per resource as a multiple of parsing it", seconds_per_patient / parsing, 2, "x"
        ),
        BenchmarkResult("views: time per patient, ten columns", 1e6 * seconds_per_patient, "us"),
    ]


def _patients() -> list[dict[str, Any]]:
    real = Path(__file__).resolve().parents[2] / "shared/data/fhir/bulk-ndjson/1000.Patient.ndjson"
    if real.is_file():
        return [json.loads(line) for line in real.read_text("utf-8").splitlines()][:500]
    return [
        {
            "resourceType": "Patient",
            "id": f"p{i}",
            "gender": "female" if i % 2 else "male",
            "birthDate": f"19{i % 90 + 10}-01-02",
            "name": [{"use": "official", "family": f"F{i}", "given": ["A", "B"]}],
            "address": [{"city": f"C{i % 7}"}],
            "telecom": [{"system": "phone", "value": str(i)}],
            "maritalStatus": {"coding": [{"code": "M"}]},
        }
        for i in range(500)
    ]
