"""Views against fhirpathpy on the same columns, and their cost as a multiple of parsing the resource."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abaton.benchmark import Measure, at_least, at_most, best_seconds
from abaton.fhir.json_format import dump, parse
from abaton.views import View

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


def run() -> list[Measure]:
    """Measure views on real patients where they are, on made-up ones otherwise."""
    import fhirpathpy
    from fhirpathpy.models import models

    patients = _patients()
    columns = [{"name": name, "path": path, "type": kind} for name, path, kind in COLUMNS]
    view = View.load({"resource": "Patient", "select": [{"column": columns}]})
    compiled = [fhirpathpy.compile(path, models["r4"]) for _, path, _ in COLUMNS]
    few = patients[:20]
    ours = best_seconds(lambda: [view.rows(patient) for patient in few], repeats=25, inner=3) / len(few)
    theirs = best_seconds(lambda: [[one(patient) for one in compiled] for patient in few], repeats=3) / len(
        few
    )
    raw = [dump(patient) for patient in patients]
    parsing = best_seconds(lambda: [parse(each) for each in raw]) / len(raw)
    whole = best_seconds(lambda: [view.rows(patient) for patient in patients]) / len(patients)
    cells = [view.rows(patient)[0] for patient in few]
    same = all(
        ([] if cell is None else [cell]) == found
        for patient, row in zip(few, cells, strict=True)
        for cell, found in zip(row, (one(patient) for one in compiled), strict=True)
    )
    return [
        at_least("views: speed over fhirpathpy, compiled, same columns", theirs / ours, 20, "x"),
        Measure("views: cells equal to fhirpathpy's", float(same), "1 = all", "1", same),
        at_most("views: cost per resource as a multiple of parsing it", whole / parsing, 2, "x"),
        Measure("views: time per patient, ten columns", 1e6 * whole, "us"),
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
