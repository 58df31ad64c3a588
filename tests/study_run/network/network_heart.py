"""Heart study of a test: four hospitals with planted names in their records, and the secrets to search for."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from abaton.site import build_site, load_site
from abaton.study import Study, load_study

EXAMPLE = Path(__file__).parents[3] / "examples" / "heart"
FILES = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "long-beach": "processed.va.data",
}
SITES = tuple(FILES)
CANARY = "Canaria-Serinus"
SAMPLED = 30  # subjects per hospital whose ids and pseudonyms are searched; names of all are


def write_hospitals(shared: Path, folder: Path, changes: dict[str, str]) -> Study:
    """Write four hospitals with names in their files, and the study with changed lines."""
    (folder / "sites").mkdir(parents=True)
    (folder / "files").mkdir()
    for name, file in FILES.items():
        _plant(shared / "data" / "heart" / file, folder / "files" / file, name)
        (folder / "sites" / f"{name}.toml").write_text((EXAMPLE / "sites" / f"{name}.toml").read_text())
    mapping = (EXAMPLE / "mapping.toml").read_text()
    for old, new in {
        'header = ["age"': 'header = ["who", "family", "age"',
        'sex = "sex"': 'subject = "who"\nsex = "sex"',
    }.items():
        assert old in mapping
        mapping = mapping.replace(old, new)
    (folder / "mapping.toml").write_text(mapping)
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.key").chmod(0o600)
    text = (EXAMPLE / "study.toml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "study.toml").write_text(text)
    return load_study(folder / "study.toml")


def _plant(source: Path, target: Path, name: str) -> None:
    rows = [line for line in source.read_text().splitlines() if line]
    target.write_text("".join(f"{name}-{i},{CANARY}-{name}-{i},{row}\n" for i, row in enumerate(rows, 1)))


def secrets_of(folder: Path, study: Study) -> Iterator[bytes]:
    """Yield what must not occur outside a hospital: names, numbers, ids, pseudonyms, records."""
    yield CANARY.encode()
    yield b'"resourceType"'
    for name in SITES:
        site = build_site(load_site(folder / "sites" / f"{name}.toml"), study, datetime.now(UTC))
        site.table()
        for key, patient in list(site.patient_ids.items())[:SAMPLED]:
            yield key.removeprefix("Patient/").encode()
            yield f'"{patient}"'.encode()


def find_secrets(secrets: list[bytes], *files: Path) -> set[bytes]:
    """Return the secrets that occur in the files; grep searches for all of them in one pass."""
    with tempfile.NamedTemporaryFile() as patterns:
        patterns.write(b"\n".join(secrets) + b"\n")
        patterns.flush()
        command = [
            "grep",
            "-a",
            "-o",
            "-h",
            "-F",
            "-f",
            patterns.name,
            "--",
            *(str(f) for f in files if f.is_file()),
        ]
        process = subprocess.run(
            command, capture_output=True, check=False, env={"LC_ALL": "C", "PATH": os.defpath}
        )
    assert process.returncode in (0, 1), process.stderr
    return set(process.stdout.splitlines())
