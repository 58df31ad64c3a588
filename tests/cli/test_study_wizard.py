"""``abaton study new``: prompts in a terminal, codes by name, a valid document."""

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
from abaton.cli.study_wizard import prompt_study
from abaton.features import InputKind, LabelKind
from abaton.study import lint_study, load_study
from abaton.study.template import study_template

TYPED = [
    ("Title", "Kidneys after a check-up"),
    ("Question in one sentence", "Who loses kidney function?"),
    ("Purpose", "curiosity"),  # invalid: the prompt is repeated
    ("Purpose", "prevention"),
    ("Country", "gr"),
    ("Research centre", ""),
    ("Its e-mail", "kidney@centre.example"),
    ("Minimum age", "40"),
    ("Condition that patients must have", "hypertension"),
    ("Use this one?", "y"),
    ("Is age an input?", "y"),
    ("Is sex an input?", "y"),
    ("Input (empty", "xyzzy"),  # no match
    ("Input (empty", "systolic"),
    ("Use this one?", ""),
    ("Input (empty", "glucose"),
    ("Which (0: none)", "2"),
    ("Input (empty", "smoking"),
    ("Use this one?", "y"),
    ("Input (empty", "loinc 14959-1 mg/g"),
    ("Name of the input", "albumin_ratio"),
    ("Input (empty", ""),
    ("Outcome (such as", "kidney disease"),
    ("Use this one?", "y"),
    ("Outcome window", "2 years"),
    ("Outcome window", "P2Y"),
    ("Visit at which", "check-up"),
    ("Use this one?", "y"),
]
ANSWERS = "\n".join(answer for _, answer in TYPED) + "\n"


def run(*arguments: object) -> object:
    return CliRunner().invoke(app, [*map(str, arguments)])


def check_study(file: Path) -> None:
    study = load_study(file)
    assert study.study.title == "Kidneys after a check-up"
    assert (study.study.purpose.value, study.study.regions[0].code) == ("prevention", "GR")
    inputs = {feature.name: feature for feature in study.features.inputs}
    assert list(inputs) == ["age", "sex", "systolic", "fasting_glucose", "smoking", "albumin_ratio"]
    assert (inputs["albumin_ratio"].kind, inputs["albumin_ratio"].unit) == (InputKind.NUMBER, "mg/g")
    assert [feature.name for feature in inputs["smoking"].categories] == ["daily", "former", "never"]
    label = study.features.label
    assert (label.name, label.kind, label.outcome_window) == ("kidney_disease", LabelKind.EVENT, "P2Y")
    assert (label.follow_up.view, study.features.index_date.view) == ("visits", "visits")
    done = run("study", "check", file)
    assert done.exit_code == 0
    assert f"hash {study.hash}" in done.output


def test_answers_to_prompts_become_a_valid_study(tmp_path):
    prompt_app, answers = typer.Typer(), []
    prompt_app.command()(lambda: answers.append(prompt_study()))
    done = CliRunner().invoke(prompt_app, [], input=ANSWERS)
    assert done.exit_code == 0, done.output
    file = tmp_path / "study.toml"
    file.write_text(study_template("study.toml", date(2026, 11, 16), answers[0]))
    check_study(file)
    assert lint_study(load_study(file), date(2026, 11, 17)) == []
    assert len(file.read_text().splitlines()) < 80


def read_until(terminal: int, text: str, timeout: float = 60) -> str:
    """Return the output of a terminal up to a text."""
    shown = ""
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], timeout)
        assert ready, f"no prompt {text!r}: {shown[-300:]!r}"
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end has closed
            part = b""
        assert part, f"ended before {text!r}: {shown[-500:]!r}"
        shown += part.decode()
    return shown


def test_in_a_real_terminal(tmp_path):
    file = tmp_path / "study.toml"
    terminal, inner = pty.openpty()
    arguments = [sys.executable, "-c", "from abaton.cli import main; main()", "study", "new", str(file)]
    program = subprocess.Popen(arguments, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    for question, answer in TYPED:
        read_until(terminal, question)
        os.write(terminal, f"{answer}\n".encode())
    shown = read_until(terminal, "abaton study check")
    assert "Kidneys" not in shown
    assert program.wait(60) == 0
    os.close(terminal)
    check_study(file)


def test_without_a_terminal_and_with_example_nothing_is_prompted(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    assert run("study", "new", one).exit_code == 0
    assert run("study", "new", two, "--example").exit_code == 0
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
        derived = [entry for entry in json.loads(done.output)["derived"] if entry["line"] == number]
        assert {entry["key"] for entry in derived} == {"inputs.systolic"}
        assert any("input systolic: number in mm[Hg]" in entry["description"] for entry in derived)
    else:
        assert f"{file}:{number}: inputs.systolic: input systolic: number in mm[Hg]" in done.output
