"""Extraction of values per subject from the rows of views: filters, units, codes, dates and aggregation.

Aggregation does not depend on the order of the records. De-identified dates may be years only, and many rows share
a date. Such rows are combined by mean, most frequent category (the first in the study's list among equals) or any flag;
`latest` with ``dates = "year"`` is the mean of the latest year.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, fsum, isfinite
from typing import Any, TypeVar

from abaton.errors import AbatonError, RefusedError
from abaton.features.data_quality import MissingReason, releasable_system
from abaton.features.plausibility import plausible_range
from abaton.features.specification import (
    Aggregation,
    Category,
    CodeSet,
    FollowUpSpec,
    InputKind,
    InputSpec,
    QuantityColumn,
    ResolvedFeatureSpec,
    RowFilter,
    ViewColumn,
    matches_code,
)
from abaton.fhir.bundles import bundle_resources
from abaton.fhir.partial_dates import PartialDate, age_in_years, parse_partial_date
from abaton.fhir.ucum import convert, parse_unit
from abaton.record_types import DeidentifiedRecord
from abaton.views.definition import ViewDefinition

T = TypeVar("T")
Dated = tuple[PartialDate | None, T]


def at_first_or_last_date(rows: Sequence[Dated[T]], aggregation: Aggregation | None) -> list[T]:
    """Return the extracted values of the latest or earliest date; all for any other aggregation.

    A row without a date counts only if no row has one.
    """
    if aggregation not in (Aggregation.LATEST, Aggregation.EARLIEST):
        return [value for _, value in rows]
    dated = [(day, value) for day, value in rows if day is not None]
    if not dated:
        return [value for _, value in rows]
    selected = (max if aggregation is Aggregation.LATEST else min)(day for day, _ in dated)
    return [value for day, value in dated if day == selected]


def aggregate_number(rows: Sequence[Dated[float]], aggregation: Aggregation | None) -> float | None:
    """Extract one number from several rows of a subject, or None.

    >>> aggregate_number([(None, 1.0), (None, 4.0)], Aggregation.MAX), aggregate_number([], Aggregation.MEAN)
    (4.0, None)
    """
    values = at_first_or_last_date(rows, aggregation)
    if aggregation is Aggregation.COUNT:
        return float(len(values))
    if not values:
        return None
    if aggregation is Aggregation.MIN:
        return min(values)
    if aggregation is Aggregation.MAX:
        return max(values)
    return fsum(values) / len(values)


def aggregate_category(rows: Sequence[Dated[int]], aggregation: Aggregation | None) -> frozenset[int] | None:
    """Extract the indices of a subject's categories from rows: one, or with `any` all that occur.

    >>> sorted(aggregate_category([(None, 2), (None, 1), (None, 2)], None)), aggregate_category([], None)
    ([2], None)
    """
    values = at_first_or_last_date(rows, aggregation)
    if not values:
        return None
    if aggregation is Aggregation.ANY:
        return frozenset(values)
    return frozenset([min(set(values), key=lambda index: (-values.count(index), index))])


def aggregate_flag(rows: Sequence[Dated[bool]], aggregation: Aggregation | None) -> bool | None:
    """Extract whether a flag is set in a subject's rows: at any time, or at the latest or earliest date."""
    values = at_first_or_last_date(rows, aggregation)
    return any(values) if values else None


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ViewRows:
    """Rows of one view by subject, with counts of rows without subject and of unreadable records."""

    by_subject: Mapping[str, list[Row]]
    without_subject: int
    unreadable: int

    def __repr__(self) -> str:
        return "ViewRows(…)"  # rows are about subjects


