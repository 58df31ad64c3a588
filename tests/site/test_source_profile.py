"""Source profile: counts, coverage of a study, suppression of small counts."""

from __future__ import annotations

import json
from datetime import date

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.lab.synthetic_hospitals import records, study_text
from abaton.records.profile import RecordProfile
from abaton.site import SourceProfile, profile_source
from abaton.study import study_from_toml

LOINC = "http://loinc.org"
LOCAL = "http://hospital.example/codes"
STUDY = study_from_toml(study_text())


def write_ndjson(folder, resources):
    folder.mkdir()
    (folder / "all.ndjson").write_text("".join(json.dumps(entry) + "\n" for entry in resources))
    return folder


@pytest.fixture(scope="module")
def trikala(tmp_path_factory):
    return write_ndjson(tmp_path_factory.mktemp("profile") / "in", records("trikala", 1990, scale=0.2))


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


def entry_of(profile, code):
    return next(entry for entry in profile["codes"] if entry["code"] == code)


def input_of(profile, name):
    return next(entry for entry in profile["inputs"] if entry["name"] == name)


def test_profile_of_a_hospital_and_coverage_of_a_study(trikala):
    profile = profile_source(trikala, STUDY, STUDY.data_request(date(2026, 11, 16))).to_row()
    assert set(profile["records"]) == {
        "Patient",
        "Encounter",
        "Condition",
        "Observation",
        "MedicationRequest",
    }
    pressure = entry_of(profile, "loinc 8480-6")
    assert pressure["label"] == "systolic blood pressure"
    assert set(pressure["units"]) == {"mm[Hg]", "no unit"}
    assert 2019 <= pressure["years"][0] <= pressure["years"][1] <= 2025
    assert input_of(profile, "bmi")["state"] == "filled"
    assert [entry["code"] for entry in input_of(profile, "diabetes")["codes"]] == ["icd10 E11.9"]
    assert input_of(profile, "systolic")["missing"] == ["no unit cannot be converted to mm[Hg]"]
    assert input_of(profile, "smoking")["missing"] == ["every coded value counts as 'other'"]
    assert {entry["role"] for entry in profile["inputs"]} == {"input", "outcome", "index", "follow-up"}


def test_missing_inputs_are_reported_with_closest_codes(tmp_path):
    """Amounts instead of masses, ICD-10-CM instead of ICD-10, a local code with a similar text."""
    subjects = range(8)
    resources = [{"resourceType": "Patient", "id": f"{i}", "gender": "female"} for i in subjects]
    resources += [observed(i, "14647-2", 5.2, unit="mmol/L") for i in subjects]
    resources += [observed(i, "SYS1", 120, system=LOCAL, display="Blood pressure systolic") for i in subjects]
    resources += [observed(i, "2160-0", 1.0, unit="mm") for i in subjects]
    resources += [
        {
            "resourceType": "Condition",
            "id": f"c{i}",
            "subject": {"reference": f"Patient/{i}"},
            "code": {"coding": [{"system": "http://hl7.org/fhir/sid/icd-10-cm", "code": "E11.65"}]},
        }
        for i in subjects
    ]
    profile = profile_source(write_ndjson(tmp_path / "in", resources), STUDY, None).to_row()
    assert input_of(profile, "cholesterol")["codes"][0]["units"] == [
        {"unit": "mmol/L", "records": "8", "is_convertible": True}
    ]
    assert input_of(profile, "creatinine")["missing"] == ["mm cannot be converted to mg/dL"]
    systolic = input_of(profile, "systolic")
    assert (systolic["state"], systolic["missing"]) == ("empty", ["no Observation with a required code"])
    assert systolic["closest_codes"] == [{"code": f"{LOCAL} SYS1", "records": "8"}]
    assert input_of(profile, "diabetes")["closest_codes"] == [{"code": "icd10cm E11.65", "records": "8"}]
    assert input_of(profile, "age")["missing"] == ["no dates"]
    assert "Blood pressure systolic" not in json.dumps(profile)


def test_small_counts_are_suppressed_and_not_derivable():
    profile = RecordProfile(min_cell_count=5)
    for i in range(40):
        profile.add(observed(i % 4, "8480-6", 1, year=2000 + i))  # many records of four subjects
        profile.add(observed(i, "8462-4", 1, unit="mm[Hg]" if i else "kPa"))
        profile.add(observed(i % 3, "Smith, John", 1, system=LOCAL))
    profile_row = SourceProfile(profile, {}).to_row()
    assert (
        entry_of(profile_row, "loinc 8480-6")["records"],
        entry_of(profile_row, "loinc 8480-6")["years"],
    ) == ("<5", [])
    assert entry_of(profile_row, "loinc 8462-4")["units"] == {"kPa": "<5", "mm[Hg]": "≥5"}
    assert profile_row["suppressed_codes"] == 1
    assert "Smith" not in json.dumps(profile_row)
    alone = RecordProfile(min_cell_count=5)
    for i in range(40):
        alone.add(observed(i, "8462-4", 1))
    alone.add(observed(1, "8480-6", 1))
    assert alone.released_types() == {"Observation": "≥5"}  # 41 and 40 would reveal a count of one


