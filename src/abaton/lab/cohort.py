"""A synthetic cohort: four hospitals that see the same disease in different patients.

Everything is drawn from a seed. The hospitals differ in size, in case mix (older here, more smokers there) and in how
high they measure blood pressure, as real ones do; the disease follows the same rule everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from abaton.learning import Examples

FEATURES = ("age", "sex", "systolic", "cholesterol", "smoker", "bmi", "glucose", "family")


@dataclass(frozen=True, slots=True)
class Hospital:
    """Who comes to a hospital."""

    patients: int
    age: float
    smokers: float
    offset: float


HOSPITALS: Mapping[str, Hospital] = {
    "athens": Hospital(patients=900, age=58, smokers=0.40, offset=0.0),
    "kos": Hospital(patients=180, age=66, smokers=0.25, offset=6.0),
    "pergamon": Hospital(patients=420, age=52, smokers=0.30, offset=-4.0),
    "trikala": Hospital(patients=300, age=61, smokers=0.15, offset=3.0),
}


def cohort(seed: int, scale: float = 1.0) -> dict[str, Examples]:
    """The patients of each hospital: standardised features, and whether they have the disease.

    >>> sites = cohort(seed=1990)
    >>> [(name, data.x.shape) for name, data in sites.items()][:2]
    [('athens', (900, 8)), ('kos', (180, 8))]
    """
    return {
        name: _patients(hospital, max(40, round(hospital.patients * scale)), np.random.default_rng([seed, i]))
        for i, (name, hospital) in enumerate(HOSPITALS.items())
    }


def _patients(hospital: Hospital, count: int, rng: np.random.Generator) -> Examples:
    age = rng.normal(hospital.age, 10, count)
    sex = rng.random(count) < 0.5
    smoker = rng.random(count) < hospital.smokers
    bmi = rng.normal(27, 4, count)
    pressure = rng.normal(105 + 0.4 * age + 0.6 * (bmi - 27), 12, count)
    cholesterol = rng.normal(200, 38, count)
    glucose = rng.normal(98 + 1.2 * (bmi - 27), 18, count)
    family = rng.random(count) < 0.2
    # Risk is not a straight line: pressure harms smokers more, and sugar harms from a threshold on.
    risk = (
        0.10 * (age - 60)
        + 0.5 * sex
        + 0.05 * (pressure - 130) * (1 + smoker)
        + 0.02 * (cholesterol - 200)
        + 2.0 * (glucose > 120)
        + 0.8 * family
        - 0.6
    )
    ill = rng.random(count) < 1 / (1 + np.exp(-risk))
    measured = np.stack(
        [age, sex, pressure + hospital.offset, cholesterol, smoker, bmi, glucose, family], axis=1
    )
    centre = np.array([60, 0.5, 130, 200, 0.3, 27, 98, 0.2])
    spread = np.array([10, 0.5, 14, 38, 0.46, 4, 18, 0.4])
    return Examples(((measured - centre) / spread).astype(np.float32), ill.astype(np.int64))


def held_out(data: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """Examples for training and examples for the test, each class split in the same proportion."""
    rng = np.random.default_rng(seed)
    test = np.zeros(len(data), dtype=bool)
    for label in np.unique(data.y):
        rows = np.flatnonzero(data.y == label)
        test[rng.permutation(rows)[: round(share * len(rows))]] = True
    return Examples(data.x[~test], data.y[~test]), Examples(data.x[test], data.y[test])
