"""Patients of synthetic hospitals and their outcomes, from a seed.

In both cohorts the outcome model is the same at every hospital. The risk is not monotonic: a high and a low blood
pressure, weight or cholesterol add to it (the J-shaped curves of cardiology), and weak kidneys count for more in
patients with diabetes. The hospitals differ in size, case mix, missing measurements, units and codes, and in the speed
of their machines.

`FOUR_HOSPITALS` has strong effects and an outcome in one patient in nine, so that small examples find them.
`SIX_HOSPITALS` is the cohort of the demonstration: many moderate effects and few events. A hospital has 10 to 22 events
to train on, about one per model parameter; all six together have five. `SEVEN_HOSPITALS` adds one that codes the
outcome wrongly.

`tables` returns ready feature tables for examples without records and consents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from abaton.models import Examples

FIRST_DAY = date(2023, 3, 1)
"""The first day on which a check-up, the index of the study, may be."""


@dataclass(frozen=True, slots=True)
class SyntheticHospital:
    """Synthetic hospital: its patients, its coding and its machine.

    Attributes:
        patients: Number of patients with high blood pressure.
        age: Their mean age.
        smokers, diabetics: Fractions of patients who smoke, or have diabetes.
        missing: Fraction of missing laboratory values.
        si: Whether its laboratory reports amounts of substance (mmol/L) instead of masses (mg/dL).
        icd: Whether it codes diagnoses in ICD-10 instead of SNOMED CT.
        answers: Whether it codes smoking as LOINC answers, which the study does not list.
        unitless: Fraction of blood pressures without a unit.
        speed: Training speed; 1 is the fastest.
        uncoded, miscoded: Fraction of cases without a code of the outcome, and of other patients with one.
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
    uncoded: float = 0.0
    miscoded: float = 0.0


@dataclass(frozen=True, slots=True)
class RiskFactors:
    """True values of a synthetic patient, from which the outcome is drawn."""

    age: float
    female: bool
    diabetes: bool
    diuretic: bool
    smoking: str
    pressure: float
    cholesterol: float
    creatinine: float
    bmi: float
    visits: int


@dataclass(frozen=True, slots=True)
class Cohort:
    """Synthetic hospitals with one outcome model.

    Attributes:
        hospitals: The hospitals by name.
        log_odds: Log odds of heart failure within a year of the check-up.
        study: Name of the study document in this package.
    """

    hospitals: Mapping[str, SyntheticHospital]
    log_odds: Callable[[RiskFactors], float]
    study: str


def _strong_effects(patient: RiskFactors) -> float:
    """Return a synthetic patient's log odds with few strong effects."""
    return float(
        -7.2
        + 0.03 * (patient.age - 62)
        + 1.8 * ((patient.pressure - 138) / 15) ** 2
        + 1.1 * ((patient.bmi - 27) / 4.5) ** 2
        + (6.5 if patient.diabetes else 1.5) * np.log(patient.creatinine)
        + 0.9 * (patient.smoking == "daily")
        + 0.5 * patient.diabetes
        + 0.004 * (patient.cholesterol - 200)
        - 0.4 * patient.female
        + 0.3 * patient.visits
    )


def _moderate_effects(patient: RiskFactors) -> float:
    """Return a synthetic patient's log odds with many moderate effects."""
    return float(
        -5.0
        + 0.05 * (patient.age - 62)
        + 0.45 * ((patient.pressure - 136) / 15) ** 2
        + 0.40 * ((patient.bmi - 27) / 4.5) ** 2
        + (3.5 if patient.diabetes else 2.0) * np.log(patient.creatinine)
        + 0.10 * ((patient.cholesterol - 208) / 36) ** 2
        + 0.8 * (patient.smoking == "daily")
        + 0.3 * (patient.smoking == "former")
        + 0.6 * patient.diabetes
        - 0.4 * patient.female
        + 0.4 * patient.visits
        + 0.5 * patient.diuretic
    )


