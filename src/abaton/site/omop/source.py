"""An OMOP instance as a source of records: person by person, whatever the size of its tables.

Invariants:
(1) every table is read once, in the order of people, some thousand rows at a time; memory does not grow with it;
(2) each record is a Bundle of all that one person has, so nothing has to be sorted again;
(3) rows without a code that FHIR knows are counted, never shown.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import Any

from abaton.errors import Refused
from abaton.deid.settings import Need
from abaton.record_types import Record
from abaton.site.sources.omop.omop_queries import Question, people_of, questions
from abaton.site.sources.omop.concept_map import Concepts
from abaton.site.sources.omop.omop_database import BATCH, OmopDatabase
from abaton.site.omop.layout import KNOWN
from abaton.site.omop.rows import UNMAPPED, Row, RowMaker, person
from abaton.site.sources.queries import read_for
from abaton.site.sources.fhir_builders import Json
from abaton.site.sources.base import Faults
from abaton.study.criteria import Eligibility

STRAY = "a record is about somebody whose Patient is not here, or not one alone"


class OmopSource:
    """Records in OMOP's common data model, 5.3 or 5.4.

    Args:
        address: A database's address, or a folder of CSV and Parquet files.
        need: What the study needs.
        eligibility: Who may take part, which is judged by records, too.
        zone: The time zone in which the instance tells times of day.
        cdm, vocabulary: The schemas of the clinical and of the vocabulary tables.
    """

    by_subject = True

    def __init__(
        self,
        address: str | Path,
        need: Need,
        eligibility: Eligibility | None,
        zone: tzinfo,
        *,
        cdm: str = "",
        vocabulary: str = "",
    ) -> None:
        self._address, self._need, self._eligibility, self._zone = address, need, eligibility, zone
        self._schemas = cdm, vocabulary
        self.faults = Faults()

    def records(self) -> Iterator[Record]:
        """Everybody, each with all of their records, in the order of their ids.

        Raises:
            SettingsError: A table, a column or the vocabulary is not there.
            StoreError: The database went away.
            Refused: Two people have one id, or a date is impossible.
        """
        database, tables = OmopDatabase(self._address, *self._schemas), list[_Table]()
        streams: list[Generator[Row]] = []
        try:
            concepts = Concepts(database)
            types = read_for(self._need, self._eligibility, KNOWN)
            columns, asked = people_of(database)
            tables += (
                _Table(database, question, RowMaker(question, concepts, self._zone, types, self.faults))
                for question in questions(database, concepts, self._need, self._eligibility)
            )
            last: Any = None
            streams.append(people := database.stream(asked))
            for row in people:
                if row[0] is None:
                    raise Refused(
                        "a person has no id", where="person.person_id", remedy="give each person an id"
                    )
                if row[0] == last:
                    raise Refused(
                        "two people have one id",
                        where="person.person_id",
                        remedy="give each person an id of their own",
                    )
                last = row[0]
                entries = [person(columns, row, self._zone)]
                for table in tables:
                    entries += table.of(last, self.faults)
                yield _bundle(entries)
            for table in tables:
                table.end(self.faults)
                table.count_left(database, concepts, self.faults)
        finally:
            for stream in streams:
                stream.close()
            for table in tables:
                table.close()
            database.close()

    def close(self) -> None:
        """Nothing was kept."""


class _Table:
    """The rows of one query, taken off person by person."""

    def __init__(self, database: OmopDatabase, question: Question, make: RowMaker) -> None:
        self._question = question
        self._stream = database.stream(question.asked)
        self._rows = self._learned(self._stream, make)
        self._make = make
        self._next: Row | None = None
        self._begun = False

    @staticmethod
    def _learned(rows: Iterator[Row], make: RowMaker) -> Iterator[Row]:
        """The rows, after their concepts have been asked for some thousand at a time."""
        while some := list(islice(rows, BATCH)):
            make.learn(some)
            yield from some

    def of(self, number: Any, faults: Faults) -> list[Json]:
        """What a person's rows become; rows of people before, who are not in 'person', and of nobody are counted."""
        if not self._begun:
            self._begun, self._next = True, next(self._rows, None)
        made: list[Json] = []
        who, row, make, rows = str(number), self._next, self._make, self._rows
        while row is not None and (row[0] is None or row[0] <= number):
            if row[0] == number:
                made += make(who, row)
            else:
                faults.note(STRAY)
            row = next(rows, None)
        self._next = row
        return made

    def end(self, faults: Faults) -> None:
        """Count what is left: rows of people who are not in 'person'."""
        if not self._begun:
            self._begun, self._next = True, next(self._rows, None)
        while self._next is not None:
            faults.note(STRAY)
            self._next = next(self._rows, None)

    def count_left(self, database: OmopDatabase, concepts: Concepts, faults: Faults) -> None:
        """Count rows without a code that the filter left out: nobody knows whether the study would have wanted them."""
        if self._question.left is None:
            return
        for times, *numbers in database.rows(self._question.left):
            if not any(concepts(number) for number in numbers):
                faults.note(UNMAPPED, self._question.table.name, times)

    def close(self) -> None:
        """Let the cursor go."""
        self._stream.close()


def _bundle(entries: list[Json]) -> Record:
    listed = [{"resource": each} for each in entries]
    return Record({"resourceType": "Bundle", "type": "collection", "entry": listed})
