"""The stages of a record: read, consented, de-identified.

The type says how far a record has come, so that a type checker refuses a raw record where a de-identified
one is expected. Only :mod:`abaton.records.deid.deidentifier` makes a :class:`Deidentified`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A FHIR resource as it was read: it may hold anything."""

    content: Json

    @property
    def type(self) -> str:
        """The resource type that the record claims to have."""
        name = self.content.get("resourceType")
        return name if isinstance(name, str) else ""

    def __repr__(self) -> str:
        return "Record(…)"  # a record's content never reaches a log


@dataclass(frozen=True, slots=True)
class Consented:
    """A record that may be used for a study, and on what ground.

    Two may make one: the consent gate, which found a consent in force that is pinned to the study
    document; and a data holder who answers for a lawful ground of his own and states it. Nobody else.

    >>> Consented.on_ground(Record({"resourceType": "Patient"}), "ethics vote 7/2026").ground
    'ethics vote 7/2026'
    """

    record: Record
    ground: str

    @classmethod
    def on_ground(cls, record: Record, ground: str) -> Self:
        """State why this record may be used; an empty ground is refused."""
        if not ground.strip():
            raise ValueError("a consented record needs a stated ground")
        return cls(record, ground)

    def __repr__(self) -> str:
        return "Consented(…)"


@dataclass(frozen=True, slots=True)
class ConsentedLot:
    """Several records that may be used for a study on one ground: the lines of a file.

    >>> ConsentedLot(({"resourceType": "Patient"},), "ethics vote 7/2026").ground
    'ethics vote 7/2026'
    """

    contents: Sequence[Json]
    ground: str

    def __post_init__(self) -> None:
        if not self.ground.strip():
            raise ValueError("consented records need a stated ground")

    def __repr__(self) -> str:
        return "ConsentedLot(…)"


@dataclass(frozen=True, slots=True)
class Deidentified:
    """A record after the plan: valid R4, marked, with nothing in it that no rule kept."""

    content: Json

    @property
    def type(self) -> str:
        """The resource type."""
        return str(self.content["resourceType"])

    def __repr__(self) -> str:
        return f"Deidentified({self.type})"
