"""One population as FHIR NDJSON, spreadsheets and OMOP, and sites with these sources."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from abaton.lab.synthetic_hospitals import (
    FOUR_HOSPITALS,
    load_omop,
    records,
    study_text,
    write_omop,
    write_spreadsheets,
)
from abaton.site import build_site, load_site
from abaton.study import study_from_toml

NOW = datetime(2026, 11, 16, tzinfo=UTC)
SEED = 1990
SOURCE_TEMPLATES = {
    "ndjson": 'source = "ndjson"\npaths = ["ndjson"]',
    "csv": 'source = "csv"\npaths = ["csv"]\nmapping = "csv/mapping.toml"',
    "folder": 'source = "omop"\npaths = ["omop"]\ntimezone = "+02:00"',
    "sqlite": 'source = "omop"\ndatabase = "sqlite:///omop.db"\ntimezone = "+02:00"',
    "duckdb": 'source = "omop"\ndatabase = "duckdb:///omop.duckdb"\ntimezone = "+02:00"',
}
SITE = """[site]
id = "{name}"
name = "Hospital"

[records]
{records}

[consent]
legal_basis = "synthetic patients"

[keys]
study = "study.key"
"""


def write_population(folder: Path, name: str, scale: float) -> int:
    """Write one hospital in all formats; return its number of patients."""
    (folder / "ndjson").mkdir(parents=True)
    lines: dict[str, list[str]] = {}
    for resource in records(name, SEED, scale=scale):
        # OMOP knows people by numbers, so that the others do here, too.
        text = json.dumps(resource).replace(f"{name}-", "")
        lines.setdefault(resource["resourceType"], []).append(text)
    for kind, texts in lines.items():
        (folder / "ndjson" / f"{kind}.ndjson").write_text("\n".join(texts) + "\n")
    write_spreadsheets(folder / "csv", name, records(name, SEED, scale=scale))
    write_omop(folder / "omop", records(name, SEED, scale=scale))
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(bytes(range(32)))
    return len(lines["Patient"])


def study(*, raw: bool = False):
    """Return the study of the demonstration; with original dates and values if raw."""
    text = study_text()
    if raw:
        rules = "".join(
            f'[[deidentification.rules]]\npath = "nodesByType(\'{kind}\')"\nmethod = "keep"\n'
            for kind in ("date", "dateTime", "Quantity", "Period")
        )
        text = text.replace("[privacy.anonymity]", rules + "\n[privacy.anonymity]")
    return study_from_toml(text)


def opened(folder: Path, kind: str, name: str, document=None, **more: str):
    """Return the site with one of the sources."""
    path = folder / f"{kind}.toml"
    path.write_text(SITE.format(name=name, records=more.get("records") or SOURCE_TEMPLATES[kind]))
    return build_site(load_site(path), document or study(), NOW)


__all__ = ["FOUR_HOSPITALS", "load_omop", "opened", "study", "write_population"]
