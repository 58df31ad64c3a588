"""The inventory: what is in records, what a study would find, and nothing of few people or of anybody's value."""

from __future__ import annotations

import json
from datetime import date

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.lab.synthetic_hospitals import records, study_text
from abaton.records.profile import Inventory
from abaton.site import SourceInventory, take_inventory
from abaton.study import study_from_toml

LOINC = "http://loinc.org"
LOCAL = "http://hospital.example/codes"
STUDY = study_from_toml(study_text())


def written(folder, resources):
    folder.mkdir()
    (folder / "all.ndjson").write_text("".join(json.dumps(each) + "\n" for each in resources))
    return folder


@pytest.fixture(scope="module")
def trikala(tmp_path_factory):
    return written(tmp_path_factory.mktemp("inventory") / "in", records("trikala", 1990, scale=0.2))


def observed(person, code, value=None, system=LOINC, unit="mm[Hg]", display="", year=2026):
    quantity = {"value": value, "code": unit} if unit else {"value": value}
    return {
        "resourceType": "Observation",
        "id": f"o{person}-{code}-{year}",
        "status": "final",
        "subject": {"reference": f"Patient/{person}"},
        "code": {"coding": [{"system": system, "code": code, **({"display": display} if display else {})}]},
        "effectiveDateTime": f"{year}-01-01",
        "valueQuantity": quantity,
    }


def line(made, code):
    return next(each for each in made["codes"] if each["code"] == code)


def filled(made, name):
    return next(each for each in made["inputs"] if each["name"] == name)


def test_what_a_hospital_has_and_what_a_study_would_find(trikala):
    made = take_inventory(trikala, STUDY, STUDY.need(date(2026, 11, 16))).row()
    assert set(made["records"]) == {"Patient", "Encounter", "Condition", "Observation", "MedicationRequest"}
    pressure = line(made, "loinc 8480-6")
    assert pressure["label"] == "systolic blood pressure"
    assert set(pressure["units"]) == {"mm[Hg]", "no unit"}
    assert 2019 <= pressure["years"][0] <= pressure["years"][1] <= 2025
    assert filled(made, "bmi")["state"] == "filled"
    assert [each["code"] for each in filled(made, "diabetes")["found"]] == ["icd10 E11.9"]
    assert filled(made, "systolic")["missing"] == ["no unit cannot become mm[Hg]"]
    assert filled(made, "smoking")["missing"] == ["every answer would count as 'other'"]
    assert {each["part"] for each in made["inputs"]} == {"input", "outcome", "index", "follow-up"}


def test_what_is_missing_is_told_with_what_is_nearest(tmp_path):
    """Amounts instead of masses, ICD-10-CM instead of ICD-10, a local code whose words are alike."""
    people = range(8)
    made = [{"resourceType": "Patient", "id": f"{i}", "gender": "female"} for i in people]
    made += [observed(i, "14647-2", 5.2, unit="mmol/L") for i in people]
    made += [observed(i, "SYS1", 120, system=LOCAL, display="Blood pressure systolic") for i in people]
    made += [observed(i, "2160-0", 1.0, unit="mm") for i in people]
    made += [
        {
            "resourceType": "Condition",
            "id": f"c{i}",
            "subject": {"reference": f"Patient/{i}"},
            "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": "E11.65"}]},
        }
        for i in people
    ]
    found = take_inventory(written(tmp_path / "in", made), STUDY, None).row()
    assert filled(found, "cholesterol")["found"][0]["units"] == [
        {"unit": "mmol/L", "records": "8", "converts": True}
    ]
    assert filled(found, "creatinine")["missing"] == ["mm cannot become mg/dL"]
    systolic = filled(found, "systolic")
    assert (systolic["state"], systolic["missing"]) == ("empty", ["no Observation that is looked for"])
    assert systolic["nearest"] == [{"code": f"{LOCAL} SYS1", "records": "8"}]
    assert filled(found, "diabetes")["nearest"] == [{"code": "icd10cm E11.65", "records": "8"}]
    assert filled(found, "age")["missing"] == ["no dates"]
    assert "Blood pressure systolic" not in json.dumps(found)


def test_what_few_people_have_is_not_told_and_cannot_be_worked_out():
    made = Inventory(floor=5)
    for i in range(40):
        made.note(observed(i % 4, "8480-6", 1, year=2000 + i))  # many records of four people
        made.note(observed(i, "8462-4", 1, unit="mm[Hg]" if i else "kPa"))
        made.note(observed(i % 3, "Smith, John", 1, system=LOCAL))
    found = SourceInventory(made, {}).row()
    assert (line(found, "loinc 8480-6")["records"], line(found, "loinc 8480-6")["years"]) == ("<5", [])
    assert line(found, "loinc 8462-4")["units"] == {"kPa": "<5", "mm[Hg]": "≥5"}
    assert found["hidden"] == 1
    assert "Smith" not in json.dumps(found)
    alone = Inventory(floor=5)
    for i in range(40):
        alone.note(observed(i, "8462-4", 1))
    alone.note(observed(1, "8480-6", 1))
    assert alone.told_types() == {"Observation": "≥5"}  # 41 and 40 would tell that there is one


