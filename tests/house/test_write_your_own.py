"""Check the plugins of docs/write-your-own.md: short, typed, and the same under every engine."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "write-your-own.md").read_text()
PROGRAM = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
PRINTED = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.S))
KINDS = {"Model", "Scheduler", "Weighting", "RobustAggregator", "ServerOptimiser", "Codec"}


def printed(folder: Path, engine: str) -> str:
    given, requested = 'ENGINE = "virtual"', f'ENGINE = "{engine}"'
    assert PROGRAM.count(given) == 1
    script = folder / "own.py"
    script.write_text(PROGRAM.replace(given, requested))
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ABATON_STORE": str(folder / "store")}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    # Ray prints lines of its own.
    return "".join(line for line in ended.stdout.splitlines(keepends=True) if ": accuracy " in line)


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_the_page_prints_what_it_says(tmp_path, engine):
    assert printed(tmp_path, engine) == PRINTED


@pytest.mark.network
@pytest.mark.slow
def test_the_page_prints_the_same_on_ray(tmp_path):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    assert printed(tmp_path, "ray") == PRINTED


def test_the_page_has_one_plugin_of_each_kind_in_at_most_thirty_lines():
    classes = [node for node in ast.parse(PROGRAM).body if isinstance(node, ast.ClassDef)]
    assert {base.id for node in classes for base in node.bases if isinstance(base, ast.Name)} == KINDS
    assert len(PRINTED.splitlines()) == len(classes) == len(KINDS)
    for node in classes:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        assert node.end_lineno - first < 30, node.name


@pytest.mark.slow
def test_the_page_passes_a_strict_type_checker(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(script),
    ]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
