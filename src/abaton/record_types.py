"""Types of a record by processing stage: read, consented, de-identified.

A type checker rejects a raw record where a de-identified one is expected. Only :mod:`abaton.deid.deidentifier` creates
a :class:`DeidentifiedRecord`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Record:
    """FHIR resource as it was read, with arbitrary content."""

    content: Json

    @property
    def type(self) -> str:
        """Resource type that a raw record declares; empty if it has none."""
        name = self.content.get("resourceType")
        return name if isinstance(name, str) else ""

    def __repr__(self) -> str:
        return "Record(…)"  # the content of a record must not reach a log


class LegalBasis(Protocol):
    """Legal basis for using records: a consent, a permit or a stated basis, recorded in the audit log.

    Governance creates one from the audit log only (:class:`abaton.governance.audit_log.AuditedLegalBasis`).
    """

    @property
    def text(self) -> str:
        """Text of the legal basis of a consented record."""

    @property
    def audit_hash(self) -> str:
        """Hash of the last audit entry when the legal basis of a consented record was recorded."""


@dataclass(frozen=True, slots=True)
class ConsentedRecord:
    """Record that may be used for a study, with its audited legal basis."""

    record: Record
    legal_basis: LegalBasis

    def __post_init__(self) -> None:
        _check(self.legal_basis)

    def __repr__(self) -> str:
        return "ConsentedRecord(…)"


@dataclass(frozen=True, slots=True)
class ConsentedBatch:
    """Batch of records that may be used for a study on one legal basis."""

    contents: Sequence[Json]
    legal_basis: LegalBasis

    def __post_init__(self) -> None:
        _check(self.legal_basis)

    def __repr__(self) -> str:
        return "ConsentedBatch(…)"


def _check(legal_basis: object) -> None:
    """Raise a `TypeError` for a consented record whose legal basis is not in an audit log, such as a string."""
    if not _SHA256.fullmatch(str(getattr(legal_basis, "audit_hash", ""))):
        raise TypeError("consented records need a legal basis that is recorded in an audit log")


@dataclass(frozen=True, slots=True)
class DeidentifiedRecord:
    """De-identified record: valid FHIR R4, labelled, with only the elements that a rule keeps."""

    content: Json

    @property
    def type(self) -> str:
        """Resource type of a de-identified record."""
        return str(self.content["resourceType"])

    def __repr__(self) -> str:
        return f"DeidentifiedRecord({self.type})"
