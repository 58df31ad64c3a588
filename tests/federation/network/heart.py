"""The heart study for a test: four hospitals with planted names in their records, and what must not leave."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from abaton.site import load_site, open_site
from abaton.study import Study, load_study

EXAMPLE = Path(__file__).parents[3] / "examples" / "heart"
SITES = ("cleveland", "hungary", "switzerland", "long-beach")
CANARY = "Canaria-Serinus"
SOME = 30  # people of each hospital whose ids and pseudonyms are looked for; everybody's name is


def write_hospitals(shared: Path, folder: Path, changes: dict[str, str]) -> Study:
    """Four hospitals with records of their own folder, and the study with some lines changed."""
    spec = importlib.util.spec_from_file_location("convert", EXAMPLE / "convert.py")
    convert = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(convert)
    (folder / "sites").mkdir(parents=True)
    convert.convert(shared / "data" / "heart", folder / "records")
    for name in SITES:
        _plant(folder / "records" / name / "Patient.ndjson", name)
        (folder / "sites" / f"{name}.toml").write_text((EXAMPLE / "sites" / f"{name}.toml").read_text())
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.key").chmod(0o600)
    text = (EXAMPLE / "study.toml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "study.toml").write_text(text)
    return load_study(folder / "study.toml")


def _plant(file: Path, name: str) -> None:
    lines = []
    for i, line in enumerate(file.read_text().splitlines()):
        patient = json.loads(line)
        patient["name"] = [{"family": f"{CANARY}-{name}-{i}"}]
        patient["identifier"] = [{"system": "urn:abaton:canary", "value": f"{CANARY}/{i}"}]
        lines.append(json.dumps(patient))
    file.write_text("\n".join(lines) + "\n")


def secrets_of(folder: Path, study: Study) -> Iterator[bytes]:
    """What must not be found anywhere outside of a hospital: names, numbers, ids, pseudonyms, whole records."""
    yield CANARY.encode()
    yield b"urn:abaton:canary"
    yield b'"resourceType"'
    for name in SITES:
        site = open_site(load_site(folder / "sites" / f"{name}.toml"), study, datetime.now(UTC))
        site.table()
        for key, person in list(site.people.items())[:SOME]:
            yield key.removeprefix("Patient/").encode()
            yield f'"{person}"'.encode()


def found(secrets: list[bytes], *files: Path) -> set[bytes]:
    """Which of them are in some files; grep looks for all of them in one pass."""
    with tempfile.NamedTemporaryFile() as wanted:
        wanted.write(b"\n".join(secrets) + b"\n")
        wanted.flush()
        words = [
            "grep",
            "-a",
            "-o",
            "-h",
            "-F",
            "-f",
            wanted.name,
            "--",
            *(str(f) for f in files if f.is_file()),
        ]
        done = subprocess.run(
            words, capture_output=True, check=False, env={"LC_ALL": "C", "PATH": os.defpath}
        )
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.splitlines())
