import json
import sys

import pytest

from abaton.cli import main

STUDY = """
[privacy.anonymity]
k = 2
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
    assert "k (smallest class)" in capsys.readouterr().out
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
