"""Concepts of an instance's own vocabulary as codes of FHIR, and a study's codes as concepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sql

from abaton.deid.settings import Code
from abaton.errors import SettingsError
from abaton.site.sources.omop.cdm_schema import CONCEPT, SYSTEMS
from abaton.site.sources.omop.omop_database import OmopDatabase

Coding = tuple[str, str]
_ASKED = 500  # concepts that are asked for at a time
_MOST = 200_000  # concepts that are remembered; the whole of a usual instance's are far fewer
_MAPS = ("concept_id_1", "concept_id_2", "relationship_id")


class Concepts:
    """The vocabulary tables of an instance; what was asked once is remembered.

    Args:
        database: The instance.
    """

    def __init__(self, database: OmopDatabase) -> None:
        lost = [name for name in CONCEPT if name not in database.columns("concept")]
        if lost:
            raise SettingsError(
                "the vocabulary table 'concept' is not there, or lacks a column",
                where=database.name,
                remedy="load the vocabularies, or name their schema with records.vocabulary",
            )
        self._database = database
        self._concept = database.table("concept", CONCEPT)
        has = set(_MAPS) <= set(database.columns("concept_relationship"))
        self._maps = database.table("concept_relationship", _MAPS) if has else None
        self._known: dict[int, tuple[Coding, ...]] = {0: ()}

    def learn(self, numbers: Iterable[int | None]) -> None:
        """Ask for all concepts of some rows that are not known yet."""
        new = sorted({n for n in numbers if n} - self._known.keys())
        if len(self._known) + len(new) > _MOST:
            self._known = {0: ()}
        for at in range(0, len(new), _ASKED):
            self._ask(new[at : at + _ASKED])

    def __call__(self, number: int | None) -> tuple[Coding, ...]:
        """The codes of a concept in systems that FHIR names; none if it is local or unknown."""
        if not number:
            return ()
        if number not in self._known:
            self.learn([number])
        return self._known[number]

    def meant_by(self, codes: Sequence[Code]) -> list[int]:
        """The concepts that a study's codes are, and the local ones that are mapped to them."""
        found = {row[0] for code in codes for row in self._database.rows(self._named(code))}
        if self._maps is not None and found:
            column = self._maps.c
            for some in _parts(sorted(found)):
                asked = sql.select(column.concept_id_1).where(
                    column.relationship_id == "Maps to", column.concept_id_2.in_(some)
                )
                found |= {row[0] for row in self._database.rows(asked)}
        return sorted(found)

    def _named(self, code: Code) -> sql.Select[Any]:
        column = self._concept.c
        vocabularies = [name for name, system in SYSTEMS.items() if code.system in ("", system)]
        same = column.concept_code == code.code
        if code.begins:
            same = column.concept_code.startswith(code.code, autoescape=True)
        return sql.select(column.concept_id).where(column.vocabulary_id.in_(vocabularies), same)

    def _ask(self, numbers: list[int]) -> None:
        column = self._concept.c
        asked = sql.select(column.concept_id, column.vocabulary_id, column.concept_code)
        found = self._database.rows(asked.where(column.concept_id.in_(numbers)))
        made: dict[int, tuple[Coding, ...]] = {number: () for number in numbers}
        for number, vocabulary, code in found:
            if vocabulary in SYSTEMS and code:
                made[number] = ((SYSTEMS[vocabulary], str(code)),)
        if self._maps is not None and (local := [n for n in numbers if not made[n]]):
            made |= self._mapped(local)
        self._known |= made

    def _mapped(self, numbers: list[int]) -> dict[int, tuple[Coding, ...]]:
        """What the instance itself says that its local concepts stand for."""
        assert self._maps is not None
        column, maps = self._concept.c, self._maps.c
        asked = (
            sql.select(maps.concept_id_1, column.vocabulary_id, column.concept_code)
            .join_from(self._maps, self._concept, maps.concept_id_2 == column.concept_id)
            .where(maps.relationship_id == "Maps to", maps.concept_id_1.in_(numbers))
            .order_by(maps.concept_id_1, column.vocabulary_id, column.concept_code)
        )
        made: dict[int, tuple[Coding, ...]] = {}
        for number, vocabulary, code in self._database.rows(asked):
            if vocabulary in SYSTEMS and code:
                made[number] = (*made.get(number, ()), (SYSTEMS[vocabulary], str(code)))
        return made


def _parts(numbers: list[int]) -> Iterable[list[int]]:
    return (numbers[at : at + _ASKED] for at in range(0, len(numbers), _ASKED))
