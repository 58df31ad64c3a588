"""A type checker refuses to build features from raw records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
from abaton.record_types import ConsentedRecord, DeidentifiedRecord, Record
from abaton.features import FeatureTable, ResolvedFeatureSpec, ScaledTable, build_features

def ok(spec: ResolvedFeatureSpec, records: list[DeidentifiedRecord]) -> None:
    build_features(spec, records)

def raw(spec: ResolvedFeatureSpec, records: list[Record]) -> None:
    build_features(spec, records)

def consented(spec: ResolvedFeatureSpec, records: list[ConsentedRecord]) -> None:
    build_features(spec, records)

def unscaled(spec: ResolvedFeatureSpec, table: FeatureTable) -> ScaledTable:
    return table
"""


@pytest.mark.slow
def test_mypy_refuses_records_that_are_not_deidentified(tmp_path):
    file = tmp_path / "stages.py"
    file.write_text(CODE)
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(str(file)) and ": error:" in line]
    assert len(lines) == 3, done.stdout + done.stderr
    assert 'list[Record]"; expected "Iterable[DeidentifiedRecord]' in lines[0]
    assert 'list[ConsentedRecord]"; expected "Iterable[DeidentifiedRecord]' in lines[1]
    assert 'got "FeatureTable", expected "ScaledTable"' in lines[2]
