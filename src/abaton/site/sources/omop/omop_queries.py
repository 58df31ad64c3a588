"""What is asked of an OMOP database: only the tables and, where that is safe, the concepts and days that a study needs.

A filter goes into the SQL only when it cannot change the answer, as with a FHIR server
(:mod:`abaton.site.sources.queries`): what eligibility is judged by is read whole, because a record that is coded in another
system must be seen to be known as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sql

from abaton.deid.settings import Need, Want
from abaton.errors import SettingsError
from abaton.site.sources.omop.cdm_schema import KNOWN, LOCAL, MEDICINES, PERSON, PERSON_MORE, TABLES, CdmTable
from abaton.site.sources.omop.concept_map import Concepts
from abaton.site.sources.omop.omop_database import OmopDatabase
from abaton.site.sources.queries import judged_by, read_for
from abaton.study.criteria import Eligibility

Condition = sql.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Question:
    """One query: the table, the columns of its rows in order, and the SQL; rows come in the order of people.

    ``left`` counts, by their concepts, rows without a standard concept that the filter leaves out, if there is one.
    """

    table: CdmTable
    columns: tuple[str, ...]
    asked: sql.Select[Any]
    left: sql.Select[Any] | None = None


def people_of(database: OmopDatabase) -> tuple[tuple[str, ...], sql.Select[Any]]:
    """The query for everybody, with their deaths where there is a table of them."""
    columns = _checked(database, "person", PERSON, PERSON_MORE)
    person = database.table("person", columns)
    asked = sql.select(*person.c)
    died = ("death_date", "death_datetime")
    if "death_date" in (there := database.columns("death")):
        names = [name for name in died if name in there]
        rows = database.table("death", ("person_id", *names))
        # Nobody dies twice; an instance may tell it twice, and then the earlier one is meant.
        first = [sql.func.min(rows.c[name]).label(name) for name in names]
        death = sql.select(rows.c.person_id, *first).group_by(rows.c.person_id).subquery("death")
        told = [death.c[name] for name in names]
        asked = sql.select(*person.c, *told).join_from(
            person, death, person.c.person_id == death.c.person_id, isouter=True
        )
        columns = (*columns, *(column.name for column in told))
    return columns, asked.order_by(person.c.person_id)


def questions(
    database: OmopDatabase, concepts: Concepts, need: Need, eligibility: Eligibility | None
) -> Iterator[Question]:
    """The queries for a study, one for each table that it needs; a table that is not there holds nothing."""
    types, whole = read_for(need, eligibility, KNOWN), judged_by(eligibility)
    for table in TABLES:
        mine = [name for name in table.types if name in types]
        if not mine or not database.columns(table.name):
            continue
        columns = _checked(database, table.name, table.columns, table.optional)
        place = database.table(table.name, columns)
        asked, left = sql.select(*place.c), None
        wants = [want for name in mine for want in need.wants_of(name)]
        if not (whole & set(mine)) and wants:
            told = [_filter(table, place, want, concepts) for want in wants if not _of_components(want)]
            if told and all(each is not None for each in told):
                wanted = sql.or_(*(each for each in told if each is not None))
                asked, left = asked.where(wanted), _left(table, place, wanted, typed=database.is_typed)
        if table.name == "drug_exposure" and (kept := _kinds(place, mine)) is not None:
            asked, left = asked.where(kept), None if left is None else left.where(kept)
        yield Question(table, columns, asked.order_by(place.c.person_id, place.c[table.key]), left)


def _left(table: CdmTable, place: sql.TableClause, wanted: Condition, *, typed: bool) -> sql.Select[Any]:
    """How many rows that are not wanted have no standard concept, by their concepts; an index on those answers it."""
    by = [place.c[name] for name in (table.concept, table.source) if name in place.c]
    standard = place.c[table.concept] if typed else sql.cast(place.c[table.concept], sql.BigInteger)
    none = sql.or_(standard == 0, standard.is_(None), standard >= LOCAL)
    others = sql.case((wanted, 0), else_=1) == 1  # also where the filter knows no answer
    return sql.select(sql.func.count(), *by).where(none, others).group_by(*by)


def _checked(
    database: OmopDatabase, name: str, needed: tuple[str, ...], more: tuple[str, ...]
) -> tuple[str, ...]:
    there = database.columns(name)
    if lost := [column for column in needed if column not in there]:
        what = (
            f"the table '{name}' has no column '{lost[0]}'" if there else f"the table '{name}' is not there"
        )
        raise SettingsError(
            what, where=database.name, remedy="give OMOP CDM 5.3 or 5.4, and its schema with records.cdm"
        )
    return (*needed, *(column for column in more if column in there))


def _of_components(want: Want) -> bool:
    """Whether a line asks for parts of a measurement; a row of OMOP has none."""
    return any(each.path.startswith("component") for each in want.codes)


def _filter(table: CdmTable, place: sql.TableClause, want: Want, concepts: Concepts) -> Condition | None:
    """What a line of the study's list asks of a row; nothing if SQL cannot ask it."""
    found: list[Condition] = []
    for each in want.codes:
        if each.path.removesuffix("CodeableConcept") == table.path:
            ids: sql.BindParameter[Any] = sql.bindparam(
                None, concepts.meant_by(each.codes) or [-1], expanding=True, literal_execute=True
            )
            coded = [place.c[name].in_(ids) for name in (table.concept, table.source) if name in place.c]
            found.append(sql.or_(*coded))
    for limit in want.dates:
        if limit.path.removesuffix("DateTime").removesuffix("Period") in table.dated:
            day = place.c[table.date]
            if limit.start:
                found.append(day >= _moved(limit.start, -1))
            if limit.end:
                found.append(day <= _moved(limit.end, 1))
    return sql.and_(*found) if found else None


def _kinds(place: sql.TableClause, mine: list[str]) -> Condition | None:
    """Which drug exposures are of the wanted types; nothing if all are."""
    column = place.c.drug_type_concept_id
    told = sorted({n for kind in mine for n in MEDICINES.get(kind, ())})
    if "MedicationStatement" not in mine:
        return column.in_(told)
    others = sorted({n for kind, ids in MEDICINES.items() if kind not in mine for n in ids})
    return sql.or_(column.is_(None), column.not_in(others)) if others else None


def _moved(day: str, days: int) -> sql.ColumnElement[date]:
    """A day wider, because another time zone may have another day."""
    whole = day[:10] if len(day) >= 10 else f"{day[:7]}-01" if len(day) >= 7 else f"{day[:4]}-01-01"
    return sql.literal(date.fromisoformat(whole) + timedelta(days=days), sql.Date)