def test_input_without_convertible_unit_is_empty(tmp_path):
    subjects = [observed(i, "8480-6", 120, unit="kg") for i in range(9)]
    profile_row = profile_source(write_ndjson(tmp_path / "in", subjects), STUDY, None).to_row()
    assert input_of(profile_row, "systolic")["state"] == "empty"
    mixed = [*subjects, *(observed(20 + i, "8480-6", 120) for i in range(9))]
    profile_row = profile_source(write_ndjson(tmp_path / "mixed", mixed), STUDY, None).to_row()
    assert input_of(profile_row, "systolic")["state"] == "partly"


def test_folder_of_tables_needs_a_site_configuration(tmp_path):
    (tmp_path / "person.csv").write_text("person_id\n1\n")
    with pytest.raises(SettingsError, match="the files are tables") as caught:
        profile_source(tmp_path)
    assert "site.toml" in caught.value.remedy


def test_memory_does_not_grow_with_subjects_and_codes_are_bounded(monkeypatch):
    monkeypatch.setattr("abaton.records.profile._MAX_ENTRIES", 10)
    profile = RecordProfile(min_cell_count=5)
    for i in range(2000):
        profile.add(observed(i, "8480-6", 1))
    assert all(len(entry.subjects) == 5 for entry in profile.entries.values())
    for i in range(30):
        profile.add(observed(i, f"{i}", 1, system=LOCAL))
    assert len(profile.entries) == 10
    assert profile.uncounted["Observation"] == 21


def test_components_bundles_and_invalid_records(tmp_path):
    panel = {**observed(1, "85354-9"), "valueQuantity": None}
    panel = {key: value for key, value in panel.items() if value is not None}
    part = {"code": {"coding": [{"system": LOINC, "code": "8480-6"}]}}
    panel["component"] = [{**part, "valueQuantity": {"value": 1, "code": "mm[Hg]"}}]
    entries = [
        {"resource": {**panel, "id": f"b{i}", "subject": {"reference": f"Patient/{i}"}}} for i in range(6)
    ]
    folder = write_ndjson(
        tmp_path / "in", [{"resourceType": "Bundle", "type": "collection", "entry": entries}]
    )
    (folder / "broken.ndjson").write_text('{"resourceType": "Observation", \n')
    profile = profile_source(folder, STUDY, None)
    profile_row = profile.to_row()
    assert entry_of(profile_row, "loinc 8480-6")["type"] == "Observation.component"
    assert input_of(profile_row, "systolic")["state"] == "filled"
    assert [*profile_row["skipped"].values()] == ["<5"]  # suppressed


def test_site_configuration_is_a_source_and_a_server_needs_a_study(tmp_path, trikala):
    head = '[site]\nid = "x"\nname = "X"\n\n[consent]\nlegal_basis = "a vote"\n\n'
    (tmp_path / "site.toml").write_text(f'{head}[records]\nsource = "ndjson"\npaths = ["{trikala}"]\n')
    assert profile_source(tmp_path / "site.toml").to_row() == profile_source(trikala).to_row()
    (tmp_path / "web.toml").write_text(
        f'{head}[records]\nsource = "fhir"\nurl = "https://host.example/fhir"\n'
    )
    with pytest.raises(SettingsError, match="requires a study"):
        profile_source(tmp_path / "web.toml")


def test_table_json_and_page(tmp_path, trikala):
    (tmp_path / "study.toml").write_text(study_text())
    arguments = ["records", "profile", str(trikala), "--study", str(tmp_path / "study.toml")]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*arguments, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "systolic blood pressure" in done.output
    text = page.read_text()
    assert "systolic blood pressure" in text
    assert "<script" not in text
    output = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(output.stdout)["study"] == STUDY.study.title
    only = CliRunner().invoke(app, ["records", "profile", str(trikala), "--json"])
    assert "inputs" not in json.loads(only.stdout)
    assert CliRunner().invoke(app, ["records", "profile", str(tmp_path / "nowhere")]).exit_code != 0


def test_empty_input_is_exit_code_1(tmp_path):
    folder = write_ndjson(tmp_path / "in", [{"resourceType": "Patient", "id": "1"}])
    (tmp_path / "study.toml").write_text(study_text())
    arguments = ["records", "profile", str(folder), "--study", str(tmp_path / "study.toml")]
    assert CliRunner().invoke(app, arguments).exit_code == 1
