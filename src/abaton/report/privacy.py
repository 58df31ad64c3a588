"""The privacy report: everything a data-protection officer must see before signing, as plain data.

What a part of the system has not supplied is reported as not supplied; nothing is filled in. Words follow the
EDPB's guidelines 01/2025 on pseudonymisation: *pseudonymisation domain*, *pseudonymising secrets*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from abaton.errors import SettingsError

FORMAT = "abaton.privacy-report/1"

LIMITS = (
    "Pseudonymised data is personal data: whoever holds the pseudonymising secrets, or enough other knowledge, "
    "can find the person again.",
    "k-anonymity hides who a record belongs to among at least k people; it does not hide what a whole class has "
    "in common. Diversity and closeness limit that, for the sensitive columns named here and no others.",
    "The risks hold for the quasi-identifiers named here. An attacker who knows other columns, or has another "
    "release of the same people, may do better.",
    "Risks against a population assume that the table is a random sample of it.",
    "A released anonymous table cannot be called back. A withdrawal acts on what is still held.",
    "Free text, images and attachments are not measured by any number in this report.",
)
"""What the numbers do not promise, in plain words."""


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """What the study is for, on which legal ground, and which document says so."""

    title: str | None = None
    purpose: str | None = None
    legal_basis: str | None = None
    document_sha256: str | None = None
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class Consents:
    """How many people said yes, and how many yeses are no longer in force."""

    counted: int
    in_force: int
    expired: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the records, how often it was met, and why it was kept or removed."""

    path: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Residual:
    """What is left in free text and attachments, counted, and what was done about it."""

    texts: int
    attachments: int
    statement: str


@dataclass(frozen=True, slots=True)
class Custody:
    """Who holds what, for how long, and who receives the data."""

    pseudonymising_secrets: str | None = None
    mapping_table: str | None = None
    pseudonymisation_domain: str | None = None
    retention: str | None = None
    recipients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checks:
    """Whether the output is valid and whether planted or known identifiers were found in it."""

    resources_validated: int
    resources_invalid: int
    identifiers_sought: int
    identifiers_found: int
    outputs_scanned: int


@dataclass(frozen=True, slots=True)
class ModelUtility:
    """What anonymisation costs the community model: its quality on original and on anonymous records."""

    measure: str
    original: float
    anonymous: float


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature over the report's digest."""

    signer: str
    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class PrivacyInputs:
    """Everything the report may hold; ``None`` means that nobody supplied it.

    Attributes:
        anonymity: The row of an examined table (``Outcome.row()``).
        study: Purpose, legal basis and the document's hash.
        consents: Consents counted, expired, withdrawn.
        kept: Every element kept, and why.
        removed: Every element removed, with counts.
        residual: Free text and attachments that are left.
        custody: Keys, mapping table, retention, recipients.
        checks: Validation and leak scan.
        models: Change in the community model's quality.
    """

    anonymity: Mapping[str, Any] | None = None
    study: StudyFacts | None = None
    consents: Consents | None = None
    kept: tuple[Element, ...] | None = None
    removed: tuple[Element, ...] | None = None
    residual: Residual | None = None
    custody: Custody | None = None
    checks: Checks | None = None
    models: tuple[ModelUtility, ...] | None = None


def privacy_report(
    inputs: PrivacyInputs, *, software: str, made_at: str, signature: Signature | None = None
) -> dict[str, Any]:
    """The report as plain data, ready for JSON; the page is made from exactly this.

    Args:
        inputs: What the parts of the system supplied.
        software: Name and version of what made it.
        made_at: When, as ISO 8601 text; this function has no clock.
        signature: Over the report's digest, once there is one.

    Returns:
        The report with ``sha256``, the digest of everything else but the signature.

    >>> made = privacy_report(PrivacyInputs(consents=Consents(9, 7, 1, 1)), software="abaton", made_at="2026-01-01")
    >>> made["consents"]["in_force"], made["not_supplied"][:3]
    (7, ['anonymity', 'study', 'kept'])
    """
    parts = {field.name: _plain(getattr(inputs, field.name)) for field in fields(inputs)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "software": software,
        "made_at": made_at,
        **parts,
        "not_supplied": [name for name, part in parts.items() if part is None],
        "limits": list(LIMITS),
    }
    return content | {"sha256": digest(content), "signature": _plain(signature)}


def inputs_from(parts: Mapping[str, Any], *, where: str = "report inputs") -> PrivacyInputs:
    """What other parts of the system supplied, from plain values such as a JSON file.

    Raises:
        SettingsError: A part or one of its fields is unknown, missing or of the wrong kind.

    >>> inputs_from({"consents": {"counted": 2, "in_force": 2, "expired": 0, "withdrawn": 0}}).consents
    Consents(counted=2, in_force=2, expired=0, withdrawn=0)
    """
    unknown = sorted(set(parts) - set(_PARTS) - set(_LISTS))
    if unknown:
        known = ", ".join(sorted({*_PARTS, *_LISTS}))
        raise SettingsError(f"'{unknown[0]}' is not a part of the report", where=where, remedy=f"use {known}")
    made: dict[str, Any] = {}
    try:
        made |= {name: kind(**parts[name]) for name, kind in _PARTS.items() if name in parts}
        made |= {
            name: tuple(kind(**row) for row in parts[name]) for name, kind in _LISTS.items() if name in parts
        }
    except TypeError as error:
        raise SettingsError(
            "a part of the report is not as expected", where=where, remedy=str(error)
        ) from None
    return PrivacyInputs(**made)


_PARTS: dict[str, Any] = {
    "study": StudyFacts,
    "consents": Consents,
    "residual": Residual,
    "custody": Custody,
    "checks": Checks,
}
_LISTS: dict[str, Any] = {"kept": Element, "removed": Element, "models": ModelUtility}
PARTS = (*_PARTS, *_LISTS)
"""The parts of a report that can be supplied."""


def digest(report: Mapping[str, Any]) -> str:
    """The SHA-256 of a report's content, whatever the order of its keys; the signature is made over it."""
    content = {key: value for key, value in report.items() if key not in ("sha256", "signature")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(part: Any) -> Any:
    if part is None or isinstance(part, Mapping):
        return part
    return [asdict(item) for item in part] if isinstance(part, tuple) else asdict(part)
