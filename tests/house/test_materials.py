"""Check that the lock, its hashes and the bill of materials agree."""

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


def test_a_missing_or_different_pin_is_reported(tmp_path, monkeypatch):
    changed = tmp_path / "requirements.hashes"
    text = lock.HASHES.read_text()
    changed.write_text(text.replace("\nfastapi==", "\nfastapi-other=="))
    monkeypatch.setattr(lock, "HASHES", changed)
    assert [difference.partition("==")[0] for difference in lock.differences()] == [
        "fastapi",
        "fastapi-other",
    ]
    assert lock.main([]) == 1


def test_a_package_of_another_version_than_the_lock_names_is_found(tmp_path, monkeypatch):
    changed = tmp_path / "requirements.lock"
    changed.write_text("pytest==0.0.1\nnot-installed==1\n")
    monkeypatch.setattr(lock, "LOCK", changed)
    assert [stray.split(" ")[0] for stray in lock.strays()] == ["pytest"]


def test_the_bill_of_materials_is_valid_complete_and_the_same_each_time():
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from tools.sbom import bill

    document = bill()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    assert document == bill()
    read = json.loads(document)
    assert {component["name"]: component["version"] for component in read["components"]} == lock.pinned(
        lock.LOCK
    )
    assert read["metadata"]["component"]["name"] == "abaton"
    named = {component["name"]: component for component in read["components"]}
    assert named["fastapi"]["scope"] == "optional"
    assert "scope" not in named["numpy"]
    assert all("externalReferences" in component for name, component in named.items() if name != "torch")
    (root,) = [
        component for component in read["dependencies"] if component["ref"].startswith("pkg:pypi/abaton@")
    ]
    assert "pkg:pypi/numpy@" + named["numpy"]["version"] in root["dependsOn"]
    assert (
        JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.replace('"library"', '"toy"'))
        is not None
    )
