"""Labels of subjects, or the reason for a missing label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from abaton.features import extraction
from abaton.features.data_quality import MissingReason
from abaton.features.extraction import ExtractionCounts, Row, RowsByView, SubjectIndexDate, subject_rows
from abaton.features.specification import Aggregation, FollowUpSpec, LabelKind, LabelSpec
from abaton.fhir.partial_dates import PartialDate, add_days

Label = float | tuple[float, float] | MissingReason
"""A class, a value, or days with 1 for an event and 0 for censored; or the reason for a missing label."""


def compute_labels(
    label: LabelSpec,
    rows: RowsByView,
    subjects: Sequence[str],
    index: Mapping[str, SubjectIndexDate],
    counts: ExtractionCounts,
) -> list[Label]:
    """Compute the label (outcome) of every subject, in order."""
    return [_subject_label(label, rows, subject, index.get(subject), counts) for subject in subjects]


FollowUpTime = tuple[float, bool]
"""Days from the index date to the event or the end of follow-up, and whether it was the event."""

MAX_CENSORING_WEIGHT = 5.0
"""Largest inverse probability of censoring weight; larger ones are truncated to it."""


def follow_up_times(
    label: LabelSpec,
    rows: RowsByView,
    subjects: Sequence[str],
    index: Mapping[str, SubjectIndexDate],
    labels: Sequence[Label],
) -> list[FollowUpTime | None]:
    """Return each subject's follow-up within the outcome window of an event label; None where there is none.

    Of the subjects without a label only those have one who are censored.
    """
    times: list[FollowUpTime | None] = [None] * len(subjects)
    if label.kind is not LabelKind.EVENT or label.follow_up is None or label.window_days is None:
        return times
    for i, (subject, value) in enumerate(zip(subjects, labels, strict=True)):
        if subject not in index or value not in (0.0, 1.0, MissingReason.CENSORED):
            continue
        start = index[subject].date.first
        if value == 0.0:
            days = label.window_days
        elif value == 1.0:
            selected = extraction.select_rows(
                subject_rows(rows, label, subject), label, None, ExtractionCounts()
            )
            days = min(
                (day.first - start).days for row in selected if (day := extraction.row_date(row, label))
            )
        else:
            contacts = _source_dates(rows, label.follow_up, subject)
            days = max(((day.first - start).days for day in contacts), default=0)
        times[i] = float(min(max(days, 0), label.window_days)), value == 1.0
    return times


def kaplan_meier_risk(times: Iterable[FollowUpTime]) -> float:
    """Return the risk of an event by Kaplan and Meier: the label's probability if censoring is independent of it.

    >>> round(kaplan_meier_risk([(1.0, True), (2.0, False), (3.0, True), (4.0, False)]), 3)
    0.625
    """
    pairs = list(times)
    days, events = np.array([day for day, _ in pairs]), np.array([event for _, event in pairs], bool)
    survival = 1.0
    for day in np.unique(days[events]):
        survival *= 1 - np.count_nonzero(events & (days == day)) / np.count_nonzero(days >= day)
    return float(1 - survival)


def censoring_weights(
    times: Sequence[FollowUpTime], is_censored: Sequence[bool], max_weight: float = MAX_CENSORING_WEIGHT
) -> NDArray[np.float64]:
    """Return the inverse probability of censoring weight of each subject with a label; 0 if it is censored.

    A case has the weight 1/G(T-) and a non-case 1/G of the whole window, at most `max_weight`; G is the Kaplan-Meier
    estimate of remaining uncensored, in which events precede censoring on the same day. Without truncation the weights
    add up to the number of subjects, and the weighted fraction of cases is the Kaplan-Meier risk.

    >>> times = [(1.0, True), (2.0, False), (3.0, True), (4.0, False)]
    >>> censoring_weights(times, [False, True, False, False]).round(9).tolist()
    [1.0, 0.0, 1.5, 1.5]
    """
    days, events = np.array([day for day, _ in times]), np.array([event for _, event in times], bool)
    censored, weights = np.asarray(is_censored, bool), np.zeros(len(times))
    uncensored = 1.0
    for day in np.unique(days):
        at_day = days == day
        weights[at_day & events] = 1 / uncensored if uncensored else np.inf
        at_risk = np.count_nonzero(days >= day) - np.count_nonzero(at_day & events)
        if lost := np.count_nonzero(at_day & censored):
            uncensored *= 1 - lost / at_risk
    weights[~events & ~censored] = 1 / uncensored if uncensored else np.inf
    return np.minimum(weights, max_weight)


def _subject_label(
    label: LabelSpec, rows: RowsByView, subject: str, index: SubjectIndexDate | None, counts: ExtractionCounts
) -> Label:
    selected = extraction.select_rows(subject_rows(rows, label, subject), label, None, counts)
    match label.kind:
        case LabelKind.ANY:
            return float(any(True for _ in selected))
        case LabelKind.CLASSES:
            classes = extraction.aggregate_category(
                extraction.category_values(selected, label, label.classes, counts), label.aggregation
            )
            class_index = min(classes) if classes else len(label.classes)
            return float(class_index) if class_index < len(label.classes) else MissingReason.NO_LABEL
        case LabelKind.THRESHOLD | LabelKind.VALUE:
            numbers = extraction.numeric_values(selected, label, counts)
            value = extraction.aggregate_number(numbers, label.aggregation or Aggregation.MEAN)
            if value is None:
                return MissingReason.NO_LABEL
            return value if label.threshold is None else float(value > label.threshold)
        case LabelKind.EVENT:
            visits = None if label.follow_up is None else _source_dates(rows, label.follow_up, subject)
            return _event_label(label, list(selected), visits, index)
        case LabelKind.TIME:
            contacts, deaths = (
                [] if source is None else _source_dates(rows, source, subject)
                for source in (label.follow_up, label.death)
            )
            return _survival_label(label, list(selected), contacts, deaths, index)


def _source_dates(rows: RowsByView, source: FollowUpSpec, subject: str) -> list[PartialDate]:
    dates = (
        extraction.row_date(row, source)
        for row in extraction.select_rows(
            subject_rows(rows, source, subject), source, None, ExtractionCounts()
        )
    )
    return [day for day in dates if day is not None]


def _event_label(
    label: LabelSpec, rows: Sequence[Row], contacts: list[PartialDate] | None, index: SubjectIndexDate | None
) -> Label:
    """Return the label of an event in the outcome window; without complete follow-up there is none."""
    if index is None or label.window_days is None:
        return MissingReason.NO_DATE
    events = [extraction.row_date(row, label) for row in rows]
    if None in events:
        return MissingReason.NO_DATE
    known = [day for day in events if day is not None]
    if any(day.last <= index.date.first for day in known):
        return MissingReason.BEFORE
    in_window = [day.is_in_window(index.date, label.window_days) for day in known]
    if True in in_window:
        return 1.0
    if None in in_window:
        return MissingReason.COARSE_DATE
    end = add_days(index.date.last, label.window_days)
    if known or contacts is None or any(day.first >= end for day in contacts):
        return 0.0
    return MissingReason.CENSORED


def _survival_label(
    label: LabelSpec,
    rows: Sequence[Row],
    contacts: Sequence[PartialDate],
    deaths: Sequence[PartialDate],
    index: SubjectIndexDate | None,
) -> Label:
    """Return the survival label: days from the index date to the first event or the end of follow-up.

    Follow-up ends with the outcome window, a death or the last contact. An event is a contact too, and counts on the
    day of a death. Subjects with an event by the index date, or with less than one day of follow-up, are excluded.
    """
    if index is None or label.window_days is None:
        return MissingReason.NO_DATE
    start, events = index.date, [extraction.row_date(row, label) for row in rows]
    known = sorted(day for day in events if day is not None)
    if len(known) < len(events):
        return MissingReason.NO_DATE
    if any(day.last <= start.first for day in known):
        return MissingReason.BEFORE
    end = add_days(start.last, label.window_days)
    observed = [day for day in known if day.first <= end]
    death_dates = sorted(day for day in deaths if day.first <= end)
    if any(day.first != day.last for day in (start, *observed[:1], *death_dates[:1])):
        return MissingReason.COARSE_DATE
    death = min((day.first for day in death_dates), default=end)
    if observed and observed[0].first <= death:
        return float((observed[0].first - start.first).days), 1.0
    last_contact = max((day.first for day in (*contacts, *known)), default=start.first)
    follow_up_days = (min(end, death, last_contact) - start.first).days
    return (float(follow_up_days), 0.0) if follow_up_days > 0 else MissingReason.CENSORED
