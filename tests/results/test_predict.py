"""A model is asked about new people, whose records go the study's own way; who does not fit is refused or flagged."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.errors import SettingsError
from abaton.federation import Run, read_sites
from abaton.lab.demo import NOW
from abaton.lab.synthetic_hospitals import records
from abaton.deployment import Unfit, predict
from abaton.site import load_site
from abaton.study import study_from_toml

KEY = bytes(range(32))
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def bundle(path: Path, people: int = 1, change: Change = lambda resource: resource, skip: int = 0) -> Path:
    """The first people of a hospital that nobody trained on, without their outcome."""
    wanted = {f"athens-{i}" for i in range(1 + skip, 1 + skip + people)}
    entries = []
    for resource in records("athens", seed=77, scale=0.25):
        who = (
            resource.get("subject", {}).get("reference", f"Patient/{resource['id']}").removeprefix("Patient/")
        )
        codes = json.dumps(resource.get("code", ""))
        if who in wanted and "84114007" not in codes and (kept := change(resource)) is not None:
            entries.append({"resource": kept})
    path.write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries}))
    return path


def about(code: str, do: Change) -> Change:
    return lambda resource: do(resource) if code in json.dumps(resource.get("code", "")) else resource


def with_unit(unit: str) -> Change:
    def do(resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "valueQuantity": {**resource["valueQuantity"], "unit": unit, "code": unit}}

    return do


def times(factor: float) -> Change:
    def do(resource: dict[str, Any]) -> dict[str, Any]:
        quantity = resource["valueQuantity"]
        return {**resource, "valueQuantity": {**quantity, "value": factor * quantity["value"]}}

    return do


def refusals(run: Run, source: Path) -> list[str]:
    with pytest.raises(Unfit) as caught:
        predict(run, source, NOW, KEY)
    return [str(each) for each in caught.value.misfits]


def test_people_go_the_studys_own_way(plain, tmp_path):
    """What the pipeline of a study makes of a hospital's records is what the model is asked about."""
    file = load_site(Path(plain.row.recipe["settings"]["sites"][0]))
    study = study_from_toml(plain.row.recipe["settings"]["study"])
    (reading,) = read_sites(study, [file], NOW)
    asked = plain.predict(reading.table.x)
    expected = {reading.people[who]: said for who, said in zip(reading.table.subjects, asked, strict=True)}
    key = (file.folder / "study.key").read_bytes()
    made = predict(plain, Path(file.name), NOW, key)
    told = {each.id: each.said for each in made.people}
    assert expected.keys() < told.keys()  # those without an outcome are asked about, too
    for who, said in expected.items():
        np.testing.assert_allclose(told[who], said, atol=1e-6)
    here = predict(plain, file.folder, NOW, KEY)  # dates are shifted otherwise: an age may be another year
    assert [each.id for each in here.people] == [each.id for each in made.people]
    np.testing.assert_allclose([p.said for p in here.people], [p.said for p in made.people], atol=0.02)


def test_one_bundle_in_one_command(ended, tmp_path):
    source, out = bundle(tmp_path / "new.json"), tmp_path / "said.csv"
    base = ["model", "predict", "ended", str(source), "--store", str(ended.store.folder)]
    told = CliRunner().invoke(app, [*base, "--json", "--out", str(out)])
    assert told.exit_code == 0, told.output
    (person,) = json.loads(told.stdout)["people"]
    assert person["person"] == "athens-1"
    assert sum(person["said"].values()) == pytest.approx(1.0, abs=1e-6)
    intercept, slope = ended.result["evaluation"]["recalibration"]["community"]
    odds = np.log(person["said"]["yes"] / person["said"]["no"])
    assert np.log(person["calibrated"]["yes"] / person["calibrated"]["no"]) == pytest.approx(
        intercept + slope * odds, abs=1e-4
    )
    (line,) = csv.DictReader(out.read_text().splitlines())
    assert float(line["calibrated yes"]) == pytest.approx(person["calibrated"]["yes"], abs=1e-5)
    shown = CliRunner().invoke(app, base)
    assert "athens-1" in shown.stdout
    kept = sorted(path.name for path in (ended.store.folder / "predictions").iterdir())
    assert [
        name for name in kept if not name.startswith("governance.db")
    ] == []  # a ground in the chain, no record


def test_a_sites_own_model_is_asked_at_the_site(ended, tmp_path):
    source = bundle(tmp_path / "new.json", 3)
    whole = predict(ended, source, NOW, KEY)
    own = predict(ended, source, NOW, KEY, site="athens")
    assert own.about["model"] == "interpolate at athens"
    assert [each.id for each in own.people] == [each.id for each in whole.people]
    assert [each.said for each in own.people] != [each.said for each in whole.people]
    with pytest.raises(SettingsError, match="no model of the site's own"):
        predict(ended, source, NOW, KEY, site="delphi")


