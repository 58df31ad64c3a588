"""The four hospitals as ready tables: for trying things out where records and consents are not the question."""

from __future__ import annotations

import numpy as np

from abaton.lab.hospitals.people import HOSPITALS, Person, people
from abaton.learners import Examples

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
