"""Commands on runs: output and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests import cli_runner as typed
from tests.lab import four_sites as four

from abaton.store import RunRow, Store


@pytest.fixture
def abaton(tmp_path):
    """Run a command with the store of the test."""
    return partial(typed.abaton, **{"ABATON_STORE": str(tmp_path / "store")})


def run_process(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    command = [sys.executable, "-c", "from abaton.cli import main; main()", *arguments]
    known = {**os.environ, "ABATON_STORE": str(tmp_path / "store"), "NO_COLOR": "1", **environment}
    return subprocess.run(command, env=known, capture_output=True, text=True, check=False)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_a_run_can_be_shown_again(abaton, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "store") as store:
        original, second, other = (
            four.federation(seed=1, rounds=rounds, scale=0.3).run(store=store).row for rounds in (5, 5, 7)
        )
    shown = json.loads(abaton("show", "#1", "--json").stdout)
    assert (shown["run"], shown["number"], shown["status"]) == (original.run, 1, "finished")
    assert shown["digest"] == original.result["digest"] == shown["models"][-1]["digest"]
    assert len(shown["models"]) == 6
    assert original.result["digest"] == second.result["digest"] != other.result["digest"]
    listed = json.loads(abaton("runs", "--json").stdout)
    assert [(row["number"], row["run"]) for row in listed] == [
        (1, original.run),
        (2, second.run),
        (3, other.run),
    ]
    table = abaton("show", "latest")
    first = table.stdout.splitlines()[0]
    assert first == f"{other.run} (#3): finished, auroc {listed[2]['metrics']['auroc']:.3f}"
    assert other.result["digest"][:12] in table.stdout
    assert "finished already" in abaton("resume", original.run).stderr
    done = abaton("show", "four")
    assert done.returncode == 2
    assert f"{original.run} (#1), {second.run} (#2), {other.run} (#3)" in one_line(done)
    side_by_side(abaton, shown, {"run": other.run})


def side_by_side(abaton, one, other):
    """Check the report of each run and the comparison, as page, table and JSON."""
    done = abaton("report", one["run"], "-o", "report.html", "--json")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert (comparison["kind"], comparison["provenance"]["model"]) == ("lab", one["digest"])
    assert one["digest"] in Path("report.html").read_text()
    arguments = ("compare", one["run"], other["run"])
    comparison = json.loads(abaton(*arguments, "--json", "-o", "compare.html").stdout)
    assert [line["setting"] for line in comparison["differences"]] == ["rounds"]
    assert f"{comparison['results'][0]['value']:.4f}" in Path("compare.html").read_text()
    table = abaton("compare", "four-*", "--metric", "loss").stdout
    assert table.index("differ") < table.index("by loss")
    done = abaton("compare", one["run"])
    assert done.returncode == 2
    assert "at least two" in one_line(done)


def test_version_and_help_teach(abaton, tmp_path):
    assert run_process(tmp_path, "--version").stdout == abaton("--version").stdout
    assert abaton("--version").stdout.startswith("abaton 0.")
    assert abaton("-h").stdout == abaton("--help").stdout
    assert "six synthetic hospitals" in abaton("demo", "--help").stdout.lower()


def test_an_unknown_run_is_one_line_and_exit_2(abaton, tmp_path):
    Store(tmp_path / "store").close()
    done = abaton("show", "missing")
    assert done.returncode == 2
    assert "abaton runs" in one_line(done)
    assert abaton("resume", "missing").returncode == 2
    assert abaton("bench", "nothing").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"], ["show", "x"], ["resume", "x"], ["report", "x", "-o", "r.html"], ["compare", "x", "y"], ["prune"],
        ["dashboard", "--port", "0"], ["codec", "advise", "x"], ["keys", "invite", "kos"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_reading_command_creates_no_store_for_a_mistyped_name(abaton, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    done = abaton(*arguments, "--store", "stoer")
    assert done.returncode == 2
    assert "stoer" in one_line(done)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["withdrawals"], ["audit", "verify"], ["keys", "list"], ["retention"], ["keys", "unregister", "x"]],
    ids=lambda arguments: arguments[-1],
)  # fmt: skip
def test_a_reading_command_creates_no_database_for_a_mistyped_name(abaton, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    done = abaton(*arguments, "--database", "governence.db")
    assert done.returncode == 2
    assert "the governance database does not exist (governence.db)" in one_line(done)
    assert list(tmp_path.iterdir()) == []


def test_shells_complete_the_names_of_runs(tmp_path):
    with Store(tmp_path / "store") as store:
        for name in ("heart-1", "heart-2", "lungs"):
            store.add_run(RunRow(name, f"2026-01-01T00:00:0{name[-1]}", "virtual", {}, "x", "finished", None))
    shell = {"_ABATON_COMPLETE": "complete_bash", "COMP_WORDS": "abaton show heart", "COMP_CWORD": "2"}
    assert run_process(tmp_path, **shell).stdout.split() == ["heart-2", "heart-1"]
    shell |= {"COMP_WORDS": "abaton resume l"}
    assert run_process(tmp_path, **shell).stdout.split() == ["lungs", "latest"]


WRONG_USES = {
    "shwo": "did you mean 'show'?",
    "version": "did you mean '--version'?",
    "check": "did you mean 'abaton study check' or 'abaton site check' or 'abaton citizen check'?",
    "runs --stor x": "did you mean '--store'",
    "study chek s.toml": "did you mean 'check'?",
    "show": "Missing argument 'RUN'",
}


@pytest.mark.parametrize("line", WRONG_USES, ids=[line.replace(" ", "_") for line in WRONG_USES])
def test_a_wrong_command_is_one_line_with_the_closest_match(abaton, line):
    done = abaton(*line.split())
    assert done.returncode == 2
    assert WRONG_USES[line] in one_line(done)
    assert "-h' lists what is available" in done.stderr


def test_a_damaged_store_is_one_line_and_exit_1(abaton, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "abaton.db").write_bytes(b"\0\1garbage" * 1000)
    for arguments in (["runs"], ["show", "x"], ["demo", "--small"], ["resume", "x"]):
        done = abaton(*arguments)
        assert done.returncode == 1
        assert "damaged" in one_line(done)


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_1(abaton, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = abaton("demo", "--small", ABATON_STORE=str(tmp_path / "file" / "store"))
    assert done.returncode == 1
    assert "--store" in one_line(done)


def test_an_invalid_argument_is_exit_2(abaton):
    assert abaton("demo", "--seed", "-1").returncode == 2
    assert abaton("nonsense").returncode == 2