def test_a_wrong_unit_is_refused_and_one_that_converts_is_not(ended, tmp_path):
    pressure = about("8480-6", with_unit("kg"))
    (first, second) = refusals(ended, bundle(tmp_path / "kg.json", 1, pressure))
    assert first.startswith("systolic: unit that cannot be converted")
    assert second.startswith("systolic: nobody has a value")
    right = predict(ended, bundle(tmp_path / "mm.json"), NOW, KEY)
    kilopascal = about("8480-6", lambda r: times(0.133322)(with_unit("kPa")(r)))
    same = predict(ended, bundle(tmp_path / "kPa.json", 1, kilopascal), NOW, KEY)
    np.testing.assert_allclose(same.people[0].said, right.people[0].said, atol=1e-4)


def test_a_missing_column_is_refused_or_said(ended, tmp_path):
    source = bundle(tmp_path / "none.json", 1, about("8480-6", lambda resource: None))
    assert [each.split(":")[0] for each in refusals(ended, source)] == ["systolic"]
    made = predict(ended, source, NOW, KEY, anyway=True)
    assert made.people[0].filled == ("systolic",)
    assert [each.about for each in made.misfits if each.refuses] == ["systolic"]


def test_whom_the_study_would_not_take_is_left_out(ended, tmp_path):
    nobody = about("38341003", lambda resource: None)
    assert "whom the study would not take" in refusals(ended, bundle(tmp_path / "well.json", 1, nobody))[0]


def test_another_population_is_flagged_and_an_impossible_one_refused(ended, tmp_path):
    usual = predict(ended, bundle(tmp_path / "usual.json", 20), NOW, KEY)
    assert not [each for each in usual.misfits if each.about in ("systolic", "bmi")]
    higher = predict(ended, bundle(tmp_path / "high.json", 20, about("8480-6", times(1.25))), NOW, KEY)
    assert "the model knows such people less well" in next(
        each.what for each in higher.misfits if each.about == "systolic"
    )
    (found,) = refusals(ended, bundle(tmp_path / "far.json", 20, about("39156-5", times(3.0))))
    assert found.startswith("bmi: the mean is")
    assert "another unit, or another population" in found
    one = predict(ended, bundle(tmp_path / "one.json", 1, about("8480-6", times(1.6))), NOW, KEY, anyway=True)
    assert one.people[0].unusual == ("systolic",)


@pytest.mark.parametrize(
    ("code", "factor", "column"),
    [
        ("2093-3", 1 / 38.665, "cholesterol"),
        ("2160-0", 88.42, "creatinine"),
        ("8480-6", 0.133322, "systolic"),
    ],
    ids=["mmol/L as mg/dL", "umol/L as mg/dL", "kPa as mm[Hg]"],
)
def test_numbers_under_the_wrong_units_name_are_refused_for_one_person_too(
    ended, tmp_path, code, factor, column
):
    found = refusals(ended, bundle(tmp_path / "wrong.json", 1, about(code, times(factor)), skip=1))
    assert any(each.startswith(f"{column}: the mean is") and "another unit" in each for each in found)


def test_children_and_an_empty_bundle_are_refused(ended, tmp_path):
    def young(resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "birthDate": "2016-05-01"} if resource["resourceType"] == "Patient" else resource

    assert "whom the study would not take" in refusals(ended, bundle(tmp_path / "young.json", 3, young))[0]
    assert refusals(ended, bundle(tmp_path / "empty.json", 0)) == [
        "records: there is nobody whom the model could be asked about"
    ]


def test_every_reason_has_a_line_and_no_record_is_in_it(ended, tmp_path):
    source = bundle(tmp_path / "kg.json", 1, about("8480-6", with_unit("kg")))
    told = CliRunner().invoke(
        app, ["model", "predict", "ended", str(source), "--store", str(ended.store.folder)]
    )
    assert told.exit_code == 1
    lines = told.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:2]] == ["systolic", "systolic"]
    assert lines[-1].startswith("abaton: nothing was foretold")
    assert "athens-1" not in told.output
    gone = CliRunner().invoke(
        app, ["model", "predict", "ended", "nowhere", "--store", str(ended.store.folder)]
    )
    assert "no such file or folder" in str(gone.exception)


def test_no_id_becomes_a_formula(ended, tmp_path):
    from abaton.deployment.prediction import Person, Predictions

    made = Predictions({}, ("no", "yes"), [Person("=1+1", (0.1, 0.9), (0.2, 0.8), (), ())], [])
    assert made.csv().splitlines()[1].startswith("'=1+1,")
