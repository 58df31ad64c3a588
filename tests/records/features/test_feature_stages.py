"""The type says how far a record has come: a type checker refuses features of raw records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
from abaton.records import Consented, Deidentified, Record
from abaton.features import Plan, Scaled, Table, featurise, scaled, statistics

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
def test_mypy_refuses_to_featurise_what_is_not_deidentified(tmp_path):
    file = tmp_path / "stages.py"
    file.write_text(CODE)
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(file)) and ": error:" in line]
    assert len(lines) == 3, done.stdout + done.stderr
    assert 'list[Record]"; expected "Iterable[Deidentified]' in lines[0]
    assert 'list[Consented]"; expected "Iterable[Deidentified]' in lines[1]
    assert 'got "Table", expected "Scaled"' in lines[2]
