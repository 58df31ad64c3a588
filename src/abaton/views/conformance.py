"""Official conformance suite of SQL on FHIR, and the report in its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from abaton.errors import AbatonError, SettingsError
from abaton.views.definition import ViewDefinition


def conformance_report(folder: Path) -> dict[str, Any]:
    """Run the SQL on FHIR conformance files of a folder; return results as the official test report does."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SettingsError(
            "the folder contains no conformance files",
            where=str(folder),
            remedy="pass the folder of the test suite",
        )
    return {file.name: {"tests": _results(json.loads(file.read_text("utf-8")))} for file in files}


def _results(content: dict[str, Any]) -> list[dict[str, Any]]:
    results = []
    for test in content["tests"]:
        passed = _passes(test, content["resources"])
        results.append({"name": test["title"], "result": {"passed": passed}})
    return results


def _passes(test: dict[str, Any], resources: list[dict[str, Any]]) -> bool:
    try:
        view = ViewDefinition.load(test["view"])
        rows = list(view.table(resources))
    except AbatonError:
        return bool(test.get("expectError"))
    if test.get("expectError"):
        return False
    columns = [column.name for column in view.columns]
    return _is_equal_table(rows, test["expect"]) and columns == test.get("expectColumns", columns)


def _is_equal_table(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Return whether a conformance test has the expected table, in any row order; 1.0 equals 1, true does not."""
    tables = [
        sorted(json.dumps(_normalise_numbers(row), sort_keys=True) for row in table)
        for table in (rows, expected)
    ]
    return tables[0] == tables[1]


def _normalise_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normalise_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normalise_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
