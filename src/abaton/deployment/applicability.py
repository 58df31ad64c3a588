"""Applicability of a model to new patients: eligibility, units, missing inputs and shifts of the distribution.

The reference is what the sites released for scaling: mean and standard deviation of each column, and the fraction of
training subjects with a value. An issue is either a warning or blocks the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.deployment.new_patients import NewPatients
from abaton.features import FeatureColumn, MissingReason

_UNITS = (
    *(MissingReason.NO_UNIT, MissingReason.UNKNOWN_UNIT, MissingReason.OTHER_UNIT),
    *(MissingReason.IMPLAUSIBLE, MissingReason.MOSTLY_IMPLAUSIBLE),
)
_CODES = (MissingReason.OTHER_CODE, MissingReason.OTHER_SYSTEM)
_REQUIRED_FRACTION = 0.9  # inputs known for this fraction of training subjects are required
_MAX_WRONG_UNIT_FRACTION = 0.2  # from this fraction on, wrong units and implausible values block
_MAX_MISSING_INCREASE = 0.3  # in the fraction of missing values
_MAX_SHIFT_STD, _MIN_Z = 0.5, 3.0  # shift of a mean, and its z-score, from which on it is a warning
_EXTREME_SHIFT_STD, _MIN_PATIENTS = 3.0, 5  # blocks: another unit or another population
_EXTREME_SHIFT_STD_FEW = 5.0  # for fewer than _MIN_PATIENTS
_UNUSUAL_VALUE_STD = 4.0


@dataclass(frozen=True, slots=True)
class ApplicabilityIssue:
    """Mismatch between new patients and a model: its scope, what it is, and whether it blocks the prediction."""

    scope: str
    what: str
    is_blocking: bool = False

    def __str__(self) -> str:
        return f"{self.scope}: {self.what}"


def applicability_issues(patients: NewPatients, deployment: Mapping[str, Any]) -> list[ApplicabilityIssue]:
    """Return all issues of applicability of a model to new patients, blocking ones first.

    Args:
        patients: The patients' records as the model's columns.
        deployment: The run's deployment entry with `scale` and `known` of its columns.
    """
    issues = [
        *_check_population(patients),
        *_check_quality_issues(patients),
        *(_check_columns(patients, deployment) if patients.table is not None else ()),
    ]
    return sorted(issues, key=lambda issue: not issue.is_blocking)


def unusual_values(
    x: NDArray[np.float64], columns: Sequence[FeatureColumn], deployment: Mapping[str, Any]
) -> list[list[str]]:
    """Return, for applicability, each row's measured columns whose value is far from the training mean."""
    unusual: list[list[str]] = [[] for _ in x]
    for i, column in enumerate(columns):
        if column.is_numeric:
            mean, std, _ = deployment["scale"][column.name]
            for row in np.flatnonzero(np.abs(x[:, i] - mean) > _UNUSUAL_VALUE_STD * std):
                unusual[row].append(column.name)
    return unusual


def _check_population(patients: NewPatients) -> Iterator[ApplicabilityIssue]:
    is_empty = patients.table is None
    for reason, count in patients.not_eligible.items():
        yield ApplicabilityIssue(
            "population", f"{_count_patients(count)} excluded, not eligible for the study: {reason}", is_empty
        )
    for reason, count in patients.no_row.items():
        yield ApplicabilityIssue("columns", f"{_count_patients(count)} excluded: {reason}", is_empty)
    for reason, count in patients.skipped.items():
        yield ApplicabilityIssue("records", f"{reason}, {count} times", is_empty)
    if is_empty and not patients.not_eligible and not patients.no_row:
        yield ApplicabilityIssue("records", "no patient can be predicted", is_blocking=True)


def _check_quality_issues(patients: NewPatients) -> Iterator[ApplicabilityIssue]:
    patient_count = 0 if patients.table is None else len(patients.table)
    for quality_issue in patients.report.issues:
        if quality_issue.reason in _UNITS:
            is_blocking = int(quality_issue.count) >= _MAX_WRONG_UNIT_FRACTION * patient_count
            remedy = quality_issue.remedy if is_blocking else "these values count as missing"
            yield ApplicabilityIssue(
                quality_issue.subject,
                f"{quality_issue.reason.value}, {quality_issue.count} times; {remedy}",
                is_blocking,
            )
        elif quality_issue.reason in _CODES:
            system = f" ({quality_issue.system})" if quality_issue.system else ""
            yield ApplicabilityIssue(
                quality_issue.subject, f"{quality_issue.reason.value}{system}, {quality_issue.count} times"
            )


def _check_columns(patients: NewPatients, deployment: Mapping[str, Any]) -> Iterator[ApplicabilityIssue]:
    table = patients.table
    assert table is not None
    checked_inputs = set()
    for i, column in enumerate(table.columns):
        if column.name not in deployment["scale"]:
            continue
        values = table.x[:, i]
        known = values[~np.isnan(values)]
        if column.input not in checked_inputs:
            checked_inputs.add(column.input)
            yield from _check_missing_values(
                column.input, len(known), len(values), deployment["known"].get(column.input, 1.0)
            )
        if len(known):
            yield from _check_shift(column, known, deployment["scale"][column.name])


def _check_missing_values(
    name: str, known: int, patient_count: int, training_fraction: float
) -> Iterator[ApplicabilityIssue]:
    fraction = known / patient_count
    if not known and training_fraction >= _REQUIRED_FRACTION:
        yield ApplicabilityIssue(
            name, f"no patient has a value; {training_fraction:.0%} of training subjects had one", True
        )
    elif training_fraction - fraction > _MAX_MISSING_INCREASE and (
        not known or patient_count >= _MIN_PATIENTS
    ):
        yield ApplicabilityIssue(
            name,
            f"{fraction:.0%} of patients have a value, {training_fraction:.0%} of training subjects had one",
        )


def _check_shift(
    column: FeatureColumn, known: NDArray[np.float64], scale: Sequence[Any]
) -> Iterator[ApplicabilityIssue]:
    mean, std, _ = scale
    if not column.is_numeric and not mean:
        if positives := int(np.count_nonzero(known)):
            yield ApplicabilityIssue(column.name, f"{_count_patients(positives)}, and no training subject")
        return
    shift, has_enough = float(known.mean() - mean) / std, len(known) >= _MIN_PATIENTS
    is_extreme = column.is_numeric and abs(shift) > (
        _EXTREME_SHIFT_STD if has_enough else _EXTREME_SHIFT_STD_FEW
    )
    is_significant = has_enough and abs(shift) > _MAX_SHIFT_STD and abs(shift) * np.sqrt(len(known)) > _MIN_Z
    if not is_extreme and not is_significant:
        return
    explanation = "another unit, or another population" if is_extreme else "predictions may be less accurate"
    if column.is_numeric:
        means = f"the mean is {known.mean():.4g}, in training {mean:.4g}"
        text = f"{means} ({shift:+.1f} standard deviations): {explanation}"
    else:
        text = f"{known.mean():.0%} of patients, {mean:.0%} of training subjects: {explanation}"
    yield ApplicabilityIssue(column.name, text, is_extreme)


def _count_patients(count: int) -> str:
    return "1 patient" if count == 1 else f"{count:,} patients"
