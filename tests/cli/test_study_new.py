"""``abaton study new`` as a person meets it: questions in a terminal, codes by name, a document that passes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.cli.study_wizard import asked_study
from abaton.features import Kind, Outcome
from abaton.study import load_study, notes_on
from abaton.study.template import starter

TYPED = [
    ("Title", "Kidneys after a check-up"),
    ("Question in one sentence", "Who loses kidney function?"),
    ("Purpose", "curiosity"),  # not one of them: it is asked again
    ("Purpose", "prevention"),
    ("Country", "gr"),
    ("Research centre", ""),
    ("Its e-mail", "kidney@centre.example"),
    ("Youngest age", "40"),
    ("Only people with which condition", "hypertension"),
    ("This one?", "y"),
    ("Is age an input?", "y"),
    ("Is sex an input?", "y"),
    ("Input (empty", "xyzzy"),  # nothing is called so
    ("Input (empty", "systolic"),
    ("This one?", ""),
    ("Input (empty", "glucose"),
    ("Which (0: none)", "2"),
    ("Input (empty", "smoking"),
    ("This one?", "y"),
    ("Input (empty", "loinc 14959-1 mg/g"),
    ("Its name", "albumin_ratio"),
    ("Input (empty", ""),
    ("What is learned", "kidney disease"),
    ("This one?", "y"),
    ("Within which time", "2 years"),
    ("Within which time", "P2Y"),
    ("Counted from which visit", "check-up"),
    ("This one?", "y"),
]
ANSWERS = "\n".join(answer for _, answer in TYPED) + "\n"


def run(*words: object) -> object:
    return CliRunner().invoke(app, [*map(str, words)])


def the_study_that_was_told(file: Path) -> None:
    study = load_study(file)
    assert study.study.title == "Kidneys after a check-up"
    assert (study.study.purpose.value, study.study.regions[0].code) == ("prevention", "GR")
    inputs = {each.name: each for each in study.features.inputs}
    assert list(inputs) == ["age", "sex", "systolic", "fasting_glucose", "smoking", "albumin_ratio"]
    assert (inputs["albumin_ratio"].kind, inputs["albumin_ratio"].unit) == (Kind.NUMBER, "mg/g")
    assert [each.name for each in inputs["smoking"].categories] == ["daily", "former", "never"]
    label = study.features.label
    assert (label.name, label.kind, label.window) == ("kidney_disease", Outcome.EVENT, "P2Y")
    assert (label.follow_up.view, study.features.index.view) == ("visits", "visits")
    done = run("study", "check", file)
    assert done.exit_code == 0
    assert f"hash {study.hash}" in done.output


def test_what_is_asked_and_answered_becomes_a_study_that_passes(tmp_path):
    asking, told = typer.Typer(), []
    asking.command()(lambda: told.append(asked_study()))
    done = CliRunner().invoke(asking, [], input=ANSWERS)
    assert done.exit_code == 0, done.output
    file = tmp_path / "study.toml"
    file.write_text(starter("study.toml", date(2026, 11, 16), told[0]))
    the_study_that_was_told(file)
    assert notes_on(load_study(file), date(2026, 11, 17)) == []
    assert len(file.read_text().splitlines()) < 80


def heard(terminal: int, words: str, timeout: float = 60) -> str:
    """What a terminal shows, until it shows certain words."""
    shown = ""
    while words not in shown:
        ready, _, _ = select.select([terminal], [], [], timeout)
        assert ready, f"never asked {words!r}: {shown[-300:]!r}"
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other side has gone
            part = b""
        assert part, f"ended before {words!r}: {shown[-500:]!r}"
        shown += part.decode()
    return shown


def test_in_a_real_terminal(tmp_path):
    file = tmp_path / "study.toml"
    terminal, inner = pty.openpty()
    words = [sys.executable, "-c", "from abaton.cli import main; main()", "study", "new", str(file)]
    program = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    for question, answer in TYPED:
        heard(terminal, question)
        os.write(terminal, f"{answer}\n".encode())
    shown = heard(terminal, "abaton study check")
    assert "Kidneys" not in shown
    assert program.wait(60) == 0
    os.close(terminal)
    the_study_that_was_told(file)


def test_without_a_terminal_and_from_the_example_nothing_is_asked(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    assert run("study", "new", one).exit_code == 0
    assert run("study", "new", two, "--from", "example").exit_code == 0
    assert load_study(one).hash == load_study(two).hash
    assert run("study", "new", tmp_path / "three.toml", "--from", "scratch").exit_code != 0
    assert not (tmp_path / "three.toml").exists()


def test_expand_writes_the_long_form_with_the_same_hash(tmp_path):
    short, long = tmp_path / "study.toml", tmp_path / "long.toml"
    run("study", "new", short)
    assert run("study", "expand", short, "--out", long).exit_code == 0
    assert run("study", "expand", short).output == long.read_text()
    assert "[[views]]" in long.read_text()
    assert load_study(long).hash == load_study(short).hash
    assert run("study", "expand", short, "--out", short).exit_code != 0
    assert "[inputs]" in short.read_text()


@pytest.mark.parametrize("as_json", [False, True])
def test_check_explains_what_is_derived(tmp_path, as_json):
    file = tmp_path / "study.toml"
    run("study", "new", file)
    done = run("study", "check", file, *(["--json"] if as_json else []))
    number = next(i for i, line in enumerate(file.read_text().splitlines(), 1) if line.startswith("systolic"))
    if as_json:
        found = [each for each in json.loads(done.output)["derived"] if each["line"] == number]
        assert {each["key"] for each in found} == {"inputs.systolic"}
        assert any("input systolic: number in mm[Hg]" in each["words"] for each in found)
    else:
        assert f"{file}:{number}: inputs.systolic: input systolic: number in mm[Hg]" in done.output
