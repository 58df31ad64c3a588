"""``abaton records view``: tables from files, Bundles and NDJSON; refusals leave nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from abaton.cli import main

VIEW = {
    "resource": "Patient",
    "name": "ids",
    "select": [{"column": [{"name": "id", "path": "id", "type": "id"}]}],
}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path: Path):
    (tmp_path / "view.json").write_text(json.dumps(VIEW))

    def call(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["abaton", "records", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return call


def test_a_table_from_lines_and_bundles(run, tmp_path: Path):
    patients = [{"resourceType": "Patient", "id": f"p{i}"} for i in range(3)]
    (tmp_path / "a.ndjson").write_text("\n".join(map(json.dumps, [*patients, {"resourceType": "Group"}])))
    bundle = {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient", "id": "b"}}, {}]}
    (tmp_path / "b.json").write_text(json.dumps(bundle))
    out = tmp_path / "t.csv"
    code, text, _ = run(
        "view", tmp_path / "view.json", tmp_path / "a.ndjson", tmp_path / "b.json", "-o", out, "--json"
    )
    assert code == 0
    assert json.loads(text) == {"read": 5, "matched": 4, "rows": 4, "columns": 1, "out": str(out)}
    assert out.read_text() == "id\np0\np1\np2\nb\n"


@pytest.mark.parametrize("content", ['{"resourceType": "Patient"}\n{"resourceType": ', '{"a": 1, "a": 2}'])
def test_half_written_records_are_refused_and_leave_nothing(run, tmp_path: Path, content: str):
    (tmp_path / "a.ndjson").write_text(content)
    code, text, error = run(
        "view", tmp_path / "view.json", tmp_path / "a.ndjson", "-o", tmp_path / "t.parquet"
    )
    assert (code, text) == (3, "")
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ndjson", "view.json"]


def test_a_wrong_view_is_a_usage_error(run, tmp_path: Path):
    (tmp_path / "view.json").write_text('{"resource": "Patient", "select": [{"forEach": "@@"}]}')
    (tmp_path / "a.ndjson").write_text('{"resourceType": "Patient"}')
    for view in ("view.json", "none.json"):
        code, _, error = run("view", tmp_path / view, tmp_path / "a.ndjson", "-o", tmp_path / "t.csv")
        assert code == 2
        assert error.startswith("abaton: ")


@pytest.mark.shared
def test_conformance_report(run, tmp_path: Path, shared: Path):
    code, _, error = run("conformance", shared / "data/sql-on-fhir", "-o", tmp_path / "report.json")
    assert code == 0
    assert error.endswith("tests passed\n")
    assert json.loads((tmp_path / "report.json").read_text())["basic.json"]["tests"][0]["result"] == {
        "passed": True
    }
