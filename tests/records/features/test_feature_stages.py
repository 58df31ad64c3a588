"""The type says how far a record has come: a type checker refuses features of raw records."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
from abaton.records import Consented, Deidentified, Record
from abaton.records.features import Plan, Scaled, Table, featurise, scaled, statistics

def ok(plan: Plan, records: list[Deidentified]) -> None:
    featurise(plan, records)

def raw(plan: Plan, records: list[Record]) -> None:
    featurise(plan, records)

def consented(plan: Plan, records: list[Consented]) -> None:
    featurise(plan, records)

def unscaled(plan: Plan, table: Table) -> Scaled:
    return table
"""


@pytest.mark.slow
def test_mypy_refuses_to_featurise_what_is_not_deidentified(monkeypatch, tmp_path):
    from mypy import api

    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    cache = ROOT / ".mypy_cache"
    out, _, code = api.run(["--strict", "--cache-dir", str(cache), "--follow-imports=silent", "-c", CODE])
    assert code == 1, out
    lines = [line for line in out.splitlines() if "error" in line]
    assert len(lines) == 3, out
    assert 'list[Record]"; expected "Iterable[Deidentified]' in lines[0]
    assert 'list[Consented]"; expected "Iterable[Deidentified]' in lines[1]
    assert "Scaled" in lines[2]
