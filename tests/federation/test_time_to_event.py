"""How long it takes until something happens: from tables of invented people with a known hazard to a judged model."""

from __future__ import annotations

import csv
import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from abaton.deployment.portable_model import usable
from abaton.errors import PayloadError, SettingsError
from abaton.federation import POOLED, StudyOptions, run_study
from abaton.metrics.survival import PairSums
from abaton.report.findings import finding
from abaton.site import load_site
from abaton.store import Store
from abaton.study import study_from_toml
from abaton.study_run.evaluation import Subset
from abaton.study_run.ingest import read_sites

NOW = datetime(2026, 7, 1, tzinfo=UTC)
FOLLOW_UP = timedelta(days=5 * 365)
DOUBLED = math.log(2)  # by how much a deviation more of the pressure raises the log hazard

STUDY = """
index = { snomed = "185349003", view = "visits" }
outcome.heart_failure = { snomed = "84114007", up_to = "P1825D" }
eligibility.criteria = [{ what = "sex", sex = ["female", "male"] }]
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
question = "Does blood pressure bring heart failure sooner? Nobody here is real."
shares = ["updates"]
regions = ["GR"]
period = { start = 2026-01-01, end = 2029-12-31 }

[learning]
task = "time"
network = "logistic"
rounds = 45
training = { epochs = 4, batch_size = 32, learning_rate = 0.1, momentum = 0.5 }
evaluation.groups = [{ input = "sex" }]
explanation = { importance = 3, dependence = ["systolic"], points = 5 }

[consent]
text = "You are asked to let your hospital use your blood pressure, pulse and diagnoses."
"""

MAPPING = """
[[tables]]
file = "people.csv"
subject = "patient"
sex = "sex"
died = "died"
when = "checked"
[tables.columns]
systolic = { code = "loinc|8480-6", unit = "mm[Hg]" }
pulse = { code = "loinc|8867-4", unit = "/min" }
failed = { code = "snomed|84114007", type = "condition", when = "failed" }

[[tables]]
file = "visits.csv"
subject = "patient"
when = "day"
[tables.rows]
type = "encounter"
code = "kind"
[tables.rows.codes]
check-up = { code = "snomed|185349003" }
other = { code = "snomed|308335008" }
"""

SITE = """
[site]
id = "{name}"
name = "{name}"
[records]
kind = "csv"
paths = ["{name}"]
mapping = "mapping.toml"
[consent]
ground = "Nobody here is real"
[keys]
study = "study.key"
"""


