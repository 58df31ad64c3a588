"""The official conformance files of SQL on FHIR, run, and the report its test runner asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abaton.errors import AbatonError, SettingsError
from abaton.views.definition import View


def report(folder: Path) -> dict[str, Any]:
    """Run every conformance file of a folder.

    Returns:
        For every file the tests' names and whether each passed, in the form of the official test report.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SettingsError("there are no conformance files", where=str(folder), remedy="give their folder")
    return {file.name: {"tests": _results(json.loads(file.read_text("utf-8")))} for file in files}


def _results(content: dict[str, Any]) -> list[dict[str, Any]]:
    made = []
    for test in content["tests"]:
        passed = _passes(test, content["resources"])
        made.append({"name": test["title"], "result": {"passed": passed}})
    return made


def _passes(test: dict[str, Any], resources: list[dict[str, Any]]) -> bool:
    try:
        view = View.load(test["view"])
        rows = list(view.table(resources))
    except AbatonError:
        return bool(test.get("expectError"))
    if test.get("expectError"):
        return False
    columns = [column.name for column in view.columns]
    return _alike(rows, test["expect"]) and columns == test.get("expectColumns", columns)


def _alike(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Equal as bags of rows: the standard leaves the order of rows open. True is not 1, but 1.0 is."""
    written = [
        sorted(json.dumps(_numbers(row), sort_keys=True) for row in table) for table in (rows, expected)
    ]
    return written[0] == written[1]


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
