"""Survival studies: from tables of synthetic patients with a known hazard to an evaluated model."""

from __future__ import annotations

import csv
import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from abaton.deployment.portable_model import to_portable_model
from abaton.errors import PayloadError, SettingsError
from abaton.metrics.survival import ConcordanceSums
from abaton.report.findings import main_finding
from abaton.site import load_site
from abaton.store import Store
from abaton.study import study_from_toml
from abaton.study_run import POOLED, StudyOptions, run_study
from abaton.study_run.evaluation import EvaluationGroup
from abaton.study_run.ingest import ingest_sites

NOW = datetime(2026, 7, 1, tzinfo=UTC)
FOLLOW_UP = timedelta(days=5 * 365)
LOG_HAZARD_RATIO = math.log(2)  # increase of the log hazard per standard deviation of the pressure

STUDY = """
index_date = { snomed = "185349003", view = "visits" }
outcome.heart_failure = { snomed = "84114007", up_to = "P1825D" }
eligibility.criteria = [{ type = "sex", sex = ["female", "male"] }]
centre = { name = "Centre", email = "a@b.example", city = "Kos", country = "GR", url = "https://centre.example" }
deidentification = { mechanism = "pseudonymise", identity = "pseudonym", dates = "shift" }

[inputs]
sex = {}
systolic = { loinc = "8480-6", unit = "mm[Hg]" }
pulse = { loinc = "8867-4", unit = "/min" }

[study]
id = "time-to-heart-failure"
title = "How long it takes until heart failure"
purpose = "prevention"
question = "Does blood pressure bring heart failure sooner? All patients are synthetic."
shared_data = ["updates"]
regions = ["GR"]
period = { start = 2026-01-01, end = 2029-12-31 }

[privacy]
disclosure = "exact"

[learning]
task = "survival"
model = "logistic"
rounds = 45
training = { epochs = 4, batch_size = 32, learning_rate = 0.1, momentum = 0.5 }
evaluation.groups = [{ input = "sex" }]
interpretability = { permutation_repeats = 3, partial_dependence = ["systolic"], grid_points = 5 }

[consent]
text = "You are asked to let your hospital use your blood pressure, pulse and diagnoses."
"""

MAPPING = """
[[tables]]
file = "people.csv"
subject = "patient"
sex = "sex"
death_date = "died"
date_column = "checked"
[tables.columns]
systolic = { code = "loinc|8480-6", unit = "mm[Hg]" }
pulse = { code = "loinc|8867-4", unit = "/min" }
failed = { code = "snomed|84114007", type = "condition", date_column = "failed" }

[[tables]]
file = "visits.csv"
subject = "patient"
date_column = "day"
[tables.code_rows]
type = "encounter"
code = "kind"
[tables.code_rows.codes]
check-up = { code = "snomed|185349003" }
other = { code = "snomed|308335008" }
"""

SITE = """
[site]
id = "{name}"
name = "{name}"
[records]
source = "csv"
paths = ["{name}"]
mapping = "mapping.toml"
[consent]
legal_basis = "synthetic patients"
[keys]
study = "study.key"
"""