_FOUR = {
    "athens": SyntheticHospital(960, age=60, smokers=0.30, diabetics=0.20),
    "kos": SyntheticHospital(300, age=68, smokers=0.15, diabetics=0.30, missing=0.15, icd=True, speed=0.25),
    "pergamon": SyntheticHospital(
        500, age=56, smokers=0.40, diabetics=0.15, missing=0.10, si=True, speed=0.5
    ),
    "trikala": SyntheticHospital(
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

_SIX = {
    "athens": SyntheticHospital(600, age=62, smokers=0.30, diabetics=0.20),
    "epidauros": SyntheticHospital(300, age=60, smokers=0.25, diabetics=0.03, missing=0.10, speed=0.5),
    "kos": SyntheticHospital(320, age=66, smokers=0.15, diabetics=0.30, missing=0.15, icd=True, speed=0.25),
    "lebena": SyntheticHospital(
        260, age=64, smokers=0.20, diabetics=0.25, missing=0.10, si=True, icd=True, speed=0.25
    ),
    "pergamon": SyntheticHospital(
        500, age=56, smokers=0.40, diabetics=0.15, missing=0.10, si=True, speed=0.5
    ),
    "trikala": SyntheticHospital(
        420,
        age=64,
        smokers=0.20,
        diabetics=0.35,
        missing=0.15,
        icd=True,
        answers=True,
        unitless=0.1,
        speed=0.25,
    ),
}

_MISCODING = SyntheticHospital(
    500, age=63, smokers=0.25, diabetics=0.20, missing=0.10, speed=0.5, uncoded=0.40, miscoded=0.25
)

FOUR_HOSPITALS = Cohort(_FOUR, _strong_effects, "study.toml")
SIX_HOSPITALS = Cohort(_SIX, _moderate_effects, "demo_study.toml")
SEVEN_HOSPITALS = replace(SIX_HOSPITALS, hospitals={**_SIX, "messene": _MISCODING})


@dataclass(frozen=True, slots=True)
class SyntheticPatient:
    """Synthetic patient with the values in the hospital's records.

    Days are counted from the check-up. ``event`` is the day on which heart failure was diagnosed, if ever;
    ``follow_up_days`` is the day of the last visit.
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
    follow_up_days: int


def make_patients(cohort: Cohort, name: str, seed: int, *, scale: float = 1.0) -> list[SyntheticPatient]:
    """Return the synthetic patients of one hospital of a cohort."""
    hospital, rng = cohort.hospitals[name], np.random.default_rng([seed, list(cohort.hospitals).index(name)])
    size = max(12, round(hospital.patients * scale))
    return [_make_patient(hospital, cohort.log_odds, rng) for _ in range(size)]


def _make_patient(
    hospital: SyntheticHospital, log_odds: Callable[[RiskFactors], float], rng: np.random.Generator
) -> SyntheticPatient:
    age = float(np.clip(rng.normal(hospital.age, 10), 35, 88))
    female, diabetes = bool(rng.random() < 0.48), bool(rng.random() < hospital.diabetics)
    smoking = "daily" if rng.random() < hospital.smokers else "former" if rng.random() < 0.3 else "never"
    pressure = rng.normal(138 + 0.35 * (age - 60), 15)
    cholesterol, creatinine = rng.normal(208, 36), float(rng.lognormal(0.0, 0.3))
    bmi = rng.normal(28, 4.5)
    visits = int(rng.poisson(0.5 + 0.7 * diabetes))
    diuretic = bool(rng.random() < (0.45 if pressure > 150 else 0.2))
    factors = RiskFactors(
        age, female, diabetes, diuretic, smoking, pressure, cholesterol, creatinine, bmi, visits
    )
    has_event = bool(rng.random() < 1 / (1 + np.exp(-log_odds(factors))))
    if rng.random() < (hospital.uncoded if has_event else hospital.miscoded):
        has_event = not has_event
    checkup = date.fromordinal(FIRST_DAY.toordinal() + int(rng.integers(0, 365)))
    event = (
        int(rng.integers(5, 360))
        if has_event
        else int(rng.integers(380, 600))
        if rng.random() < 0.1
        else None
    )
    is_lost_to_follow_up = event is None and rng.random() < 0.06
    return SyntheticPatient(
        female=female,
        born=date.fromordinal(checkup.toordinal() - round(age * 365.25)),
        checkup=checkup,
        systolic=_pressures(pressure, rng),
        cholesterol=_maybe_missing(float(np.clip(cholesterol, 90, 420)), hospital, rng),
        creatinine=_maybe_missing(float(np.clip(creatinine, 0.3, 6)), hospital, rng),
        bmi=_maybe_missing(float(np.clip(bmi, 15, 55)), hospital, rng),
        smoking=smoking if rng.random() > hospital.missing / 2 else None,
        diabetes=diabetes,
        diuretic=diuretic,
        visits=tuple(sorted(int(day) for day in rng.integers(-700, -1, visits))),
        event=event,
        follow_up_days=int(rng.integers(60, 300)) if is_lost_to_follow_up else int(rng.integers(400, 640)),
    )


def _pressures(level: float, rng: np.random.Generator) -> tuple[tuple[int, float], ...]:
    """Return a synthetic patient's blood pressures: at most one before the check-up, one at it, one after it."""
    days = [*sorted(int(day) for day in rng.integers(-600, -20, int(rng.integers(0, 2)))), 0, 200]
    return tuple((day, float(np.clip(rng.normal(level + day / 100, 5), 85, 230))) for day in days)


def _maybe_missing(value: float, hospital: SyntheticHospital, rng: np.random.Generator) -> float | None:
    return None if rng.random() < hospital.missing else value


FEATURES = ("age", "female", "systolic", "cholesterol", "creatinine", "bmi", "smoker", "diabetes")
CLASSES = ("well", "heart failure")

_YEAR = 365
# Mean and standard deviation of each feature, for scaling; the mean replaces missing values.
_MEANS = np.array([62, 0.48, 140, 208, 1.0, 28, 0.28, 0.22])
_DEVIATIONS = np.array([10, 0.5, 15, 36, 0.32, 4.5, 0.45, 0.41])


def tables(seed: int, scale: float = 1.0) -> dict[str, Examples]:
    """Return the synthetic patients' standardised features at the check-up, and heart failure within a year.

    The cohort is `FOUR_HOSPITALS`. Patients with less than a year of follow-up are excluded, as in its study.

    >>> sites = tables(seed=1990)
    >>> [(name, data.x.shape[1]) for name, data in sites.items()][:2]
    [('athens', 8), ('kos', 8)]
    """
    tables_by_site = {}
    for name in FOUR_HOSPITALS.hospitals:
        patients = make_patients(FOUR_HOSPITALS, name, seed, scale=scale)
        known = [patient for patient in patients if _has_outcome(patient) or patient.follow_up_days >= _YEAR]
        x = (np.array([_row(patient) for patient in known]) - _MEANS) / _DEVIATIONS
        y = np.array([_has_outcome(patient) for patient in known])
        tables_by_site[name] = Examples(np.nan_to_num(x).astype(np.float32), y.astype(np.int64))
    return tables_by_site


def _has_outcome(patient: SyntheticPatient) -> bool:
    return patient.event is not None and patient.event <= _YEAR


def _row(patient: SyntheticPatient) -> list[float]:
    """Return a synthetic patient's features at the check-up; NaN where missing."""
    age = (patient.checkup - patient.born).days / 365.25
    systolic = [value for day, value in patient.systolic if day <= 0][-1]
    values = (patient.cholesterol, patient.creatinine, patient.bmi)
    measured = [np.nan if value is None else value for value in values]
    smoker = np.nan if patient.smoking is None else float(patient.smoking == "daily")
    return [age, float(patient.female), systolic, *measured, smoker, float(patient.diabetes)]
