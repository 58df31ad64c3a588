import json
import sys
from datetime import date

import pytest
from tests.study.long_form import long_starter

from abaton.cli import main
from abaton.study import study_from_toml, write_bundle, write_toml

STUDY = """
[privacy.anonymity]
k = 2
rows_are_people = true
suppression_limit = {limit}
[[privacy.anonymity.quasi_identifiers]]
column = "age"
hierarchy = {{ bins = [10] }}
[[privacy.anonymity.sensitive]]
column = "outcome"
diversity = {{ l = {l} }}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY.format(limit=0.25, l=1))
    (tmp_path / "in.csv").write_text("name,age,outcome\nKarolidis,31,x\nb,34,y\nc,38,x\nd,77,y\n")
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["abaton", "records", "anonymity", *arguments])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_measuring_writes_nothing(study, monkeypatch, capsys):
    assert run(monkeypatch, "in.csv", "--study", "study.toml") == 0
    assert "people in the smallest class" in capsys.readouterr().out
    assert not (study / "in.anonymous.csv").exists()


def test_enforcing_writes_the_released_table(study, monkeypatch, capsys):
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--enforce", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["node"], row["suppressed"], row["columns_left_out"]) == ([1], 1, ["name"])
    assert (row["before"]["k"], row["after"]["k"]) == (1, 3)
    assert (study / "in.anonymous.csv").read_text() == "age,outcome\n30-39,x\n30-39,y\n30-39,x\n"


def test_what_cannot_be_made_anonymous_is_refused(study, monkeypatch, capsys):
    (study / "study.toml").write_text(STUDY.format(limit=0.25, l=3))
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--enforce") == 3
    assert not (study / "in.anonymous.csv").exists()
    captured = capsys.readouterr()
    assert "Karolidis" not in captured.out + captured.err
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["after"] is None


def test_the_gate_fails_with_code_3(study, monkeypatch, capsys):
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--gate") == 3
    assert "falls short" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("none.csv", "--study", "study.toml"),
        ("in.csv", "--study", "none.toml"),
        ("in.csv",),
        ("in.csv", "--study", "study.toml", "--enforce", "--out", "in.csv"),
        ("in.csv", "--study", "study.toml", "--enforce", "--out", "out.xlsx"),
    ],
)
def test_wrong_usage_is_code_2_and_leaves_nothing(study, monkeypatch, arguments):
    before = sorted(path.name for path in study.iterdir())
    assert run(monkeypatch, *arguments) == 2
    assert sorted(path.name for path in study.iterdir()) == before


def test_the_report_is_written_for_a_person_and_for_a_machine(study, monkeypatch):
    (study / "more.json").write_text(
        '{"consents": {"counted": 4, "in_force": 4, "expired": 0, "withdrawn": 0}}'
    )
    for name in ("privacy.html", "privacy.json"):
        arguments = ("in.csv", "--study", "study.toml", "--report", name, "--report-inputs", "more.json")
        assert run(monkeypatch, *arguments) == 0
    report = json.loads((study / "privacy.json").read_text())
    assert report["consents"]["counted"] == 4
    assert len(report["study"]["document_sha256"]) == 64
    page = (study / "privacy.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Karolidis" not in page + json.dumps(report)
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--report", "privacy.pdf") == 2


@pytest.mark.parametrize("form", ["study.toml", "study.json"])
def test_a_whole_study_document_tells_the_report_what_it_is_for(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    made = study_from_toml(long_starter(date(2026, 1, 1)))
    text = write_toml(made) if form == "study.toml" else json.dumps(write_bundle(made))
    (tmp_path / form).write_text(text)
    (tmp_path / "in.csv").write_text("age,sex\n" + "31,f\n34,f\n" * 3)
    assert run(monkeypatch, "in.csv", "--study", form, "--rows-are-people", "--report", "privacy.json") == 0
    report = json.loads((tmp_path / "privacy.json").read_text())
    assert report["study"]["title"] == made.study.title
    assert report["study"]["legal_basis"] == made.study.legal_basis
    assert report["study"]["document_sha256"] == made.hash
    assert report["custody"]["recipients"] == [made.centre.name]
    assert report["anonymity"]["node"] == [1, 0]


def test_stays_of_one_person_are_one_person(study, monkeypatch, capsys):
    (study / "study.toml").write_text(STUDY.format(limit=0.5, l=1).replace("rows_are_people = true\n", ""))
    (study / "in.csv").write_text("patient,age,outcome\na,31,x\na,31,y\na,31,x\nb,55,x\nc,56,y\n")
    assert run(monkeypatch, "in.csv", "--study", "study.toml") == 2
    assert "--subject" in capsys.readouterr().err
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--subject", "pateint") == 2
    assert "did you mean 'patient'?" in capsys.readouterr().err
    arguments = ("in.csv", "--study", "study.toml", "--enforce", "--json")
    assert run(monkeypatch, *arguments, "--rows-are-people") == 0
    by_rows = json.loads(capsys.readouterr().out)
    assert (by_rows["node"], by_rows["after"]["k"], by_rows["after"]["people"]) == ([1], 2, 5)
    assert run(monkeypatch, *arguments, "--subject", "patient") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["node"], row["before"]["k"], row["after"]["k"], row["after"]["people"]) == ([2], 1, 3, 3)
    assert (study / "in.anonymous.csv").read_text() == "age,outcome\n*,x\n*,y\n*,x\n*,x\n*,y\n"
    assert run(monkeypatch, *arguments, "--subject", "patient", "--rows-are-people") == 2
