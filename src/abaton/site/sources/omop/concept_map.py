"""FHIR codings of OMOP concepts, and concepts of a study's codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sql

from abaton.deid.settings import CodePattern
from abaton.errors import SettingsError
from abaton.site.sources.omop.cdm_schema import CONCEPT_COLUMNS, SYSTEMS
from abaton.site.sources.omop.omop_database import OmopDatabase

Coding = tuple[str, str]
_BATCH_SIZE = 500  # concepts per query
_MAX_CACHED = 200_000  # concepts; typical instances use far fewer
_RELATIONSHIP_COLUMNS = ("concept_id_1", "concept_id_2", "relationship_id")


class ConceptMap:
    """Vocabulary tables of an OMOP instance, with a cache.

    Args:
        database: The instance.
    """

    def __init__(self, database: OmopDatabase) -> None:
        existing = database.columns("concept")
        if missing := [name for name in CONCEPT_COLUMNS if name not in existing]:
            raise SettingsError(
                f"the vocabulary table 'concept' has no column '{missing[0]}'"
                if existing
                else "the vocabulary table 'concept' does not exist",
                where=database.name,
                remedy="load the vocabularies, or set records.vocabulary_schema",
            )
        self._database = database
        self._concept = database.table("concept", CONCEPT_COLUMNS)
        has_relationships = set(_RELATIONSHIP_COLUMNS) <= set(database.columns("concept_relationship"))
        self._relationships = (
            database.table("concept_relationship", _RELATIONSHIP_COLUMNS) if has_relationships else None
        )
        self._codings: dict[int, tuple[Coding, ...]] = {0: ()}

    def load(self, concept_ids: Iterable[int | None]) -> None:
        """Query the OMOP concepts that are not in the concept map's cache."""
        new = sorted({concept_id for concept_id in concept_ids if concept_id} - self._codings.keys())
        if len(self._codings) + len(new) > _MAX_CACHED:
            self._codings = {0: ()}
        for batch in _batches(new):
            self._fetch(batch)

    def __call__(self, concept_id: int | None) -> tuple[Coding, ...]:
        """Return the FHIR codings of an OMOP concept; empty if it is local or unknown."""
        if not concept_id:
            return ()
        if concept_id not in self._codings:
            self.load([concept_id])
        return self._codings[concept_id]

    def concept_ids_for(self, codes: Sequence[CodePattern]) -> list[int]:
        """Return the OMOP concepts of codes, and the local concepts that map to them."""
        concept_ids = {
            row[0] for code in codes for row in self._database.fetch_all(self._concept_query(code))
        }
        if self._relationships is not None and concept_ids:
            column = self._relationships.c
            for batch in _batches(sorted(concept_ids)):
                statement = sql.select(column.concept_id_1).where(
                    column.relationship_id == "Maps to", column.concept_id_2.in_(batch)
                )
                concept_ids |= {row[0] for row in self._database.fetch_all(statement)}
        return sorted(concept_ids)

    def _concept_query(self, code: CodePattern) -> sql.Select[Any]:
        column = self._concept.c
        vocabularies = [name for name, system in SYSTEMS.items() if code.system in ("", system)]
        matches = column.concept_code == code.code
        if code.is_prefix:
            matches = column.concept_code.startswith(code.code, autoescape=True)
        return sql.select(column.concept_id).where(column.vocabulary_id.in_(vocabularies), matches)

    def _fetch(self, concept_ids: list[int]) -> None:
        column = self._concept.c
        statement = sql.select(column.concept_id, column.vocabulary_id, column.concept_code)
        rows = self._database.fetch_all(statement.where(column.concept_id.in_(concept_ids)))
        codings: dict[int, tuple[Coding, ...]] = {concept_id: () for concept_id in concept_ids}
        for concept_id, vocabulary, code in rows:
            if vocabulary in SYSTEMS and code:
                codings[concept_id] = ((SYSTEMS[vocabulary], str(code)),)
        if self._relationships is not None and (local := [key for key in concept_ids if not codings[key]]):
            codings |= self._fetch_mapped(local)
        self._codings |= codings

    def _fetch_mapped(self, concept_ids: list[int]) -> dict[int, tuple[Coding, ...]]:
        """Return the codings of local OMOP concepts through `Maps to` relationships."""
        assert self._relationships is not None
        column, maps = self._concept.c, self._relationships.c
        statement = (
            sql.select(maps.concept_id_1, column.vocabulary_id, column.concept_code)
            .join_from(self._relationships, self._concept, maps.concept_id_2 == column.concept_id)
            .where(maps.relationship_id == "Maps to", maps.concept_id_1.in_(concept_ids))
            .order_by(maps.concept_id_1, column.vocabulary_id, column.concept_code)
        )
        codings: dict[int, tuple[Coding, ...]] = {}
        for concept_id, vocabulary, code in self._database.fetch_all(statement):
            if vocabulary in SYSTEMS and code:
                codings[concept_id] = (*codings.get(concept_id, ()), (SYSTEMS[vocabulary], str(code)))
        return codings


def _batches(concept_ids: list[int]) -> Iterable[list[int]]:
    return (concept_ids[start : start + _BATCH_SIZE] for start in range(0, len(concept_ids), _BATCH_SIZE))
