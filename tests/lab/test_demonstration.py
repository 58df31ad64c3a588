"""The demonstration: a rare outcome, weights that differ, and a hospital that miscodes the outcome."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from abaton.lab.demo import NOW, make_demo
from abaton.lab.synthetic_hospitals import SEVEN_HOSPITALS, SIX_HOSPITALS, make_patients, study_text
from abaton.report.findings import OVERALL, local_benefits
from abaton.store import Store, latest_weights
from abaton.study import lint_study, study_from_toml
from abaton.study_run import StudyOptions, run_study

SEED = 11


def outcome_rate(cohort, name: str) -> float:
    patients = make_patients(cohort, name, SEED)
    return float(np.mean([patient.event is not None and patient.event <= 365 for patient in patients]))


def test_the_outcome_is_rare_except_where_it_is_miscoded():
    rates = {name: outcome_rate(SEVEN_HOSPITALS, name) for name in SEVEN_HOSPITALS.hospitals}
    miscoded = rates.pop("messene")
    assert all(0.02 < rate < 0.15 for rate in rates.values()), rates
    assert 0.04 < np.mean(list(rates.values())) < 0.10
    assert 0.22 < miscoded < 0.34


def test_the_seventh_hospital_does_not_change_the_others():
    assert all(
        make_patients(SIX_HOSPITALS, name, SEED) == make_patients(SEVEN_HOSPITALS, name, SEED)
        for name in SIX_HOSPITALS.hospitals
    )


def test_its_study_says_everything():
    assert lint_study(study_from_toml(study_text(SIX_HOSPITALS)), date(2026, 11, 16)) == []


@pytest.mark.slow
def test_weights_differ_and_the_hospital_that_miscodes_has_little(tmp_path):
    demonstration = make_demo(tmp_path / "demo", SEED, cohort=SEVEN_HOSPITALS)
    with Store(tmp_path / "store") as store:
        options = StudyOptions(SEED, demonstration.profiles)
        run = run_study(demonstration.study, demonstration.sites, store, options, now=NOW)
        weights = latest_weights(store, run.row.run)
    patients = {name: hospital.patients for name, hospital in SEVEN_HOSPITALS.hospitals.items()}
    assert weights.pop("messene") < 0.5 * patients["messene"] / sum(patients.values())
    assert max(weights.values()) - min(weights.values()) > 0.01
    (overall,) = [row for row in local_benefits(run.result["evaluation"]) if row["site"] == OVERALL]
    assert overall["benefit"]["low"] < overall["benefit"]["value"] < overall["benefit"]["high"]
