"""Pyodide gives the same bytes as CPython, and the page's modules need nothing that a browser lacks."""

from __future__ import annotations

import json
import re
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


def test_the_pages_modules_need_no_package_that_a_browser_lacks(study):
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from abaton.citizen.browser_api import BrowserApi
api = BrowserApi()
api.open_study({served_form(study)!r}, {study.hash!r}, "2026-11-17")
print(api.add_file(b'{{"resourceType":"Patient","id":"7","birthDate":"1980-02-03"}}'))
api.prepare_records(bytes(range(32)), "2026-11-17")
print(api.content().decode(), sorted(m for m in {BLOCKED!r} if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"birthDate":"1980"' in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_the_bundle_contains_every_module_that_the_page_imports(study):
    import abaton.citizen

    code = f"""
import sys
from abaton.citizen.browser_api import BrowserApi
api = BrowserApi()
api.open_study({served_form(study)!r}, {study.hash!r}, "2026-11-17")
api.add_file(b'{{"resourceType":"Patient","id":"7","birthDate":"1980-02-03"}}')
api.check_eligibility("2026-11-17")
api.prepare_records(bytes(range(32)), "2026-11-17")
api.consents("A" * 26, "2026-11-17T09:00:00.000Z")
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "abaton"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = Path(abaton.__file__).parent
    script = (package / "citizen" / "page" / "build.mjs").read_text()
    listed = re.findall(r'"([^"]+)"', script.partition("PYTHON_SOURCES = [")[2].partition("];")[0])
    assert all((package / name).exists() for name in listed)
    imported = {str(Path(file).relative_to(package)) for file in done.stdout.split()}
    covered = {name for name in imported if name in listed or name.split("/")[0] in listed}
    assert imported - covered == set()


def test_a_study_with_learning_is_read_without_training_packages():
    study = load_study(HERE.parents[1] / "examples" / "heart" / "study.toml")
    assert study.learning is not None
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r} or name in ("abaton.controller", "abaton.codecs", "abaton.learners"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from abaton.citizen.browser_api import BrowserApi
BrowserApi().open_study({served_form(study)!r}, {study.hash!r}, "2026-11-17")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def documents(shared: Path) -> dict[str, Path]:
    """Return all FHIR documents of the shared data that are single files."""
    root = shared / "data" / "fhir"
    paths = [path for path in sorted(root.rglob("*.json")) if "kanon" not in path.parts]
    return {str(path.relative_to(root)): path for path in paths if path.name != "r4-elements.json"}


@pytest.mark.slow
@pytest.mark.shared
def test_every_document_under_every_setting_is_the_same_to_the_byte(shared, browser_python):
    """Small documents are tested under every setting, larger ones under some."""
    from tests.citizen import page_digests as fingerprints

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
    from tests.citizen import page_digests as fingerprints

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
def test_all_results_for_the_page_are_equal(shared, browser_python, study, which, tmp_path):
    from tests.citizen import page_digests as fingerprints

    selected = study if which == "own" else load_study(HERE.parents[1] / "examples" / "heart" / "study.toml")
    record = sorted((shared / "data" / "fhir" / "synthea-bundles").rglob("*.json"))[0]
    call = "job = json.loads(job)\njson.dumps(page(job['study'], job['document'], open('/files/0', 'rb').read()))"
    arguments = {"study": served_form(selected), "document": selected.hash}
    theirs = browser_python(call, [record], **arguments)
    assert theirs == fingerprints.page(arguments["study"], arguments["document"], record.read_bytes())


def test_the_pages_wheels_are_those_of_the_lock():
    import abaton.citizen

    lock = dict(
        line.strip().lower().replace("_", "-").split("==")
        for line in (HERE.parents[1] / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    wheels = (Path(abaton.citizen.__file__).parent / "page" / "wheels.txt").read_text().splitlines()
    named = [
        line.split()[0].lower().replace("_", "-").split("==") for line in wheels if line and line[0] != "#"
    ]
    assert len(named) == 7
    assert {name: version for name, version in named} == {name: lock[name].split()[0] for name, _ in named}


def test_the_list_of_npm_packages_names_no_host():
    import abaton.citizen

    lock = json.loads((Path(abaton.citizen.__file__).parent / "page" / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
