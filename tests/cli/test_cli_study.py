"""``abaton study``: results on stdout, errors on stderr, exit codes, complete files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from abaton.cli import main
from abaton.study import load_study


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run the command line in this process."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["abaton", "study", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def study(tmp_path: Path, run) -> Path:
    file = tmp_path / "study.toml"
    assert run("new", file, "--id", "s-1").returncode == 0
    return file


def test_new_passes_check_and_refuses_to_overwrite(run, study: Path):
    result = run("check", study)
    assert (result.returncode, result.stderr) == (0, "")
    assert load_study(study).hash in result.stdout
    before = study.read_bytes()
    again = run("new", study)
    assert again.returncode == 2
    assert study.read_bytes() == before


def test_check_lists_every_problem(run, study: Path):
    study.write_text(study.read_text().replace("title =", "titel =").replace("low = 18", "low = 'x'"))
    result = run("check", study)
    assert result.returncode == 2
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{study}:") for line in lines)
    assert result.stderr == "3 problems\n"
    output = json.loads(run("check", study, "--json").stdout)
    assert output["ok"] is False
    assert {problem["key"] for problem in output["problems"]} == {
        "study.title",
        "study.titel",
        "eligibility.criteria[0].low",
    }
    assert all(problem["line"] for problem in output["problems"])


def test_show(run, study: Path):
    text = run("show", study).stdout
    document = load_study(study)
    assert document.hash in text
    assert "age at least 18 at most 89" in text
    data = json.loads(run("show", study, "--json").stdout)
    assert data["hash"] == document.hash
    assert data["study"]["id"] == "s-1"


def test_export_there_and_back(run, study: Path, tmp_path: Path):
    bundle, back = tmp_path / "study.json", tmp_path / "back.toml"
    assert run("export", study, "-o", bundle).returncode == 0
    assert run("export", bundle, "-o", back).returncode == 0
    assert load_study(study) == load_study(bundle) == load_study(back)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.toml", "study.json", "study.toml"]


@pytest.mark.parametrize("out", ["study.xml", "nowhere/study.json", "study.toml"])
def test_export_refuses_and_leaves_nothing(run, study: Path, tmp_path: Path, out: str):
    result = run("export", study, "-o", tmp_path / out)
    assert result.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


def test_a_broken_study_is_one_line_and_exit_code_2(run, tmp_path: Path):
    file = tmp_path / "broken.json"
    file.write_text('{"resourceType": "Bundle",\n "id": }')
    done = run("show", file)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{file}:2:8" in done.stderr
