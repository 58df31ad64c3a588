"""Synthetic hospitals with FHIR records, generated from a seed, and the studies that use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from abaton.lab.synthetic_hospitals.fhir_records import resources
from abaton.lab.synthetic_hospitals.omop_tables import load_omop, write_omop
from abaton.lab.synthetic_hospitals.patients import (
    FOUR_HOSPITALS,
    SEVEN_HOSPITALS,
    SIX_HOSPITALS,
    Cohort,
    SyntheticHospital,
    SyntheticPatient,
    make_patients,
    tables,
)
from abaton.lab.synthetic_hospitals.spreadsheets import write_spreadsheets

__all__ = [
    "FOUR_HOSPITALS",
    "SEVEN_HOSPITALS",
    "SIX_HOSPITALS",
    "Cohort",
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


def records(
    name: str, seed: int, *, scale: float = 1.0, cohort: Cohort = FOUR_HOSPITALS
) -> Iterator[dict[str, Any]]:
    """Yield the FHIR resources of one synthetic hospital, patient by patient; the same for the same seed.

    >>> next(records("kos", seed=1))["resourceType"]
    'Patient'
    """
    hospital = cohort.hospitals[name]
    for number, patient in enumerate(make_patients(cohort, name, seed, scale=scale), 1):
        yield from resources(name, hospital, number, patient)


def write(folder: Path, seed: int, *, scale: float = 1.0, cohort: Cohort = FOUR_HOSPITALS) -> dict[str, Path]:
    """Write a cohort's records as NDJSON, a file per hospital and resource type, and its study document.

    Args:
        folder: Target folder; each hospital gets a folder in it.
        seed: Seed of all records.
        scale: Number of patients, as a multiple of the default.
        cohort: The synthetic hospitals.

    Returns:
        The folder of each hospital.
    """
    folders = {}
    for name in cohort.hospitals:
        folders[name] = folder / name
        folders[name].mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[str]] = {}
        for resource in records(name, seed, scale=scale, cohort=cohort):
            text = json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
            lines.setdefault(resource["resourceType"], []).append(text)
        for kind, texts in lines.items():
            (folders[name] / f"{kind}.ndjson").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (folder / "study.toml").write_text(study_text(cohort), encoding="utf-8")
    return folders


def study_text(cohort: Cohort = FOUR_HOSPITALS) -> str:
    """Return a cohort's study document: heart failure among patients with high blood pressure."""
    return files("abaton.lab.synthetic_hospitals").joinpath(cohort.study).read_text(encoding="utf-8")
