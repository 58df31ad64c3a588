"""Six synthetic hospitals with FHIR records, generated from a seed, and the study that uses them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from abaton.lab.synthetic_hospitals.fhir_records import resources
from abaton.lab.synthetic_hospitals.omop_tables import load_omop, write_omop
from abaton.lab.synthetic_hospitals.patients import (
    HOSPITALS,
    MISCODING_HOSPITAL,
    SyntheticHospital,
    SyntheticPatient,
    make_patients,
    tables,
)
from abaton.lab.synthetic_hospitals.spreadsheets import write_spreadsheets

__all__ = [
    "HOSPITALS",
    "MISCODING_HOSPITAL",
    "SyntheticHospital",
    "SyntheticPatient",
    "load_omop",
    "make_patients",
    "records",
    "resources",
    "study_text",
    "tables",
    "write",
    "write_omop",
    "write_spreadsheets",
]


def records(name: str, seed: int, *, scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yield the FHIR resources of one synthetic hospital, patient by patient; the same for the same seed.

    >>> next(records("kos", seed=1))["resourceType"]
    'Patient'
    """
    hospitals = {**HOSPITALS, **MISCODING_HOSPITAL}
    hospital = hospitals[name]
    rng = np.random.default_rng([seed, list(hospitals).index(name)])
    for number, patient in enumerate(make_patients(hospital, rng, scale=scale), 1):
        yield from resources(name, hospital, number, patient)


def write(
    folder: Path, seed: int, *, scale: float = 1.0, hospitals: Iterable[str] = HOSPITALS
) -> dict[str, Path]:
    """Write synthetic hospitals' records as NDJSON, a file per resource type, and the study document.

    Args:
        folder: Target folder; each hospital gets a folder in it.
        seed: Seed of all records.
        scale: Number of patients, as a multiple of the default.
        hospitals: Names of the hospitals.

    Returns:
        The folder of each hospital.
    """
    folders = {}
    for name in hospitals:
        folders[name] = folder / name
        folders[name].mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[str]] = {}
        for resource in records(name, seed, scale=scale):
            text = json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
            lines.setdefault(resource["resourceType"], []).append(text)
        for kind, texts in lines.items():
            (folders[name] / f"{kind}.ndjson").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (folder / "study.toml").write_text(study_text(), encoding="utf-8")
    return folders


def study_text() -> str:
    """Return the synthetic hospitals' study document: heart failure among patients with high blood pressure."""
    return files("abaton.lab.synthetic_hospitals").joinpath("study.toml").read_text(encoding="utf-8")
