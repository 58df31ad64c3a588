"""A mapping is guessed from names and values, says why, and leaves out what it does not know; the page's steps work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.site.population import study
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.lab.synthetic_hospitals import records, study_text, write_spreadsheets
from abaton.site import load_site, site_from_toml, starter
from abaton.site.config_reader import KINDS
from abaton.site.sources.tabular.data_dictionary import asked_by, things_of
from abaton.site.sources.tabular.mapping import TableMapping, mapping_from_toml
from abaton.site.sources.tabular.mapping_suggestion import propose

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sources.md").read_text("utf-8")


def guessed(tmp_path, document=None, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    made = propose([tmp_path], things_of(document), asked_by(document)) if document else propose([tmp_path])
    return mapping_from_toml(made.text), {(g.file, g.column): (g.means, g.why) for g in made.guesses}


def rows(head, *lines, times=6):
    return "\n".join([head, *(line.replace("#", str(n)) for n in range(times) for line in lines)]) + "\n"


def test_columns_without_a_name_are_passed_over_and_two_of_one_name_are_told(tmp_path):
    text = rows(
        "Patient;Datum;Systolisch;Raucher;Gewicht;Gewicht;;",
        "#;01.06.2023;140,5;ja;80;81;;",
        "#;02.06.2023;141,5;nein;;;;",
    )
    mapping, told = guessed(tmp_path, checkups=text)
    assert set(mapping.tables[0].columns) == {"Systolisch", "Raucher"}
    assert mapping.tables[0].columns["Raucher"].values["ja"] == "snomed|449868002"
    assert told["checkups.csv", "Gewicht"] == (
        "left out",
        "two columns are called so: give each a name of its own",
    )
    assert ("checkups.csv", "") not in told


def test_units_follow_from_the_size_of_numbers_or_the_name(tmp_path):
    text = rows("PID,Cholesterol,Creatinine (umol/l),SBP,HDL", "#,5.2,88,140,-")
    mapping, told = guessed(tmp_path, labs=text)
    columns = mapping.tables[0].columns
    assert (columns["Cholesterol"].code, columns["Cholesterol"].unit) == ("loinc|14647-2", "mmol/L")
    assert (columns["Creatinine (umol/l)"].code, columns["Creatinine (umol/l)"].unit) == (
        "loinc|14682-9",
        "umol/L",
    )
    assert columns["SBP"].unit == "mm[Hg]"
    assert "check it" in told["labs.csv", "Cholesterol"][1]
    assert "stands in its name" in told["labs.csv", "Creatinine (umol/l)"][1]
    assert told["labs.csv", "HDL"][0] == "left out"


def test_dates_decimals_and_what_may_be_read_in_two_ways(tmp_path):
    text = rows("patient;visit;bmi;sex", "#;03/04/2023;27,5;1")
    mapping, told = guessed(tmp_path, people=text)
    assert (mapping.files.delimiter, mapping.files.decimal, mapping.files.dates) == (";", ",", ("%d/%m/%Y",))
    assert "the other way round" in told["people.csv", "visit"][1]
    assert told["people.csv", "sex"][0] == "left out"


def test_a_study_says_what_its_inputs_are_called(tmp_path):
    text = rows("patient,emergencies,smoking,diabetes", "#,1,daily,yes", "#,0,never,no")
    mapping, told = guessed(tmp_path, study(), people=text)
    columns = mapping.tables[0].columns
    assert columns["smoking"].values == {"daily": "snomed|449868002", "never": "snomed|266919005"}
    assert (columns["diabetes"].type, columns["diabetes"].code) == ("condition", "snomed|44054006")
    assert told["people.csv", "emergencies"][0] == "left out"


def test_rare_words_are_never_shown(tmp_path):
    text = rows("patient,smoking,systolic", "#,never,120") + "99,Canaria,120\n"
    made = guessed(tmp_path, people=text)
    assert "smoking" not in made[0].tables[0].columns
    assert "Canaria" not in repr(made)


def test_nothing_is_made_of_nothing(tmp_path):
    with pytest.raises(SettingsError, match="no column was understood"):
        guessed(tmp_path, people=rows("a,b", "1,2"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_document_of_every_kind_passes(kind):
    assert site_from_toml(starter("site.toml", kind=kind)).records.kind.value == kind
    place = "https://fhir.example/r4" if kind in ("fhir", "bulk") else "my-data"
    part = site_from_toml(starter("site.toml", kind=kind, place=place)).records
    assert place in (part.url, *part.paths)
    if kind == "omop":
        part = site_from_toml(starter("site.toml", kind=kind, place="duckdb:///x.duckdb")).records
        assert (part.database, part.paths) == ("duckdb:///x.duckdb", ())


def test_an_unknown_kind_and_a_password_are_refused():
    with pytest.raises(SettingsError, match="there is no kind 'excel'"):
        starter("site.toml", kind="excel")
    with pytest.raises(SettingsError, match="the address holds a password"):
        site_from_toml(starter("site.toml", kind="omop", place="postgresql+psycopg://me:secret@host/omop"))


def test_from_a_folder_of_tables_to_a_checked_site_as_the_page_says(tmp_path, monkeypatch):
    page = (DOCS / "howto" / "hospital.md").read_text("utf-8")
    (block,) = re.findall(r"### Tables instead of FHIR.*?```text\n(.*?)```", page, re.S)
    lines = block.strip().splitlines()
    assert len(lines) <= 5
    monkeypatch.chdir(tmp_path)
    write_spreadsheets(tmp_path / "tables", "athens", records("athens", 7, scale=0.2))
    (tmp_path / "tables" / "mapping.toml").unlink()
    Path("study.toml").write_text(study_text())
    for line in lines:
        words = shlex.split(line)[1:]
        done = CliRunner().invoke(app, [*words, "--json"] if "key" not in words else words)
        assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
    told = json.loads(done.stdout)
    assert told["usable"]
    assert {step["stage"]: step["subjects"] for step in told["funnel"]}["read"] == "192"
    assert load_site(Path("site.toml")).document.records.mapping == "mapping.toml"


def keys(kind):
    from typing import get_args

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            yield name
            yield from keys(info.annotation)
    else:
        for inner in get_args(kind):
            yield from keys(inner)


def test_every_key_of_a_mapping_is_on_its_page_and_the_example_is_valid():
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    words = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert not sorted(set(keys(TableMapping)) - words)
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert len(mapping_from_toml(example).tables) == 4
