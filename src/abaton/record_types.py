"""The stages of a record: read, consented, de-identified.

The type says how far a record has come, so that a type checker refuses a raw record where a de-identified
one is expected. Only :mod:`abaton.deid.deidentifier` makes a :class:`Deidentified`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]
_HASH = re.compile(r"[0-9a-f]{64}")


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


class Ground(Protocol):
    """Why records may be used, as an audit chain holds it: a consent, a permit, or a ground that somebody answers for.

    Governance makes one from the chain alone (:class:`abaton.governance.audit_log.Held`).
    """

    @property
    def words(self) -> str:
        """The ground in words."""

    @property
    def chain(self) -> str:
        """The hash with which the audit chain ended when it held the ground: it is told at or before that entry."""


@dataclass(frozen=True, slots=True)
class Consented:
    """A record that may be used for a study, and on what ground, which an audit chain holds."""

    record: Record
    ground: Ground

    def __post_init__(self) -> None:
        _check(self.ground)

    def __repr__(self) -> str:
        return "Consented(…)"


@dataclass(frozen=True, slots=True)
class ConsentedLot:
    """Several records that may be used for a study on one ground: the lines of a file."""

    contents: Sequence[Json]
    ground: Ground

    def __post_init__(self) -> None:
        _check(self.ground)

    def __repr__(self) -> str:
        return "ConsentedLot(…)"


def _check(ground: object) -> None:
    """Refuse what is no ground that a chain holds, such as mere words."""
    if not _HASH.fullmatch(str(getattr(ground, "chain", ""))):
        raise TypeError("consented records need a ground that an audit chain holds")


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
