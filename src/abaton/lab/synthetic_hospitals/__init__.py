"""Four invented hospitals with FHIR records, and the study that learns from them: everything is made from a seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from abaton.lab.synthetic_hospitals.fhir_records import resources
from abaton.lab.synthetic_hospitals.omop_tables import load_omop, write_omop
from abaton.lab.synthetic_hospitals.patients import HOSPITALS, Hospital, Person, people, tables
from abaton.lab.synthetic_hospitals.spreadsheets import write_spreadsheets

__all__ = [
    "HOSPITALS",
    "Hospital",
    "Person",
    "load_omop",
    "people",
    "records",
    "resources",
    "study_text",
    "tables",
    "write",
    "write_omop",
    "write_spreadsheets",
]


def records(name: str, seed: int, *, scale: float = 1.0) -> Iterator[dict[str, Any]]:
    """The FHIR resources of one hospital, person by person; the same seed gives the same records.

    >>> next(records("kos", seed=1))["resourceType"]
    'Patient'
    """
    hospital = HOSPITALS[name]
    rng = np.random.default_rng([seed, list(HOSPITALS).index(name)])
    for number, person in enumerate(people(hospital, rng, scale=scale), 1):
        yield from resources(name, hospital, number, person)


def write(folder: Path, seed: int, *, scale: float = 1.0) -> dict[str, Path]:
    """Write every hospital's records as NDJSON, a file per resource type, and the study document beside them.

    Args:
        folder: Where to; each hospital gets a folder of its own in it.
        seed: Decides everything.
        scale: How many people there are, as a multiple of the usual number.

    Returns:
        The folder of each hospital.
    """
    made = {}
    for name in HOSPITALS:
        made[name] = folder / name
        made[name].mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[str]] = {}
        for resource in records(name, seed, scale=scale):
            text = json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
            lines.setdefault(resource["resourceType"], []).append(text)
        for kind, texts in lines.items():
            (made[name] / f"{kind}.ndjson").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (folder / "study.toml").write_text(study_text(), encoding="utf-8")
    return made


def study_text() -> str:
    """The study document of the four hospitals: who of those with high blood pressure gets heart failure in a year."""
    return files("abaton.lab.synthetic_hospitals").joinpath("study.toml").read_text(encoding="utf-8")