class RowCollector:
    """Collector of the rows of every view; the views are compiled once."""

    def __init__(self, spec: ResolvedFeatureSpec) -> None:
        self._subject = spec.subject
        self._views = {name: ViewDefinition.load(definition) for name, definition in spec.views.items()}
        self._by_type: dict[str, list[tuple[str, ViewDefinition, list[str]]]] = defaultdict(list)
        for name, view in self._views.items():
            self._by_type[view.resource].append((name, view, [column.name for column in view.columns]))

    def __call__(self, records: Iterable[DeidentifiedRecord]) -> dict[str, ViewRows]:
        """Extract the rows of every view in one pass over the de-identified records.

        Raises:
            RefusedError: A record has not been de-identified.
        """
        rows_by_view: dict[str, dict[str, list[Row]]] = {name: defaultdict(list) for name in self._views}
        without_subject, unreadable = Counter[str](), Counter[str]()
        for resource in _deduplicate(_resources(records)):
            for name, view, columns in self._by_type.get(resource.get("resourceType", ""), ()):
                try:
                    rows = view.rows(resource)
                except AbatonError:
                    unreadable[name] += 1  # the error may contain data: it is only counted
                    continue
                for row in rows:
                    cells = dict(zip(columns, row, strict=True))
                    subject = cells.get(self._subject)
                    if isinstance(subject, str) and subject:
                        rows_by_view[name][subject].append(cells)
                    else:
                        without_subject[name] += 1
        return {
            name: ViewRows(dict(rows_by_view[name]), without_subject[name], unreadable[name])
            for name in self._views
        }


