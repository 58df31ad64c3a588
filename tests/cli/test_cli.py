from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def abaton(tmp_path):
    """Run the command as a user does, in its own process and store."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from abaton.cli import main; main()", *words]
        known = {**os.environ, "ABATON_STORE": str(tmp_path / "store"), "NO_COLOR": "1", **environment}
        return subprocess.run(command, env=known, capture_output=True, text=True, check=False)

    return run


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_a_run_can_be_shown_again(abaton, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = abaton("lab", "clinics", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["status"] == "finished"
    assert [row["model"] for row in made["comparison"]][-2:] == ["community", "all data in one pile"]
    shown = json.loads(abaton("show", made["run"][:10], "--json").stdout)
    assert shown["digest"] == made["digest"] == shown["models"][-1]["digest"]
    assert len(shown["models"]) == 6
    assert json.loads(abaton("runs", "--json").stdout)[0]["run"] == made["run"]
    table = abaton("show", made["run"])
    assert made["digest"][:12] in table.stdout
    assert "finished" in table.stderr
    again = json.loads(abaton("lab", "clinics", "--quick", "--json").stdout)
    other = json.loads(abaton("lab", "clinics", "--quick", "--seed", "7", "--json").stdout)
    assert again["digest"] == made["digest"] != other["digest"]
    assert "finished already" in abaton("resume", made["run"]).stderr
    side_by_side(abaton, made, other)


def side_by_side(abaton, one, other):
    """The report of each run, and both compared, as page, table and data."""
    done = abaton("report", one["run"], "-o", "report.html", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["kind"], told["reproduce"]["model"]) == ("lab", one["digest"])
    assert one["digest"] in Path("report.html").read_text()
    words = ("compare", one["run"], other["run"])
    told = json.loads(abaton(*words, "--json", "-o", "compare.html").stdout)
    assert [line["setting"] for line in told["differences"]] == ["seed"]
    assert f"{told['results'][0]['measure']:.4f}" in Path("compare.html").read_text()
    table = abaton("compare", "clinics-*", "--measure", "loss").stdout
    assert table.index("differ") < table.index("by loss")
    done = abaton("compare", one["run"])
    assert done.returncode == 2
    assert "at least two" in one_line(done)


def test_version_and_help_teach(abaton):
    assert abaton("version").stdout.startswith("abaton 0.")
    assert json.loads(abaton("version", "--json").stdout)["abaton"]
    top = abaton("--help").stdout
    assert all(
        command in top for command in ("demo", "run", "report", "runs", "show", "resume", "bench", "version")
    )
    assert "four invented hospitals" in abaton("demo", "--help").stdout.lower()


def test_an_unknown_run_is_one_line_and_exit_2(abaton):
    done = abaton("show", "nobody")
    assert done.returncode == 2
    assert "abaton runs" in one_line(done)
    assert abaton("resume", "nobody").returncode == 2
    assert abaton("bench", "nothing").returncode == 2


def test_a_damaged_store_is_one_line_and_exit_1(abaton, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "abaton.db").write_bytes(b"\0\1garbage" * 1000)
    for words in (["runs"], ["show", "x"], ["demo", "--quick"], ["resume", "x"]):
        done = abaton(*words)
        assert done.returncode == 1
        assert "damaged" in one_line(done)


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_1(abaton, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = abaton("demo", "--quick", ABATON_STORE=str(tmp_path / "file" / "store"))
    assert done.returncode == 1
    assert "--store" in one_line(done)


def test_an_unusable_argument_is_exit_2(abaton):
    assert abaton("demo", "--seed", "-1").returncode == 2
    assert abaton("nonsense").returncode == 2
