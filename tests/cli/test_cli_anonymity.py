import json
import sys
from datetime import date

import pytest
from tests.study.full_studies import long_starter

from abaton.cli import main
from abaton.study import study_from_toml, write_bundle, write_toml

STUDY = """
[privacy.anonymity]
k = 2
one_row_per_subject = true
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
    assert "subjects in the smallest class" in capsys.readouterr().out
    assert not (study / "in.anonymous.csv").exists()


def test_enforcing_writes_the_released_table(study, monkeypatch, capsys):
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--enforce", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["node"], row["suppressed"], row["columns_dropped"]) == ([1], 1, ["name"])
    assert (row["before"]["k"], row["after"]["k"]) == (1, 3)
    assert (study / "in.anonymous.csv").read_text() == "age,outcome\n30-39,x\n30-39,y\n30-39,x\n"


def test_a_table_without_an_anonymous_release_is_refused(study, monkeypatch, capsys):
    (study / "study.toml").write_text(STUDY.format(limit=0.25, l=3))
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--enforce") == 3
    assert not (study / "in.anonymous.csv").exists()
    captured = capsys.readouterr()
    assert "Karolidis" not in captured.out + captured.err
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["after"] is None


def test_fail_if_unsafe_exits_with_code_3(study, monkeypatch, capsys):
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--fail-if-unsafe") == 3
    assert "does not satisfy the study's privacy models" in capsys.readouterr().err


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


def test_the_report_is_written_as_html_and_json(study, monkeypatch):
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
def test_a_full_study_document_gives_the_report_purpose_and_hash(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    study = study_from_toml(long_starter(date(2026, 1, 1)))
    text = write_toml(study) if form == "study.toml" else json.dumps(write_bundle(study))
    (tmp_path / form).write_text(text)
    (tmp_path / "in.csv").write_text("age,sex\n" + "31,f\n34,f\n" * 3)
    assert (
        run(monkeypatch, "in.csv", "--study", form, "--one-row-per-subject", "--report", "privacy.json") == 0
    )
    report = json.loads((tmp_path / "privacy.json").read_text())
    assert report["study"]["title"] == study.study.title
    assert report["study"]["legal_basis"] == study.study.legal_basis
    assert report["study"]["document_sha256"] == study.hash
    assert report["custody"]["recipients"] == [study.centre.name]
    assert report["anonymity"]["node"] == [1, 0]


def test_several_rows_of_a_subject_count_once(study, monkeypatch, capsys):
    (study / "study.toml").write_text(
        STUDY.format(limit=0.5, l=1).replace("one_row_per_subject = true\n", "")
    )
    (study / "in.csv").write_text("patient,age,outcome\na,31,x\na,31,y\na,31,x\nb,55,x\nc,56,y\n")
    assert run(monkeypatch, "in.csv", "--study", "study.toml") == 2
    assert "--subject" in capsys.readouterr().err
    assert run(monkeypatch, "in.csv", "--study", "study.toml", "--subject", "pateint") == 2
    assert "did you mean 'patient'?" in capsys.readouterr().err
    arguments = ("in.csv", "--study", "study.toml", "--enforce", "--json")
    assert run(monkeypatch, *arguments, "--one-row-per-subject") == 0
    by_rows = json.loads(capsys.readouterr().out)
    assert (by_rows["node"], by_rows["after"]["k"], by_rows["after"]["subjects"]) == ([1], 2, 5)
    assert run(monkeypatch, *arguments, "--subject", "patient") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["node"], row["before"]["k"], row["after"]["k"], row["after"]["subjects"]) == ([2], 1, 3, 3)
    assert (study / "in.anonymous.csv").read_text() == "age,outcome\n*,x\n*,y\n*,x\n*,x\n*,y\n"
    assert run(monkeypatch, *arguments, "--subject", "patient", "--one-row-per-subject") == 2
