"""Who comes to four invented hospitals, and who of them falls ill: drawn from a seed, nobody is real.

The rule that makes people ill is the same everywhere: age, smoking and diabetes add to the risk; both a high and a low
blood pressure do, and both a high and a low weight (the J-shaped curves of cardiology); weak kidneys count for more in
people with diabetes. Such a rule takes a model that can bend, and many people with the outcome, which is rare: more
than one hospital has. The hospitals differ in size, case mix, in what they forget to measure, in the units and codes
they write, and in how fast their machines are.

The four hospitals as ready tables: for trying things out where records and consents are not the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np

from abaton.learners import Examples

FIRST_DAY = date(2023, 3, 1)
"""The first day on which a check-up, the index of the study, may be."""


@dataclass(frozen=True, slots=True)
class Hospital:
    """A hospital: its patients, its habits and its machine.

    Attributes:
        patients: How many people with high blood pressure it cares for.
        age: Their mean age.
        smokers, diabetics: Which part of them smoke, or have diabetes.
        missing: Which part of the laboratory values it does not have.
        si: Whether its laboratory tells amounts of substance (mmol/L) instead of masses (mg/dL).
        icd: Whether it codes diagnoses in ICD-10 instead of SNOMED CT.
        answers: Whether it writes smoking as answers of LOINC, which the study does not list.
        unitless: Which part of its blood pressures have no unit.
        speed: How fast it trains; 1 is the fastest.
    """

    patients: int
    age: float
    smokers: float
    diabetics: float
    missing: float = 0.05
    si: bool = False
    icd: bool = False
    answers: bool = False
    unitless: float = 0.0
    speed: float = 1.0


HOSPITALS: Mapping[str, Hospital] = {
    "athens": Hospital(960, age=60, smokers=0.30, diabetics=0.20),
    "kos": Hospital(300, age=68, smokers=0.15, diabetics=0.30, missing=0.15, icd=True, speed=0.25),
    "pergamon": Hospital(500, age=56, smokers=0.40, diabetics=0.15, missing=0.10, si=True, speed=0.5),
    "trikala": Hospital(
        400,
        age=64,
        smokers=0.20,
        diabetics=0.35,
        missing=0.15,
        icd=True,
        answers=True,
        unitless=0.1,
        speed=0.1,
    ),
}


@dataclass(frozen=True, slots=True)
class Person:
    """One invented person, as the hospital knows them.

    Days are counted from the check-up. ``event`` is the day on which heart failure was found, if ever; ``watched`` is
    the day of the last visit.
    """

    female: bool
    born: date
    checkup: date
    systolic: tuple[tuple[int, float], ...]
    cholesterol: float | None
    creatinine: float | None
    bmi: float | None
    smoking: str | None
    diabetes: bool
    diuretic: bool
    visits: tuple[int, ...]
    event: int | None
    watched: int


def people(hospital: Hospital, rng: np.random.Generator, *, scale: float = 1.0) -> list[Person]:
    """The people of one hospital, in the order in which they came."""
    return [_person(hospital, rng) for _ in range(max(12, round(hospital.patients * scale)))]


def _person(hospital: Hospital, rng: np.random.Generator) -> Person:
    age = float(np.clip(rng.normal(hospital.age, 10), 35, 88))
    female, diabetes = bool(rng.random() < 0.48), bool(rng.random() < hospital.diabetics)
    smoking = "daily" if rng.random() < hospital.smokers else "former" if rng.random() < 0.3 else "never"
    pressure = rng.normal(138 + 0.35 * (age - 60), 15)
    cholesterol, creatinine = rng.normal(208, 36), float(rng.lognormal(0.0, 0.3))
    bmi = rng.normal(28, 4.5)
    visits = int(rng.poisson(0.5 + 0.7 * diabetes))
    # The same rule at every hospital; log-odds of heart failure within a year of the check-up.
    odds = (
        -7.2
        + 0.03 * (age - 62)
        + 1.8 * ((pressure - 138) / 15) ** 2
        + 1.1 * ((bmi - 27) / 4.5) ** 2
        + (6.5 if diabetes else 1.5) * np.log(creatinine)
        + 0.9 * (smoking == "daily")
        + 0.5 * diabetes
        + 0.004 * (cholesterol - 200)
        - 0.4 * female
        + 0.3 * visits
    )
    ill = rng.random() < 1 / (1 + np.exp(-odds))
    checkup = date.fromordinal(FIRST_DAY.toordinal() + int(rng.integers(0, 365)))
    event = int(rng.integers(5, 360)) if ill else int(rng.integers(380, 600)) if rng.random() < 0.1 else None
    lost = event is None and rng.random() < 0.06
    return Person(
        female=female,
        born=date.fromordinal(checkup.toordinal() - round(age * 365.25)),
        checkup=checkup,
        systolic=_pressures(pressure, rng),
        cholesterol=_maybe(float(np.clip(cholesterol, 90, 420)), hospital, rng),
        creatinine=_maybe(float(np.clip(creatinine, 0.3, 6)), hospital, rng),
        bmi=_maybe(float(np.clip(bmi, 15, 55)), hospital, rng),
        smoking=smoking if rng.random() > hospital.missing / 2 else None,
        diabetes=diabetes,
        diuretic=bool(rng.random() < (0.45 if pressure > 150 else 0.2)),
        visits=tuple(sorted(int(day) for day in rng.integers(-700, -1, visits))),
        event=event,
        watched=int(rng.integers(60, 300)) if lost else int(rng.integers(400, 640)),
    )


def _pressures(level: float, rng: np.random.Generator) -> tuple[tuple[int, float], ...]:
    """Sometimes a measurement before the check-up, one at it, and one after it that a study must not use."""
    days = [*sorted(int(day) for day in rng.integers(-600, -20, int(rng.integers(0, 2)))), 0, 200]
    return tuple((day, float(np.clip(rng.normal(level + day / 100, 5), 85, 230))) for day in days)


def _maybe(value: float, hospital: Hospital, rng: np.random.Generator) -> float | None:
    return None if rng.random() < hospital.missing else value


FEATURES = ("age", "female", "systolic", "cholesterol", "creatinine", "bmi", "smoker", "diabetes")
CLASSES = ("well", "heart failure")

_YEAR = 365
# A usual value of each feature, which also stands where a hospital has none, and how much people differ in it.
_USUAL = np.array([62, 0.48, 140, 208, 1.0, 28, 0.28, 0.22])
_SPREAD = np.array([10, 0.5, 15, 36, 0.32, 4.5, 0.45, 0.41])


def tables(seed: int, scale: float = 1.0) -> dict[str, Examples]:
    """Each hospital's people: standardised features at the check-up, and whether heart failure came within a year.

    Those who were not watched for a year are left out, as the study of the demonstration does.

    >>> sites = tables(seed=1990)
    >>> [(name, data.x.shape[1]) for name, data in sites.items()][:2]
    [('athens', 8), ('kos', 8)]
    """
    made = {}
    for place, (name, hospital) in enumerate(HOSPITALS.items()):
        drawn = people(hospital, np.random.default_rng([seed, place]), scale=scale)
        known = [person for person in drawn if _ill(person) or person.watched >= _YEAR]
        x = (np.array([_row(person) for person in known]) - _USUAL) / _SPREAD
        y = np.array([_ill(person) for person in known])
        made[name] = Examples(np.nan_to_num(x).astype(np.float32), y.astype(np.int64))
    return made


def _ill(person: Person) -> bool:
    return person.event is not None and person.event <= _YEAR


def _row(person: Person) -> list[float]:
    """What is known at the check-up; NaN where nothing is."""
    age = (person.checkup - person.born).days / 365.25
    systolic = [value for day, value in person.systolic if day <= 0][-1]
    values = (person.cholesterol, person.creatinine, person.bmi)
    measured = [np.nan if value is None else value for value in values]
    smoker = np.nan if person.smoking is None else float(person.smoking == "daily")
    return [age, float(person.female), systolic, *measured, smoker, float(person.diabetes)]
