"""The official conformance files: all of them pass, and the report has the form its test runner reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from abaton.errors import SettingsError
from abaton.views import conformance_report


@pytest.mark.shared
def test_every_conformance_test_passes(shared: Path):
    report_rows = conformance_report(shared / "data/sql-on-fhir")
    tests = [(file, test) for file in report_rows for test in report_rows[file]["tests"]]
    failed = [f"{file}: {test['name']}" for file, test in tests if not test["result"]["passed"]]
    assert failed == []
    assert len(tests) >= 90


def test_the_report_shows_failures_and_unexpected_successes(tmp_path: Path):
    view = {"resource": "Patient", "select": [{"column": [{"name": "a", "path": "active"}]}]}
    tests = [
        {"title": "right", "view": view, "expect": [{"a": True}]},
        {"title": "one is not true", "view": view, "expect": [{"a": 1}]},
        {"title": "no error", "view": view, "expectError": True},
        {"title": "error", "view": {}, "expect": []},
        {"title": "other columns", "view": view, "expect": [{"a": True}], "expectColumns": ["b"]},
    ]
    content = {"resources": [{"resourceType": "Patient", "active": True}], "tests": tests}
    (tmp_path / "own.json").write_text(json.dumps(content))
    report_rows = conformance_report(tmp_path)
    assert [test["result"]["passed"] for test in report_rows["own.json"]["tests"]] == [
        True,
        False,
        False,
        False,
        False,
    ]
    with pytest.raises(SettingsError):
        conformance_report(tmp_path / "empty")
