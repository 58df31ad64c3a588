"""Mapping suggestions from names and values with reasons, and the commands of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.site.site_population import study
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.lab.synthetic_hospitals import records, study_text, write_spreadsheets
from abaton.site import load_site, site_from_toml, site_template
from abaton.site.config_reader import SOURCE_TEMPLATES
from abaton.site.sources.tabular.data_dictionary import study_codes, study_entries
from abaton.site.sources.tabular.mapping import MappingDocument, mapping_from_toml
from abaton.site.sources.tabular.mapping_suggestion import suggest_mapping

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "sources.md").read_text("utf-8")


def suggest(tmp_path, document=None, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    proposal = (
        suggest_mapping([tmp_path], study_entries(document), study_codes(document))
        if document
        else suggest_mapping([tmp_path])
    )
    return mapping_from_toml(proposal.text), {
        (g.file, g.column): (g.meaning, g.reason) for g in proposal.guesses
    }


def rows(head, *lines, times=6):
    return "\n".join([head, *(line.replace("#", str(n)) for n in range(times) for line in lines)]) + "\n"


def test_unnamed_columns_are_ignored_and_duplicates_are_reported(tmp_path):
    text = rows(
        "Patient;Datum;Systolisch;Raucher;Gewicht;Gewicht;;",
        "#;01.06.2023;140,5;ja;80;81;;",
        "#;02.06.2023;141,5;nein;;;;",
    )
    mapping, guesses = suggest(tmp_path, checkups=text)
    assert set(mapping.tables[0].columns) == {"Systolisch", "Raucher"}
    assert mapping.tables[0].columns["Raucher"].values["ja"] == "snomed|449868002"
    assert guesses["checkups.csv", "Gewicht"] == (
        "omitted",
        "two columns have this name; rename one of them",
    )
    assert ("checkups.csv", "") not in guesses


def test_units_follow_from_the_median_or_the_name(tmp_path):
    text = rows("PID,Cholesterol,Creatinine (umol/l),SBP,HDL", "#,5.2,88,140,-")
    mapping, guesses = suggest(tmp_path, labs=text)
    columns = mapping.tables[0].columns
    assert (columns["Cholesterol"].code, columns["Cholesterol"].unit) == ("loinc|14647-2", "mmol/L")
    assert (columns["Creatinine (umol/l)"].code, columns["Creatinine (umol/l)"].unit) == (
        "loinc|14682-9",
        "umol/L",
    )
    assert columns["SBP"].unit == "mm[Hg]"
    assert "verify it" in guesses["labs.csv", "Cholesterol"][1]
    assert "unit from its name" in guesses["labs.csv", "Creatinine (umol/l)"][1]
    assert guesses["labs.csv", "HDL"][0] == "omitted"


def test_dates_decimals_and_ambiguous_dates(tmp_path):
    text = rows("patient;visit;bmi;sex", "#;03/04/2023;27,5;1")
    mapping, guesses = suggest(tmp_path, patients=text)
    assert (mapping.files.delimiter, mapping.files.decimal, mapping.files.dates) == (";", ",", ("%d/%m/%Y",))
    assert "day and month may be exchanged" in guesses["patients.csv", "visit"][1]
    assert guesses["patients.csv", "sex"][0] == "omitted"


def test_inputs_of_a_study_are_recognised(tmp_path):
    text = rows("patient,emergencies,smoking,diabetes", "#,1,daily,yes", "#,0,never,no")
    mapping, guesses = suggest(tmp_path, study(), patients=text)
    columns = mapping.tables[0].columns
    assert columns["smoking"].values == {"daily": "snomed|449868002", "never": "snomed|266919005"}
    assert (columns["diabetes"].type, columns["diabetes"].code) == ("condition", "snomed|44054006")
    assert guesses["patients.csv", "emergencies"][0] == "omitted"


def test_rare_values_are_not_shown(tmp_path):
    text = rows("patient,smoking,systolic", "#,never,120") + "99,Canaria,120\n"
    proposal = suggest(tmp_path, patients=text)
    assert "smoking" not in proposal[0].tables[0].columns
    assert "Canaria" not in repr(proposal)


def test_tables_without_known_columns_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="no column was recognised"):
        suggest(tmp_path, patients=rows("a,b", "1,2"))


@pytest.mark.parametrize("kind", SOURCE_TEMPLATES)
def test_template_of_every_source_is_valid(kind):
    assert site_from_toml(site_template("site.toml", source=kind)).records.source.value == kind
    location = "https://fhir.example/r4" if kind in ("fhir", "bulk") else "my-data"
    part = site_from_toml(site_template("site.toml", source=kind, location=location)).records
    assert location in (part.url, *part.paths)
    if kind == "omop":
        part = site_from_toml(site_template("site.toml", source=kind, location="duckdb:///x.duckdb")).records
        assert (part.database, part.paths) == ("duckdb:///x.duckdb", ())


def test_unknown_source_and_password_are_refused():
    with pytest.raises(SettingsError, match="'excel' is not a kind of source"):
        site_template("site.toml", source="excel")
    with pytest.raises(SettingsError, match="the URL contains a password"):
        site_from_toml(
            site_template("site.toml", source="omop", location="postgresql+psycopg://me:secret@host/omop")
        )


def test_commands_of_the_page_lead_to_a_checked_site(tmp_path, monkeypatch):
    page = (DOCS / "howto" / "hospital.md").read_text("utf-8")
    (block,) = re.findall(r"### Tables instead of FHIR.*?```text\n(.*?)```", page, re.S)
    lines = block.strip().splitlines()
    assert len(lines) <= 5
    monkeypatch.chdir(tmp_path)
    write_spreadsheets(tmp_path / "tables", "athens", records("athens", 7, scale=0.2))
    (tmp_path / "tables" / "mapping.toml").unlink()
    Path("study.toml").write_text(study_text())
    for line in lines:
        tokens = shlex.split(line)[1:]
        done = CliRunner().invoke(app, [*tokens, "--json"] if "key" not in tokens else tokens)
        assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
    preflight = json.loads(done.stdout)
    assert preflight["may_participate"]
    assert {step["stage"]: step["subjects"] for step in preflight["attrition"]}["read"] == 192
    assert load_site(Path("site.toml")).config.records.mapping == "mapping.toml"


def keys(kind):
    from typing import get_args

    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            yield name
            yield from keys(info.annotation)
    else:
        for inner in get_args(kind):
            yield from keys(inner)


def test_mapping_keys_are_documented_and_the_example_is_valid():
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    tokens = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert not sorted(set(keys(MappingDocument)) - tokens)
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert len(mapping_from_toml(example).tables) == 4