def invent(folder: Path, name: str, number: int) -> None:
    """People whose hazard doubles with each deviation of the pressure; some die, some stop coming, some come ill."""
    chance = np.random.default_rng([7, sum(map(ord, name))])
    (folder / name).mkdir()
    with (
        (folder / name / "people.csv").open("w") as people,
        (folder / name / "visits.csv").open("w") as visits,
    ):
        one, two = csv.writer(people), csv.writer(visits)
        one.writerow(["patient", "sex", "checked", "systolic", "pulse", "failed", "died"])
        two.writerow(["patient", "day", "kind"])
        for i in range(number):
            who, start = f"{name}-{i}", date(2015, 1, 1) + timedelta(days=int(chance.integers(900)))
            pressure, pulse = chance.normal(size=2)
            fails = start + timedelta(days=math.ceil(chance.exponential(6000 / math.exp(DOUBLED * pressure))))
            dies = start + timedelta(days=math.ceil(chance.exponential(9000)))
            last = start + timedelta(days=int(chance.integers(0, 2600)))
            if chance.random() < 0.03:
                fails = start - timedelta(days=int(chance.integers(1, 400)))
            ended = min(last, dies)
            failed = fails.isoformat() if fails <= ended else ""
            one.writerow(
                [who, chance.choice(["male", "female"]), start, f"{140 + 20 * pressure:.4f}", f"{70 + 9 * pulse:.4f}",
                 failed, dies.isoformat() if dies < date(2024, 1, 1) else ""]
            )  # fmt: skip
            two.writerow([who, start, "check-up"])
            for day in {start + (ended - start) // 2, ended} - {start}:
                if day > start:
                    two.writerow([who, day, "other"])


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("times")
    for name, number in (("athens", 500), ("kos", 400), ("trikala", 300)):
        invent(folder, name, number)
        (folder / f"{name}.toml").write_text(SITE.format(name=name))
    (folder / "mapping.toml").write_text(MAPPING)
    (folder / "study.toml").write_text(STUDY)
    (folder / "study.key").write_bytes(bytes(range(32)))
    (folder / "study.key").chmod(0o600)
    return folder


def walked(folder: Path, name: str) -> dict[str, tuple[float, int, int]]:
    """Of everybody with a label: the pressure, days and whether it happened, by going through the days one by one."""
    with (folder / name / "visits.csv").open() as file:
        came: dict[str, list[str]] = {}
        for row in csv.DictReader(file):
            came.setdefault(row["patient"], []).append(row["day"])
    made = {}
    with (folder / name / "people.csv").open() as file:
        for person in csv.DictReader(file):
            days = sorted(date.fromisoformat(day).toordinal() for day in came[person["patient"]])
            ill, died = (
                date.fromisoformat(person[key]).toordinal() if person[key] else 0
                for key in ("failed", "died")
            )
            day, end, last = days[0], days[0] + FOLLOW_UP.days, max(days[-1], ill)
            if 0 < ill <= day:
                continue
            count, happened = 0, 0
            while day < min(end, last) and day != died:
                day, count = day + 1, count + 1
                if day == ill:
                    happened = 1
                    break
            if count:
                made[person["patient"]] = (float(person["systolic"]), count, happened)
    return made


def harrell(risk, days, happened) -> float:
    """Harrell's concordance, pair by pair."""
    risk, days, ill = (np.array(each, float)[:, None] for each in (risk, days, happened))
    pairs = (ill > 0) & ((days < days.T) | ((days == days.T) & (ill.T == 0)))
    right = np.where(risk > risk.T, 1.0, np.where(risk == risk.T, 0.5, 0.0))
    return float(right[pairs].sum() / pairs.sum())


def sites(folder: Path) -> list:
    return [load_site(folder / f"{name}.toml") for name in ("athens", "kos", "trikala")]


def test_every_time_is_what_going_through_the_days_gives(hospitals):
    for reading in read_sites(study_from_toml(STUDY), sites(hospitals), NOW):
        assert reading.table is not None, reading.problem
        expected = walked(hospitals, reading.name)
        found = {
            reading.people[who]: row for who, row in zip(reading.table.subjects, reading.table.y, strict=True)
        }
        assert {who: tuple(row) for who, row in found.items()} == {
            who: (days, happened) for who, (_, days, happened) in expected.items()
        }
        assert reading.table.timed
        assert 0.1 < reading.table.y[:, 1].mean() < 0.4
        assert reading.table.y[:, 0].max() == FOLLOW_UP.days


@pytest.fixture(scope="module")
def judged(hospitals, tmp_path_factory):
    with Store(tmp_path_factory.mktemp("store") / "store") as store:
        options = StudyOptions(seed=3, baselines=True, resamples=100)
        yield run_study(study_from_toml(STUDY), sites(hospitals), store, options, now=NOW)


def test_a_model_of_times_finds_the_hazard_and_the_concordance_that_are_there(judged, hospitals):
    evaluation = judged.row.result["evaluation"]
    lines = {(line["model"], line["subset"]): line for line in evaluation["lines"]}
    everybody = [row for name in ("athens", "kos", "trikala") for row in walked(hospitals, name).values()]
    truth = harrell(*zip(*everybody, strict=True))
    for model in ("community", POOLED):
        told = lines[model, "all sites"]["measures"]["concordance"]
        assert told["low"] < truth < told["high"]
        assert told["value"] == pytest.approx(truth, abs=0.05)
    assert lines["community", "sex: female"]["measures"]["concordance"]["value"] > 0.55
    weights = {
        each["column"]: each["per_deviation"] for each in judged.row.result["explanation"]["coefficients"]
    }
    assert weights["systolic"] == pytest.approx(DOUBLED, abs=0.2)
    assert abs(weights["pulse"]) < 0.15
    assert abs(weights["sex=male"] - weights["sex=female"]) < 0.3


def test_the_report_says_what_was_found_and_what_it_goes_by(judged):
    result = judged.row.result
    told = finding({"outcome": "heart_failure"}, result["evaluation"])
    assert "predicts heart failure with a concordance (Harrell's C) of 0." in told["words"]
    assert "all of it is better than chance" in told["sure"]
    explained = result["explanation"]
    assert explained["measure"] == "concordance"
    best = next(each for each in explained["importance"] if each["of"] == "all")
    assert (best["input"], best["value"] > 0.05) == ("systolic", True)
    curve = [chance for (chance,) in explained["dependence"][0]["all"]]
    assert curve == sorted(curve)
    assert 0 < curve[0] < curve[-1] < 1
    gains = result["evaluation"]["gains"]
    assert gains["measure"] == "concordance"
    assert all(0 <= each["own"]["value"] <= 1 for each in gains["sites"].values())


def test_new_people_are_told_their_chance_within_the_follow_up(judged):
    low, high = judged.predict({"sex=female": [1, 1], "sex=male": [0, 0], "sex=other": [0, 0],
                                "systolic": [110, 190], "pulse": [70, 70]})  # fmt: skip
    assert 0 < float(low) < 0.2 < float(high) < 1
    with pytest.raises(SettingsError, match="times"):
        usable(judged)


def test_sums_of_pairs_travel_and_impossible_ones_are_refused():
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    from abaton.study_run.messages import told_from, told_row

    told = {Subset("all sites", "all"): PairSums(40, 12, 300.5, 420.0, 3000.0, 4000.0, 6000.0)}
    assert told_from(told_row(told), 0) == told
    for wrong in (
        [40, 41, 1, 2, 1, 1, 1],
        [40, 12, 5, 2, 1, 1, 1],
        [40, 12, -1, 2, 1, 1, 1],
        [4.5, 1, 1, 2, 1, 1, 1],
    ):
        with pytest.raises(PayloadError):
            told_from([["all sites", "all", wrong]], 0)