def test_a_part_of_which_nothing_converts_is_empty(tmp_path):
    people = [observed(i, "8480-6", 120, unit="kg") for i in range(9)]
    found = take_inventory(written(tmp_path / "in", people), STUDY, None).row()
    assert filled(found, "systolic")["state"] == "empty"
    mixed = [*people, *(observed(20 + i, "8480-6", 120) for i in range(9))]
    found = take_inventory(written(tmp_path / "mixed", mixed), STUDY, None).row()
    assert filled(found, "systolic")["state"] == "partly"


def test_a_folder_of_tables_needs_the_document_of_a_site(tmp_path):
    (tmp_path / "person.csv").write_text("person_id\n1\n")
    with pytest.raises(SettingsError, match="these are tables") as caught:
        take_inventory(tmp_path)
    assert "site.toml" in caught.value.remedy


def test_memory_does_not_grow_with_people_and_codes_are_bounded(monkeypatch):
    monkeypatch.setattr("abaton.records.profile._MOST_LINES", 10)
    made = Inventory(floor=5)
    for i in range(2000):
        made.note(observed(i, "8480-6", 1))
    assert all(len(each.people) == 5 for each in made.lines.values())
    for i in range(30):
        made.note(observed(i, f"{i}", 1, system=LOCAL))
    assert len(made.lines) == 10
    assert made.beyond["Observation"] == 21


def test_components_bundles_and_broken_records(tmp_path):
    panel = {**observed(1, "85354-9"), "valueQuantity": None}
    panel = {key: value for key, value in panel.items() if value is not None}
    part = {"code": {"coding": [{"system": LOINC, "code": "8480-6"}]}}
    panel["component"] = [{**part, "valueQuantity": {"value": 1, "code": "mm[Hg]"}}]
    entries = [
        {"resource": {**panel, "id": f"b{i}", "subject": {"reference": f"Patient/{i}"}}} for i in range(6)
    ]
    folder = written(tmp_path / "in", [{"resourceType": "Bundle", "type": "collection", "entry": entries}])
    (folder / "broken.ndjson").write_text('{"resourceType": "Observation", \n')
    made = take_inventory(folder, STUDY, None)
    found = made.row()
    assert line(found, "loinc 8480-6")["type"] == "Observation.component"
    assert filled(found, "systolic")["state"] == "filled"
    assert [*found["set_aside"].values()] == ["<5"]  # as a site tells it


def test_a_site_document_is_a_source_and_a_server_needs_a_study(tmp_path, trikala):
    head = '[site]\nid = "x"\nname = "X"\n\n[consent]\nground = "a vote"\n\n'
    (tmp_path / "site.toml").write_text(f'{head}[records]\nkind = "ndjson"\npaths = ["{trikala}"]\n')
    assert take_inventory(tmp_path / "site.toml").row() == take_inventory(trikala).row()
    (tmp_path / "web.toml").write_text(f'{head}[records]\nkind = "fhir"\nurl = "https://host.example/fhir"\n')
    with pytest.raises(SettingsError, match="no study is named"):
        take_inventory(tmp_path / "web.toml")


def test_table_json_and_page(tmp_path, trikala):
    (tmp_path / "study.toml").write_text(study_text())
    words = ["records", "inventory", str(trikala), "--study", str(tmp_path / "study.toml")]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*words, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "systolic blood pressure" in done.output
    text = page.read_text()
    assert "systolic blood pressure" in text
    assert "<script" not in text
    told = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(told.stdout)["study"] == STUDY.study.title
    only = CliRunner().invoke(app, ["records", "inventory", str(trikala), "--json"])
    assert "inputs" not in json.loads(only.stdout)
    assert CliRunner().invoke(app, ["records", "inventory", str(tmp_path / "nowhere")]).exit_code != 0


def test_a_part_that_stays_empty_is_exit_code_1(tmp_path):
    folder = written(tmp_path / "in", [{"resourceType": "Patient", "id": "1"}])
    (tmp_path / "study.toml").write_text(study_text())
    words = ["records", "inventory", str(folder), "--study", str(tmp_path / "study.toml")]
    assert CliRunner().invoke(app, words).exit_code == 1