def _deduplicate(resources: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield every resource once for extraction; exports may overlap."""
    seen: set[tuple[str, str]] = set()
    for resource in resources:
        key = (resource.get("resourceType", ""), resource.get("id", ""))
        if key[1] and key in seen:
            continue
        seen.add(key)
        yield resource


def _resources(records: Iterable[DeidentifiedRecord]) -> Iterator[dict[str, Any]]:
    for record in records:
        if not isinstance(record, DeidentifiedRecord):
            raise RefusedError(
                "a record has not been de-identified",
                where="features",
                remedy="de-identify it first",
            )
        yield from bundle_resources(record.content)


@dataclass(slots=True)
class ExtractionCounts:
    """Problems of an input's rows, by reason and by code system.

    ``subjects`` have a number, plausible or not. ``filtered_systems`` are the systems of rows that a filter did not
    match, if the filter names none of them.
    """

    rows: int = 0
    subjects: int = 0
    reasons: Counter[MissingReason] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    filtered_systems: Counter[str] = field(default_factory=Counter)


def select_rows(
    rows: Iterable[Row],
    source: ViewColumn | FollowUpSpec,
    until: PartialDate | None,
    counts: ExtractionCounts,
) -> Iterator[Row]:
    """Yield the rows to extract from: those that match the filter and are not after the index date."""
    for row in rows:
        if source.where is not None and not _matches_filter(row, source.where, counts):
            continue
        if until is not None and source.date_column is not None:
            day = row_date(row, source)
            if day is None or day.first > until.last:
                continue
        counts.rows += 1
        yield row


def row_date(row: Row, source: ViewColumn | FollowUpSpec) -> PartialDate | None:
    """Extract the date of a view's row, if its source names a date column."""
    text = row.get(source.date_column) if source.date_column else None
    return parse_partial_date(text) if isinstance(text, str) else None


def numeric_values(
    rows: Iterable[Row], source: QuantityColumn, counts: ExtractionCounts
) -> list[Dated[float]]:
    """Extract the numbers of a view's column, converted to one unit."""
    dated_values: list[Dated[float]] = []
    for row in rows:
        value = row.get(source.column or "")
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            counts.reasons[MissingReason.NO_VALUE] += 1
            continue
        converted: float | None = float(value)
        if source.unit is not None:
            unit = row.get(source.unit_column or "")
            if not isinstance(unit, str):
                counts.reasons[MissingReason.NO_UNIT] += 1
                continue
            converted = convert(float(value), unit, source.unit, molar_mass=source.molar_mass)
            if converted is None:
                is_known = parse_unit(unit) is not None
                counts.reasons[MissingReason.OTHER_UNIT if is_known else MissingReason.UNKNOWN_UNIT] += 1
                continue
        assert converted is not None
        dated_values.append((row_date(row, source), converted))
    return dated_values


def category_values(
    rows: Iterable[Row], source: ViewColumn, known: Sequence[Category], counts: ExtractionCounts
) -> list[Dated[int]]:
    """Extract the category indices of a view's column; one past the end is "other"."""
    dated_values: list[Dated[int]] = []
    for row in rows:
        pairs = _cell_codes(row, source.column or "", source.system_column)
        if not pairs:
            counts.reasons[MissingReason.NO_VALUE] += 1
            continue
        indices = [
            index for pair in pairs for index, category in enumerate(known) if matches_code(category, *pair)
        ]
        if not indices:
            other_systems = _other_systems(pairs, known) if source.system_column is not None else set()
            counts.systems.update(other_systems)
            counts.reasons[MissingReason.OTHER_CODE] += not other_systems
        dated_values.append((row_date(row, source), indices[0] if indices else len(known)))
    return dated_values


def flag_values(rows: Iterable[Row], source: ViewColumn, counts: ExtractionCounts) -> list[Dated[bool]]:
    """Extract the booleans of a view's column; without a column every row is true."""
    dated_values: list[Dated[bool]] = []
    for row in rows:
        value = True if source.column is None else row.get(source.column)
        if isinstance(value, bool):
            dated_values.append((row_date(row, source), value))
        else:
            counts.reasons[MissingReason.NO_VALUE] += 1
    return dated_values


def date_values(rows: Iterable[Row], column: str, counts: ExtractionCounts) -> list[Dated[str]]:
    """Extract the dates of a view's column, each with its own date."""
    dated_values: list[Dated[str]] = []
    for row in rows:
        text = row.get(column)
        day = parse_partial_date(text) if isinstance(text, str) else None
        if day is None:
            counts.reasons[MissingReason.NO_DATE] += 1
        else:
            dated_values.append((day, str(text)))
    return dated_values


def _matches_filter(row: Row, where: RowFilter, counts: ExtractionCounts) -> bool:
    pairs = _cell_codes(row, where.column, where.system_column)
    if any(matches_code(where, *pair) for pair in pairs):
        return True
    if where.system_column is not None:
        counts.filtered_systems.update(_other_systems(pairs, (where,)))
    return False


def _cell_codes(row: Row, column: str, system: str | None) -> list[tuple[str | None, str]]:
    """Extract the codes of a view's cell, perhaps a list, with their systems; None without a system column."""
    cell, systems = row.get(column), row.get(system) if system else None
    cells: list[Any] = cell if isinstance(cell, list) else [cell]
    system_list: list[Any] = systems if isinstance(systems, list) else [systems] * len(cells)
    return [
        (None if system is None else str(code_system or ""), str(code))
        for code, code_system in zip(cells, system_list, strict=False)
        if isinstance(code, str | int) and not isinstance(code, bool)
    ]


def _other_systems(pairs: Sequence[tuple[str | None, str]], known: Sequence[CodeSet]) -> set[str]:
    """Return the systems of extracted codes if the study uses none of them; local systems are masked."""
    study_systems = {coding.system for code_set in known for coding in code_set.codes}
    systems = {system for system, _ in pairs}
    return {releasable_system(system or None) for system in systems} if not systems & study_systems else set()


Value = float | frozenset[int] | None
"""A number, the indices of categories, or None if missing."""

RowsByView = Mapping[str, ViewRows]


@dataclass(frozen=True, slots=True)
class SubjectIndexDate:
    """Index date of a subject, as text and as a partial date."""

    text: str
    date: PartialDate


def index_dates(
    spec: ResolvedFeatureSpec, rows: RowsByView, subjects: Sequence[str]
) -> dict[str, SubjectIndexDate]:
    """Extract the index date of every subject that has one."""
    source = spec.index_date
    if source is None:
        return {}
    by_subject = {}
    for subject in subjects:
        counts = ExtractionCounts()
        selected = select_rows(subject_rows(rows, source, subject), source, None, counts)
        dated_texts = date_values(selected, source.column or "", counts)
        texts = at_first_or_last_date(dated_texts, source.aggregation or Aggregation.EARLIEST)
        if texts and (day := parse_partial_date(min(texts))) is not None:
            by_subject[subject] = SubjectIndexDate(min(texts), day)
    return by_subject


def input_values(
    spec: InputSpec,
    rows: RowsByView,
    subjects: Sequence[str],
    index: Mapping[str, SubjectIndexDate],
    counts: ExtractionCounts,
) -> list[Value]:
    """Extract the value of one input (feature) for every subject, in order."""
    return [
        _value(spec, subject_rows(rows, spec, subject), index.get(subject), counts) for subject in subjects
    ]


def subject_rows(rows: RowsByView, source: ViewColumn | FollowUpSpec, subject: str) -> Sequence[Row]:
    """Return the rows of one subject in the view from which a value is extracted."""
    return rows[source.view].by_subject.get(subject, ())


def _value(
    spec: InputSpec, rows: Sequence[Row], index: SubjectIndexDate | None, counts: ExtractionCounts
) -> Value:
    until = None if spec.after_index or index is None else index.date
    selected = select_rows(rows, spec, until, counts)
    match spec.kind:
        case InputKind.NUMBER:
            numbers = numeric_values(selected, spec, counts)
            numbers = _plausible_values(spec, numbers, counts)
            number = aggregate_number(numbers, spec.aggregation or Aggregation.MEAN)
            return _band_midpoint(number, spec.band_width)
        case InputKind.CATEGORY:
            categories = category_values(selected, spec, spec.categories, counts)
            return aggregate_category(categories, spec.aggregation)
        case InputKind.AGE:
            age = _age(spec, list(selected), index, counts)
            ages = _plausible_values(spec, [] if age is None else [(None, age)], counts)
            return _band_midpoint(aggregate_number(ages, None), spec.band_width)
        case InputKind.FLAG:
            flag = aggregate_flag(flag_values(selected, spec, counts), spec.aggregation or Aggregation.ANY)
            if flag is None and spec.column is None:
                flag = False  # no record means false
            return None if flag is None else float(flag)
        case InputKind.COUNT:
            return float(sum(1 for _ in selected))


def _plausible_values(
    spec: InputSpec, dated_values: list[Dated[float]], counts: ExtractionCounts
) -> list[Dated[float]]:
    """Return the extracted values within the plausible range, or all if the study keeps others; count the subject."""
    counts.subjects += bool(dated_values)
    if (limits := plausible_range(spec)) is None:
        return dated_values
    plausible = [(day, value) for day, value in dated_values if limits[0] <= value <= limits[1]]
    counts.reasons[MissingReason.IMPLAUSIBLE] += len(plausible) < len(dated_values)
    return dated_values if spec.on_implausible == "keep" else plausible


def _age(
    spec: InputSpec, rows: Sequence[Row], index: SubjectIndexDate | None, counts: ExtractionCounts
) -> float | None:
    dated_texts = date_values(rows, spec.column or "", counts)
    texts = at_first_or_last_date(dated_texts, spec.aggregation or Aggregation.EARLIEST)
    reference = index.text if index is not None else ""
    if spec.reference_date is not None:
        reference = spec.reference_date.isoformat()
    if not texts:
        return None
    years = age_in_years(min(texts), reference) if reference else None
    return None if years is None else float(years)


def _band_midpoint(value: float | None, width: float | None) -> float | None:
    """Return the midpoint of the band of an extracted number."""
    return value if value is None or width is None else (floor(value / width) + 0.5) * width
