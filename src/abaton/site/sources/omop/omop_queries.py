"""SQL queries for the tables, concepts and dates that a study needs.

As for a FHIR server (:mod:`abaton.site.sources.queries`), a filter is used only where it cannot change the result.
Tables that eligibility depends on are read completely, because a record in another code system makes a criterion
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sql

from abaton.deid.settings import DataRequest, DataRequirement
from abaton.errors import SettingsError
from abaton.site.sources.omop.cdm_schema import (
    MEDICATION_TYPES,
    MIN_LOCAL_CONCEPT_ID,
    PERSON_COLUMNS,
    PERSON_OPTIONAL,
    RESOURCE_TYPES,
    TABLES,
    CdmTable,
)
from abaton.site.sources.omop.concept_map import ConceptMap
from abaton.site.sources.omop.omop_database import OmopDatabase
from abaton.site.sources.queries import eligibility_types, source_types
from abaton.study.criteria import Eligibility

Condition = sql.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class OmopQuery:
    """Query of one table, ordered by person.

    ``unmapped_count`` counts, by concept, the rows without a standard concept that the filter drops; None without a
    filter.
    """

    table: CdmTable
    columns: tuple[str, ...]
    statement: sql.Select[Any]
    unmapped_count: sql.Select[Any] | None = None


def person_query(database: OmopDatabase) -> tuple[tuple[str, ...], sql.Select[Any]]:
    """Return the columns and the OMOP query of all persons, with their deaths if there is such a table."""
    columns = _existing_columns(database, "person", PERSON_COLUMNS, PERSON_OPTIONAL)
    person = database.table("person", columns)
    statement = sql.select(*person.c)
    if "death_date" in (existing := database.columns("death")):
        names = [name for name in ("death_date", "death_datetime") if name in existing]
        rows = database.table("death", ("person_id", *names))
        # An instance may record a death twice; the earlier one is used.
        earliest = [sql.func.min(rows.c[name]).label(name) for name in names]
        death = sql.select(rows.c.person_id, *earliest).group_by(rows.c.person_id).subquery("death")
        death_columns = [death.c[name] for name in names]
        statement = sql.select(*person.c, *death_columns).join_from(
            person, death, person.c.person_id == death.c.person_id, isouter=True
        )
        columns = (*columns, *(column.name for column in death_columns))
    return columns, statement.order_by(person.c.person_id)


def build_queries(
    database: OmopDatabase, concepts: ConceptMap, request: DataRequest, eligibility: Eligibility | None
) -> Iterator[OmopQuery]:
    """Yield the OMOP queries for a study, one per required table that exists."""
    types, unfiltered = source_types(request, eligibility, RESOURCE_TYPES), eligibility_types(eligibility)
    for table in TABLES:
        required = [name for name in table.types if name in types]
        if not required or not database.columns(table.name):
            continue
        columns = _existing_columns(database, table.name, table.columns, table.optional)
        clause = database.table(table.name, columns)
        statement, unmapped_count = sql.select(*clause.c), None
        requirements = [item for name in required for item in request.requirements_of(name)]
        if not (unfiltered & set(required)) and requirements:
            filters = [
                _filter(table, clause, item, concepts)
                for item in requirements
                if not _is_for_components(item)
            ]
            if filters and all(condition is not None for condition in filters):
                matches = sql.or_(*(condition for condition in filters if condition is not None))
                statement = statement.where(matches)
                unmapped_count = _unmapped_query(table, clause, matches, typed=database.is_typed)
        if (
            table.name == "drug_exposure"
            and (drug_filter := _medication_filter(clause, required)) is not None
        ):
            statement = statement.where(drug_filter)
            unmapped_count = None if unmapped_count is None else unmapped_count.where(drug_filter)
        yield OmopQuery(
            table, columns, statement.order_by(clause.c.person_id, clause.c[table.key]), unmapped_count
        )


def _unmapped_query(
    table: CdmTable, clause: sql.TableClause, matches: Condition, *, typed: bool
) -> sql.Select[Any]:
    """Return the OMOP query that counts, by concept, dropped rows without a standard concept; index-covered."""
    by = [clause.c[name] for name in (table.concept, table.source) if name in clause.c]
    standard = clause.c[table.concept] if typed else sql.cast(clause.c[table.concept], sql.BigInteger)
    is_unmapped = sql.or_(standard == 0, standard.is_(None), standard >= MIN_LOCAL_CONCEPT_ID)
    is_dropped = sql.case((matches, 0), else_=1) == 1  # includes rows for which the filter is NULL
    return sql.select(sql.func.count(), *by).where(is_unmapped, is_dropped).group_by(*by)


def _existing_columns(
    database: OmopDatabase, name: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[str, ...]:
    existing = database.columns(name)
    if missing := [column for column in required if column not in existing]:
        raise SettingsError(
            f"the table '{name}' has no column '{missing[0]}'"
            if existing
            else f"the table '{name}' does not exist",
            where=database.name,
            remedy="use OMOP CDM 5.3 or 5.4, and set records.cdm_schema to its schema",
        )
    return (*required, *(column for column in optional if column in existing))


def _is_for_components(requirement: DataRequirement) -> bool:
    """Return whether a requirement filters by component codes, which an OMOP query cannot."""
    return any(code_filter.path.startswith("component") for code_filter in requirement.codes)


def _filter(
    table: CdmTable, clause: sql.TableClause, requirement: DataRequirement, concepts: ConceptMap
) -> Condition | None:
    """Return the SQL condition of a requirement for an OMOP query; None if SQL cannot express it."""
    conditions: list[Condition] = []
    for code_filter in requirement.codes:
        if code_filter.path.removesuffix("CodeableConcept") == table.fhir_path:
            ids: sql.BindParameter[Any] = sql.bindparam(
                None,
                concepts.concept_ids_for(code_filter.codes) or [-1],
                expanding=True,
                literal_execute=True,
            )
            coded = [clause.c[name].in_(ids) for name in (table.concept, table.source) if name in clause.c]
            conditions.append(sql.or_(*coded))
    for date_filter in requirement.dates:
        if date_filter.path.removesuffix("DateTime").removesuffix("Period") in table.date_paths:
            date_column = clause.c[table.date]
            if date_filter.start:
                conditions.append(date_column >= _shift_days(date_filter.start, -1))
            if date_filter.end:
                conditions.append(date_column <= _shift_days(date_filter.end, 1))
    return sql.and_(*conditions) if conditions else None


def _medication_filter(clause: sql.TableClause, required: list[str]) -> Condition | None:
    """Return the OMOP query's condition for drug exposures of the required types; None if all are required."""
    column = clause.c.drug_type_concept_id
    if "MedicationStatement" not in required:
        return column.in_(sorted({n for name in required for n in MEDICATION_TYPES.get(name, ())}))
    others = sorted({n for name, ids in MEDICATION_TYPES.items() if name not in required for n in ids})
    return sql.or_(column.is_(None), column.not_in(others)) if others else None


def _shift_days(day: str, days: int) -> sql.ColumnElement[date]:
    """Return a date of an OMOP query moved by days, because it may differ in another time zone."""
    first_day = day[:10] if len(day) >= 10 else f"{day[:7]}-01" if len(day) >= 7 else f"{day[:4]}-01-01"
    return sql.literal(date.fromisoformat(first_day) + timedelta(days=days), sql.Date)
