"""The browser's Python makes the same bytes as this one, and the page's modules need nothing that a browser lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.citizen.conftest import HERE, served_form

from abaton.study import load_study

BLOCKED = (
    "numpy",
    "sqlalchemy",
    "cryptography",
    "zstandard",
    "orjson",
    "immutables",
    "polars",
    "torch",
    "httpx",
)
_SMALL = 20_000


def test_the_pages_modules_need_none_of_the_parts_that_a_browser_lacks(study):
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from abaton.citizen.browser_api import Phone
phone = Phone()
phone.open_study({served_form(study)!r}, {study.hash!r}, "2026-11-17")
print(phone.pick(b'{{"resourceType":"Patient","id":"7","birthDate":"1980-02-03"}}'))
phone.prepare(bytes(range(32)), "2026-11-17")
print(phone.content().decode(), sorted(m for m in {BLOCKED!r} if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"birthDate":"1980"' in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_a_study_with_learning_is_read_without_what_trains():
    study = load_study(HERE.parents[1] / "examples" / "heart" / "study.toml")
    assert study.learning is not None
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r} or name in ("abaton.controller", "abaton.codecs", "abaton.learners"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from abaton.citizen.browser_api import Phone
Phone().open_study({served_form(study)!r}, {study.hash!r}, "2026-11-17")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def documents(shared: Path) -> dict[str, Path]:
    """Every FHIR document of the shared data that stands in a file of its own."""
    root = shared / "data" / "fhir"
    found = [path for path in sorted(root.rglob("*.json")) if "kanon" not in path.parts]
    return {str(path.relative_to(root)): path for path in found if path.name != "r4-elements.json"}


@pytest.mark.slow
@pytest.mark.shared
def test_every_document_under_every_setting_is_the_same_to_the_byte(shared, browser_python):
    """Small documents meet every setting; each larger one meets some, and every setting meets larger ones."""
    from tests.citizen import fingerprints

    files = documents(shared)
    assert len(files) > 700
    raw = {name: path.read_bytes() for name, path in files.items()}
    large = [name for name in raw if len(raw[name]) > _SMALL]
    names = list(fingerprints.SETTINGS)
    skipped = [
        [setting, name]
        for i, name in enumerate(large)
        for j, setting in enumerate(names)
        if (i + j) % 4 and len(raw[name]) > _SMALL
    ]
    ours = fingerprints.fingerprints(raw, {tuple(pair) for pair in skipped})
    call = (
        "job = json.loads(job)\n"
        "raw = {name: open(f'/files/{i}', 'rb').read() for i, name in enumerate(job['names'])}\n"
        "json.dumps(fingerprints(raw, {tuple(pair) for pair in job['skipped']}))"
    )
    theirs = browser_python(call, list(files.values()), names=list(files), skipped=skipped)
    assert len(ours) > 10_000
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.slow
@pytest.mark.shared
def test_lines_of_a_bulk_export_are_the_same_to_the_byte(shared, browser_python, tmp_path):
    from tests.citizen import fingerprints

    raw = {}
    for path in sorted((shared / "data" / "fhir" / "bulk-ndjson").glob("*.ndjson")):
        with path.open("rb") as lines:
            raw |= {f"{path.name} {i}": line for i, line in zip(range(3), lines, strict=False)}
    for i, line in enumerate(raw.values()):
        (tmp_path / str(i)).write_bytes(line)
    call = (
        "job = json.loads(job)\n"
        "raw = {name: open(f'/files/{i}', 'rb').read() for i, name in enumerate(job['names'])}\n"
        "json.dumps(fingerprints(raw))"
    )
    files = [tmp_path / str(i) for i in range(len(raw))]
    assert browser_python(call, files, names=list(raw)) == fingerprints.fingerprints(raw)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("which", ["own", "learning"])
def test_all_that_the_page_is_told_is_the_same(shared, browser_python, study, which, tmp_path):
    from tests.citizen import fingerprints

    chosen = study if which == "own" else load_study(HERE.parents[1] / "examples" / "heart" / "study.toml")
    record = sorted((shared / "data" / "fhir" / "synthea-bundles").rglob("*.json"))[0]
    call = "job = json.loads(job)\njson.dumps(page(job['study'], job['document'], open('/files/0', 'rb').read()))"
    told = {"study": served_form(chosen), "document": chosen.hash}
    theirs = browser_python(call, [record], **told)
    assert theirs == fingerprints.page(told["study"], told["document"], record.read_bytes())


def test_the_pages_parts_are_those_of_the_lock():
    import abaton.citizen

    lock = dict(
        line.strip().lower().replace("_", "-").split("==")
        for line in (HERE.parents[1] / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    parts = (Path(abaton.citizen.__file__).parent / "page" / "parts.txt").read_text().splitlines()
    named = [
        line.split()[0].lower().replace("_", "-").split("==") for line in parts if line and line[0] != "#"
    ]
    assert len(named) == 7
    assert {name: version for name, version in named} == {name: lock[name].split()[0] for name, _ in named}


def test_the_list_of_npm_packages_names_no_host():
    import abaton.citizen

    lock = json.loads((Path(abaton.citizen.__file__).parent / "page" / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
