"""The lock, its hashes and the bill of materials say the same, and say it well."""

from __future__ import annotations

import json

import pytest
from tools import lock

pytest.importorskip(
    "cyclonedx", reason="the bill of materials needs cyclonedx-python-lib: make test installs it"
)


def test_the_two_locks_pin_the_same_and_everything_has_its_hashes():
    assert lock.differences() == []
    assert sorted(lock.BY_VERSION) == ["torch"]
    text = lock.HASHES.read_text()
    assert "https://" not in text
    for block in text.split("\n#")[-1].split("\n")[1:]:
        assert block.startswith("    --hash=sha256:") or "==" in block or not block


def test_a_line_that_is_missing_or_of_another_version_is_found(tmp_path, monkeypatch):
    changed = tmp_path / "requirements.hashes"
    text = lock.HASHES.read_text()
    changed.write_text(text.replace("\nfastapi==", "\nfastapi-other=="))
    monkeypatch.setattr(lock, "HASHES", changed)
    assert [each.partition("==")[0] for each in lock.differences()] == ["fastapi", "fastapi-other"]
    assert lock.main([]) == 1


def test_a_package_of_another_version_than_the_lock_names_is_found(tmp_path, monkeypatch):
    changed = tmp_path / "requirements.lock"
    changed.write_text("pytest==0.0.1\nnot-installed==1\n")
    monkeypatch.setattr(lock, "LOCK", changed)
    assert [each.split(" ")[0] for each in lock.strays()] == ["pytest"]


def test_the_bill_of_materials_is_valid_complete_and_the_same_each_time():
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from tools.sbom import bill

    made = bill()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made) is None
    assert made == bill()
    read = json.loads(made)
    assert {each["name"]: each["version"] for each in read["components"]} == lock.pinned(lock.LOCK)
    assert read["metadata"]["component"]["name"] == "abaton"
    named = {each["name"]: each for each in read["components"]}
    assert named["fastapi"]["scope"] == "optional"
    assert "scope" not in named["numpy"]
    assert all("externalReferences" in each for name, each in named.items() if name != "torch")
    (root,) = [each for each in read["dependencies"] if each["ref"].startswith("pkg:pypi/abaton@")]
    assert "pkg:pypi/numpy@" + named["numpy"]["version"] in root["dependsOn"]
    assert (
        JsonStrictValidator(SchemaVersion.V1_6).validate_str(made.replace('"library"', '"toy"')) is not None
    )
