"""Feature table of a site from de-identified records, with a data-quality report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import RefusedError
from abaton.features.data_quality import DataQualityIssue, DataQualityReport, MissingReason, suppress_count
from abaton.features.extraction import (
    ExtractionCounts,
    RowCollector,
    RowsByView,
    Value,
    ViewRows,
    index_dates,
    input_values,
)
from abaton.features.labels import FollowUpTime, Label, compute_labels, follow_up_times, kaplan_meier_risk
from abaton.features.specification import Imputation, InputSpec, LabelKind, ResolvedFeatureSpec
from abaton.features.table import FeatureTable, encode_input, feature_columns
from abaton.record_types import DeidentifiedRecord

_UNITS = (
    *(MissingReason.NO_UNIT, MissingReason.UNKNOWN_UNIT, MissingReason.OTHER_UNIT),
    MissingReason.MOSTLY_IMPLAUSIBLE,
)
_MIN_IMPLAUSIBLE = 5  # subjects with an implausible value from which on the unit is in doubt
_MAX_RISK_RATIO = 1.1  # of the risk without censored subjects to that by Kaplan and Meier


@dataclass(frozen=True, slots=True)
class FeatureResult:
    """Feature table of a site, if its records suffice, and the data-quality report.

    ``row_subjects`` have a row; ``reasons`` gives the first reason of each subject without one. Both stay at the site.
    """

    table: FeatureTable | None
    report: DataQualityReport
    row_subjects: tuple[str, ...] = field(default=(), repr=False)
    reasons: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        """Exact number of subjects with a row of the feature table."""
        return len(self.row_subjects)

    @property
    def excluded(self) -> Counter[str]:
        """Exact number of subjects without a row of the feature table, by reason."""
        return Counter(self.reasons.values())


def build_features(
    spec: ResolvedFeatureSpec, records: Iterable[DeidentifiedRecord], *, labelled: bool = True
) -> FeatureResult:
    """Build a site's feature table: one row per subject, ordered by pseudonym.

    Args:
        spec: The study's feature specification.
        records: De-identified records of any type, in any order.
        labelled: Whether subjects without a label are excluded; for prediction the label is unknown.

    Returns:
        The table, or None if the records do not suffice, and the report.
    """
    return build_features_by_subject(spec, (records,), labelled=labelled)


def build_features_by_subject(
    spec: ResolvedFeatureSpec,
    subjects_records: Iterable[Iterable[DeidentifiedRecord]],
    *,
    labelled: bool = True,
) -> FeatureResult:
    """Build a site's feature table from records that arrive grouped by subject.

    Memory grows with the rows of the table, not with the records.

    Raises:
        RefusedError: A group contains a subject of an earlier group.
    """
    names = (*(input_spec.name for input_spec in spec.inputs), spec.label.name)
    counts = {name: ExtractionCounts() for name in names}
    collected, collect_rows = _SubjectValues(spec, labelled=labelled), RowCollector(spec)
    for records in subjects_records:
        collected.add(spec, collect_rows(records), counts)
    subjects, values, labels, rows = collected.in_order()
    retained = _is_retained(spec, values, labels)
    table = _table(spec, subjects, values, labels, retained)
    issues = (
        *_on_rows(spec, rows),
        *(
            issue
            for input_spec in spec.inputs
            for issue in _on_input(spec, input_spec, counts[input_spec.name])
        ),
        *_on_dropped(spec, values, len(subjects)),
        *(_on_label(spec, counts[spec.label.name], labels, table) if labelled else ()),
        *_on_follow_up(spec, labels, collected.follow_up),
        *_on_cohort(spec, table),
    )
    total, min_cell_count = len(subjects), spec.min_cell_count
    missing = tuple(
        (
            input_spec.name,
            suppress_count(sum(value is None for value in column), min_cell_count, total=total),
        )
        for input_spec, column in zip(spec.inputs, values, strict=True)
    )
    row_count = suppress_count(len(table), min_cell_count, total=total)
    report = DataQualityReport(suppress_count(total, min_cell_count), row_count, missing, issues)
    reasons = _exclusions(spec, subjects, values, labels, retained)
    return FeatureResult(table if report.is_sufficient else None, report, table.subjects, reasons)


class _SubjectValues:
    """Values and labels of the subjects so far, and counts of rows without subject and of unreadable records."""

    def __init__(self, spec: ResolvedFeatureSpec, *, labelled: bool) -> None:
        self._labelled = labelled
        self.subjects: dict[str, int] = {}
        self.values: list[list[Value]] = [[] for _ in spec.inputs]
        self.labels: list[Label] = []
        self.follow_up: list[FollowUpTime] = []
        self.without_subject, self.unreadable = Counter[str](), Counter[str]()

    def add(
        self, spec: ResolvedFeatureSpec, rows: RowsByView, counts: Mapping[str, ExtractionCounts]
    ) -> None:
        """Add the rows of a group of subjects to the feature table being built."""
        subjects = _cohort(spec, rows)
        if not self.subjects.keys().isdisjoint(subjects):
            raise RefusedError(
                "a view of the study yields rows of subjects other than the record's",
                where="[[views]]",
                remedy="let the column 'subject' be the subject of the record",
            )
        self.subjects |= {subject: len(self.subjects) + i for i, subject in enumerate(subjects)}
        index = index_dates(spec, rows, subjects)
        for input_spec, column in zip(spec.inputs, self.values, strict=True):
            column += input_values(input_spec, rows, subjects, index, counts[input_spec.name])
        if self._labelled:
            labels = compute_labels(spec.label, rows, subjects, index, counts[spec.label.name])
            self.labels += labels
            self.follow_up += follow_up_times(spec.label, rows, subjects, index, labels)
        else:
            is_survival = spec.label.kind is LabelKind.TIME
            self.labels += [(0.0, 0.0) if is_survival else 0.0] * len(subjects)  # placeholders
        for name, view_rows in rows.items():
            self.without_subject[name] += view_rows.without_subject
            self.unreadable[name] += view_rows.unreadable

    def in_order(self) -> tuple[tuple[str, ...], list[list[Value]], list[Label], RowsByView]:
        """Return subjects, feature values and labels to build the table, by pseudonym, and counts per view."""
        order = sorted(self.subjects)
        positions = [self.subjects[subject] for subject in order]
        values = [[column[position] for position in positions] for column in self.values]
        rows = {
            name: ViewRows({}, self.without_subject[name], self.unreadable[name])
            for name in self.without_subject
        }
        return tuple(order), values, [self.labels[position] for position in positions], rows


def _exclusions(
    spec: ResolvedFeatureSpec,
    subjects: Sequence[str],
    values: Sequence[Sequence[Value]],
    labels: Sequence[Label],
    retained: Sequence[bool],
) -> dict[str, str]:
    """Return the subjects excluded when the table is built, with the reason: the label, then the required inputs."""
    required = [
        (input_spec.name, column)
        for input_spec, column in zip(spec.inputs, values, strict=True)
        if input_spec.imputation is Imputation.DROP
    ]
    reasons: dict[str, str] = {}
    for i, (subject, label) in enumerate(zip(subjects, labels, strict=True)):
        if isinstance(label, MissingReason):
            reasons[subject] = f"{spec.label.name}: {label.value}"
        elif not retained[i]:
            name = next(name for name, column in required if column[i] is None)
            reasons[subject] = f"{name}: {MissingReason.NO_VALUE.value}"
    return reasons


def _cohort(spec: ResolvedFeatureSpec, rows: RowsByView) -> tuple[str, ...]:
    if spec.cohort is not None:
        return tuple(sorted(rows[spec.cohort].by_subject))
    return tuple(sorted({subject for view_rows in rows.values() for subject in view_rows.by_subject}))


def _is_retained(
    spec: ResolvedFeatureSpec, values: Sequence[Sequence[Value]], labels: Sequence[Label]
) -> list[bool]:
    required = [
        column
        for input_spec, column in zip(spec.inputs, values, strict=True)
        if input_spec.imputation is Imputation.DROP
    ]
    return [
        not isinstance(label, MissingReason) and all(column[i] is not None for column in required)
        for i, label in enumerate(labels)
    ]


def _table(
    spec: ResolvedFeatureSpec,
    subjects: Sequence[str],
    values: Sequence[Sequence[Value]],
    labels: Sequence[Label],
    retained: Sequence[bool],
) -> FeatureTable:
    rows = [i for i, is_retained in enumerate(retained) if is_retained]
    blocks = [
        encode_input(input_spec, [column[i] for i in rows])
        for input_spec, column in zip(spec.inputs, values, strict=True)
    ]
    label = spec.label
    dtype = np.float64 if label.kind in (LabelKind.VALUE, LabelKind.TIME) else np.int64
    y: NDArray[Any] = np.array([labels[i] for i in rows], dtype=dtype)
    if label.kind is LabelKind.TIME:
        y = y.reshape(-1, 2)
    x = np.concatenate(blocks, axis=1) if blocks else np.zeros((len(rows), 0))
    row_subjects = tuple(subjects[i] for i in rows)
    return FeatureTable(
        feature_columns(spec), x, y, label.class_names, row_subjects, spec.min_cell_count, label.name
    )


def _on_rows(spec: ResolvedFeatureSpec, rows: RowsByView) -> Iterator[DataQualityIssue]:
    for name, view_rows in rows.items():
        if view_rows.without_subject:
            yield DataQualityIssue(
                f"view {name}",
                MissingReason.NO_SUBJECT,
                suppress_count(view_rows.without_subject, spec.min_cell_count),
            )
        if view_rows.unreadable:
            yield DataQualityIssue(
                f"view {name}",
                MissingReason.NOT_READ,
                suppress_count(view_rows.unreadable, spec.min_cell_count),
            )


def _on_input(
    spec: ResolvedFeatureSpec, input_spec: InputSpec, counts: ExtractionCounts
) -> Iterator[DataQualityIssue]:
    if not counts.rows:
        yield DataQualityIssue(input_spec.name, MissingReason.NO_ROWS, "0")
    implausible = counts.reasons[MissingReason.IMPLAUSIBLE]
    if implausible >= max(_MIN_IMPLAUSIBLE, spec.min_cell_count) and implausible > counts.subjects / 2:
        counts.reasons[MissingReason.MOSTLY_IMPLAUSIBLE] = counts.reasons.pop(MissingReason.IMPLAUSIBLE)
    yield from _on_counts(
        input_spec.name, counts, spec.min_cell_count, units_are_fatal=input_spec.on_unit_mismatch == "refuse"
    )


def _on_counts(
    name: str, counts: ExtractionCounts, min_cell_count: int, *, units_are_fatal: bool = False
) -> Iterator[DataQualityIssue]:
    for reason, count in sorted((+counts.reasons).items()):
        is_fatal = units_are_fatal and reason in _UNITS
        yield DataQualityIssue(name, reason, suppress_count(count, min_cell_count), is_fatal=is_fatal)
    # Rows that a filter excluded for their code system matter only if no row matched.
    other_systems = counts.systems if counts.rows else counts.systems + counts.filtered_systems
    for system, count in sorted(other_systems.items()):
        yield DataQualityIssue(
            name, MissingReason.OTHER_SYSTEM, suppress_count(count, min_cell_count), system=system
        )


def _on_dropped(
    spec: ResolvedFeatureSpec, values: Sequence[Sequence[Value]], total: int
) -> Iterator[DataQualityIssue]:
    for input_spec, column in zip(spec.inputs, values, strict=True):
        missing = sum(value is None for value in column)
        if missing and input_spec.imputation is Imputation.DROP:
            yield DataQualityIssue(
                input_spec.name,
                MissingReason.DROPPED,
                suppress_count(missing, spec.min_cell_count, total=total),
            )


def _on_label(
    spec: ResolvedFeatureSpec, counts: ExtractionCounts, labels: Sequence[Label], table: FeatureTable
) -> Iterator[DataQualityIssue]:
    yield from _on_counts(spec.label.name, counts, spec.min_cell_count)
    reasons = Counter(label for label in labels if isinstance(label, MissingReason))
    for reason, count in sorted(reasons.items()):
        yield DataQualityIssue(
            spec.label.name, reason, suppress_count(count, spec.min_cell_count, total=len(labels))
        )
    if len(table) and table.classes and len(np.unique(table.y)) < 2:
        yield DataQualityIssue(
            spec.label.name, MissingReason.ONE_CLASS, suppress_count(len(table), spec.min_cell_count)
        )
    if len(table) and table.is_survival and not table.y[:, 1].any():
        yield DataQualityIssue(
            spec.label.name, MissingReason.NO_EVENT, suppress_count(len(table), spec.min_cell_count)
        )


def _on_follow_up(
    spec: ResolvedFeatureSpec, labels: Sequence[Label], times: Sequence[FollowUpTime]
) -> Iterator[DataQualityIssue]:
    """Refuse an event label if excluding the censored subjects, who have no event, biases the risk when it is built."""
    censored = sum(label is MissingReason.CENSORED for label in labels)
    cases = sum(label == 1.0 for label in labels)
    if censored < len(times) and cases / (len(times) - censored) > _MAX_RISK_RATIO * kaplan_meier_risk(times):
        count = suppress_count(censored, spec.min_cell_count, total=len(labels))
        yield DataQualityIssue(spec.label.name, MissingReason.SHORT_FOLLOW_UP, count, is_fatal=True)


def _on_cohort(spec: ResolvedFeatureSpec, table: FeatureTable) -> Iterator[DataQualityIssue]:
    if not len(table):
        yield DataQualityIssue("cohort", MissingReason.EMPTY_COHORT, "0", is_fatal=True)
    elif len(table) < spec.min_cell_count:
        yield DataQualityIssue(
            "cohort", MissingReason.TOO_FEW, suppress_count(len(table), spec.min_cell_count), is_fatal=True
        )