def write_hospital(folder: Path, name: str, count: int) -> None:
    """Write patients whose hazard doubles per standard deviation of the pressure, with deaths and censoring."""
    rng = np.random.default_rng([7, sum(map(ord, name))])
    (folder / name).mkdir()
    with (
        (folder / name / "people.csv").open("w") as patients_file,
        (folder / name / "visits.csv").open("w") as visits_file,
    ):
        patients, visits = csv.writer(patients_file), csv.writer(visits_file)
        patients.writerow(["patient", "sex", "checked", "systolic", "pulse", "failed", "died"])
        visits.writerow(["patient", "day", "kind"])
        for i in range(count):
            patient, start = f"{name}-{i}", date(2015, 1, 1) + timedelta(days=int(rng.integers(900)))
            pressure, pulse = rng.normal(size=2)
            failure_date = start + timedelta(
                days=math.ceil(rng.exponential(6000 / math.exp(LOG_HAZARD_RATIO * pressure)))
            )
            death_date = start + timedelta(days=math.ceil(rng.exponential(9000)))
            last = start + timedelta(days=int(rng.integers(0, 2600)))
            if rng.random() < 0.03:
                failure_date = start - timedelta(days=int(rng.integers(1, 400)))
            end_date = min(last, death_date)
            failed = failure_date.isoformat() if failure_date <= end_date else ""
            patients.writerow(
                [patient, rng.choice(["male", "female"]), start, f"{140 + 20 * pressure:.4f}", f"{70 + 9 * pulse:.4f}",
                 failed, death_date.isoformat() if death_date < date(2024, 1, 1) else ""]
            )  # fmt: skip
            visits.writerow([patient, start, "check-up"])
            for day in {start + (end_date - start) // 2, end_date} - {start}:
                if day > start:
                    visits.writerow([patient, day, "other"])


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("times")
    for name, count in (("athens", 500), ("kos", 400), ("trikala", 300)):
        write_hospital(folder, name, count)
        (folder / f"{name}.toml").write_text(SITE.format(name=name))
    (folder / "mapping.toml").write_text(MAPPING)
    (folder / "study.toml").write_text(STUDY)
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.key").chmod(0o600)
    return folder


def labels_by_day(folder: Path, name: str) -> dict[str, tuple[float, int, int]]:
    """Return pressure, days and event of every subject with a label, counted day by day."""
    with (folder / name / "visits.csv").open() as file:
        visit_days: dict[str, list[str]] = {}
        for row in csv.DictReader(file):
            visit_days.setdefault(row["patient"], []).append(row["day"])
    labels = {}
    with (folder / name / "people.csv").open() as file:
        for patient in csv.DictReader(file):
            days = sorted(date.fromisoformat(day).toordinal() for day in visit_days[patient["patient"]])
            failed, died = (
                date.fromisoformat(patient[key]).toordinal() if patient[key] else 0
                for key in ("failed", "died")
            )
            day, end, last = days[0], days[0] + FOLLOW_UP.days, max(days[-1], failed)
            if 0 < failed <= day:
                continue
            count, event = 0, 0
            while day < min(end, last) and day != died:
                day, count = day + 1, count + 1
                if day == failed:
                    event = 1
                    break
            if count:
                labels[patient["patient"]] = (float(patient["systolic"]), count, event)
    return labels


def harrell(risk, days, events) -> float:
    """Return Harrell's concordance, computed pair by pair."""
    risk, days, event = (np.array(values, float)[:, None] for values in (risk, days, events))
    pairs = (event > 0) & ((days < days.T) | ((days == days.T) & (event.T == 0)))
    concordant = np.where(risk > risk.T, 1.0, np.where(risk == risk.T, 0.5, 0.0))
    return float(concordant[pairs].sum() / pairs.sum())


def sites(folder: Path) -> list:
    return [load_site(folder / f"{name}.toml") for name in ("athens", "kos", "trikala")]


def test_every_follow_up_time_equals_a_day_by_day_count(hospitals):
    for ingest in ingest_sites(study_from_toml(STUDY), sites(hospitals), NOW):
        assert ingest.table is not None, ingest.problem
        expected = labels_by_day(hospitals, ingest.name)
        labels = {
            ingest.patient_ids[subject]: row
            for subject, row in zip(ingest.table.subjects, ingest.table.y, strict=True)
        }
        assert {subject: tuple(row) for subject, row in labels.items()} == {
            subject: (days, event) for subject, (_, days, event) in expected.items()
        }
        assert ingest.table.is_survival
        assert 0.1 < ingest.table.y[:, 1].mean() < 0.4
        assert ingest.table.y[:, 0].max() == FOLLOW_UP.days


@pytest.fixture(scope="module")
def run(hospitals, tmp_path_factory):
    with Store(tmp_path_factory.mktemp("store") / "store") as store:
        options = StudyOptions(seed=3, baselines=True, bootstrap_resamples=100)
        yield run_study(study_from_toml(STUDY), sites(hospitals), store, options, now=NOW)


def test_a_survival_model_recovers_hazard_ratio_and_concordance(run, hospitals):
    evaluation = run.row.result["evaluation"]
    rows = {(line["model"], line["group"]): line for line in evaluation["rows"]}
    labels = [row for name in ("athens", "kos", "trikala") for row in labels_by_day(hospitals, name).values()]
    truth = harrell(*zip(*labels, strict=True))
    for model in ("community", POOLED):
        concordance = rows[model, "all sites"]["metrics"]["concordance"]
        assert concordance["low"] < truth < concordance["high"]
        assert concordance["value"] == pytest.approx(truth, abs=0.05)
    assert rows["community", "sex: female"]["metrics"]["concordance"]["value"] > 0.55
    weights = {
        coefficient["column"]: coefficient["per_std"]
        for coefficient in run.row.result["interpretability"]["coefficients"]
    }
    assert weights["systolic"] == pytest.approx(LOG_HAZARD_RATIO, abs=0.2)
    assert abs(weights["pulse"]) < 0.15
    assert abs(weights["sex=male"] - weights["sex=female"]) < 0.3


def test_findings_and_interpretability_of_a_survival_study(run):
    result = run.row.result
    finding = main_finding({"outcome": "heart_failure"}, result["evaluation"])
    assert (
        "predicts heart failure with a concordance (Harrell's C, pairs within sites) of 0." in finding["text"]
    )
    assert "excludes the value of a model without information" in finding["certainty"]
    interpretability = result["interpretability"]
    assert interpretability["metric"] == "concordance"
    best = next(row for row in interpretability["importance"] if row["grouping"] == "all")
    assert (best["input"], best["value"] > 0.05) == ("systolic", True)
    curve = [probability for (probability,) in interpretability["partial_dependence"][0]["all"]]
    assert curve == sorted(curve)
    assert 0 < curve[0] < curve[-1] < 1
    local_benefit = result["evaluation"]["local_benefit"]
    assert local_benefit["metric"] == "concordance"
    assert all(0 <= site["local_only"]["value"] <= 1 for site in local_benefit["sites"].values())


def test_new_patients_get_a_probability_within_the_follow_up(run):
    low, high = run.predict({"sex=female": [1, 1], "sex=male": [0, 0], "sex=other": [0, 0],
                                "systolic": [110, 190], "pulse": [70, 70]})  # fmt: skip
    assert 0 < float(low) < 0.2 < float(high) < 1
    with pytest.raises(SettingsError, match="survival models cannot be exported"):
        to_portable_model(run)


def test_concordance_sums_round_trip_and_impossible_ones_are_refused():
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    from abaton.study_run.messages import counts_from_row, counts_to_row

    counts = {
        EvaluationGroup("all sites", "all"): ConcordanceSums(40, 12, 300.5, 420.0, 3000.0, 4000.0, 6000.0)
    }
    assert counts_from_row(counts_to_row(counts), 0) == counts
    for sums in (
        [40, 41, 1, 2, 1, 1, 1],
        [40, 12, 5, 2, 1, 1, 1],
        [40, 12, -1, 2, 1, 1, 1],
        [4.5, 1, 1, 2, 1, 1, 1],
    ):
        with pytest.raises(PayloadError):
            counts_from_row([["all sites", "all", sums]], 0)
