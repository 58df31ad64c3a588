"""Consent gates: whether the records of a subject may be used for a study at a given time."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from abaton.canonical_json import canonical_digest
from abaton.governance import (
    AuditedLegalBasis,
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    DataPermit,
    DenialReason,
    registry_pseudonym,
)
from abaton.study import Study
from abaton.study.document import FORMAT

_DENIAL_TEXTS = {
    DenialReason.ABSENT: "there is no consent",
    DenialReason.EXPIRED: "the consent has expired",
    DenialReason.NOT_YET: "the consent is not in force yet",
    DenialReason.WITHDRAWN: "the consent was withdrawn",
    DenialReason.OTHER_DOCUMENT: "the consent is to another version of the study document",
    DenialReason.NOT_OPTED_IN: "the person has not agreed to take part in studies",
    DenialReason.NOT_PERMITTED: "the consent does not permit this",
    DenialReason.OPTED_OUT: "the person has opted out of use for research",
    DenialReason.STUDY_CLOSED: "the study is not open in the registry",
}


WITHDRAWAL_REASONS = frozenset(
    _DENIAL_TEXTS[reason]
    for reason in (DenialReason.WITHDRAWN, DenialReason.OPTED_OUT, DenialReason.NOT_OPTED_IN)
)
"""Reasons that mean a withdrawal or an opt-out, independent of the time."""


class PermissionDecision(NamedTuple):
    """Decision of a gate: the legal basis of a permission, or the reason of a denial.

    ``uncovered_types`` are requested resource types that the consent does not cover.
    """

    allowed: bool
    legal_basis: AuditedLegalBasis | None = None
    reason: str = ""
    uncovered_types: frozenset[str] = frozenset()


class ConsentGate(Protocol):
    """Consent gate for one study document, identified by its hash."""

    def __call__(
        self,
        subject: str,
        timestamp: datetime,
        action: ConsentAction = ConsentAction.COLLECT,
        resource_types: Collection[str] = (),
    ) -> PermissionDecision:
        """Return the consent gate's decision whether the records of a subject may be used.

        Args:
            subject: Patient id in the site's records.
            timestamp: Time of the use.
            action: Intended action.
            resource_types: Resource types that are used.
        """

    def legal_basis_text(self) -> str:
        """Return the legal basis of the consent gate in plain words, for a report."""


@dataclass(frozen=True, slots=True)
class OptOutGate:
    """Subjects who have opted out of use for research, or have withdrawn from a study.

    Args:
        registry: Registry of opt-outs and withdrawals.
        key: Key of the registry pseudonyms.
        study: Id of the study.
        has_list: Whether the site configuration names an opt-out list.
    """

    registry: ConsentRegistry
    key: bytes = field(repr=False)
    study: str
    has_list: bool = True

    def has_opted_out(self, subject: str) -> bool:
        """Return whether a subject has opted out or withdrawn and is stopped by the consent gate."""
        return subject_pseudonym(self.key, subject) in self.opted_out()

    def opted_out(self) -> frozenset[str]:
        """Return the pseudonyms of the subjects that the opt-out gate stops; the same object while unchanged."""
        return self.registry.opted_out_subjects(self.study)


class _GeneralBasisGate(ABC):
    """Gate with one legal basis for all subjects, except those who have opted out."""

    __slots__ = ()
    opt_outs: OptOutGate | None

    @abstractmethod
    def decide_for_all(self, timestamp: datetime, action: ConsentAction) -> PermissionDecision:
        """Return the consent gate's decision for all subjects who have not opted out."""

    def __call__(
        self,
        subject: str,
        timestamp: datetime,
        action: ConsentAction = ConsentAction.COLLECT,
        resource_types: Collection[str] = (),
    ) -> PermissionDecision:
        """Return the consent gate's decision for all subjects; an opt-out overrides it."""
        return (
            _OPTED_OUT
            if self.opt_outs and self.opt_outs.has_opted_out(subject)
            else self.decide_for_all(timestamp, action)
        )


@dataclass(frozen=True, slots=True)
class StatedLegalBasis(_GeneralBasisGate):
    """Legal basis that the site states for all its records, such as an ethics vote.

    Args:
        legal_basis: Entry of the audit log; see :func:`abaton.governance.record_legal_basis`.
        opt_outs: Opt-outs and withdrawals, if the site has a registry key.
    """

    legal_basis: AuditedLegalBasis
    opt_outs: OptOutGate | None = None

    def decide_for_all(self, timestamp: datetime, action: ConsentAction) -> PermissionDecision:
        """Return the gate's decision by the stated legal basis, for subjects who have not opted out."""
        return PermissionDecision(allowed=True, legal_basis=self.legal_basis)

    def legal_basis_text(self) -> str:
        """Return the stated legal basis of the consent gate in plain words, for a report."""
        return f"used on a legal basis stated by the site: {self.legal_basis.text}{_opt_out_clause(self.opt_outs)}"


@dataclass(frozen=True, slots=True)
class PermittedUse(_GeneralBasisGate):
    """Data permit for one study document, except for subjects who have opted out.

    Args:
        permit: The permit.
        purpose: Purpose of the study.
        document: Hash of the study document.
        legal_basis: Entry of the audit log; see :func:`abaton.governance.record_permit`.
        opt_outs: Opt-outs and withdrawals, if the site has a registry key.
    """

    permit: DataPermit
    purpose: str
    document: str
    legal_basis: AuditedLegalBasis
    opt_outs: OptOutGate | None = None

    def decide_for_all(self, timestamp: datetime, action: ConsentAction) -> PermissionDecision:
        """Return the gate's decision by the data permit, for subjects who have not opted out."""
        reason = self.permit.reason(self.document, self.purpose, timestamp, action)
        if reason.permits:
            return PermissionDecision(allowed=True, legal_basis=self.legal_basis)
        return PermissionDecision(allowed=False, reason=_PERMIT_DENIAL_TEXTS[reason])

    def legal_basis_text(self) -> str:
        """Return the data permit of the consent gate in plain words, for a report."""
        permit = self.permit
        actions = ", ".join(_ACTION_NAMES[action] for action in permit.actions)
        return (
            f"used on data permit {permit.number} of {permit.authority}, {permit.start} to {permit.end}, "
            f"for {', '.join(permit.purposes)}, to {actions}, "
            f"given for document {permit.document}{_opt_out_clause(self.opt_outs)}"
        )


_OPTED_OUT = PermissionDecision(allowed=False, reason="the person has opted out of use for research")
_ACTION_NAMES = {ConsentAction.COLLECT: "collect", ConsentAction.SEND: "send", ConsentAction.TRAIN: "train"}
_PERMIT_DENIAL_TEXTS = {
    DenialReason.OTHER_DOCUMENT: "the data permit was given for another version of the study document",
    DenialReason.NOT_PERMITTED: "the data permit does not cover the study's purpose or this action",
    DenialReason.NOT_YET: "the data permit is not in force yet",
    DenialReason.EXPIRED: "the data permit has expired",
}


def _opt_out_clause(opt_outs: OptOutGate | None) -> str:
    if opt_outs is None or not opt_outs.has_list:
        return ""
    return (
        f"; subjects on the opt-out list {list_digest(opt_outs.registry.opted_out_subjects())} are excluded"
    )


def list_digest(pseudonyms: Collection[str]) -> str:
    """Return the digest of a consent gate's list of subjects, for the audit log and reports."""
    return canonical_digest(sorted(pseudonyms))


@dataclass(frozen=True, slots=True)
class RegistryGate:
    """Consent of each subject to one study document, from a registry.

    Args:
        registry: Registry of the consents.
        key: Key of the registry pseudonyms; see :func:`subject_pseudonym`.
        study: Id of the study.
        document: Hash of the study document.
    """

    registry: ConsentRegistry
    key: bytes
    study: str
    document: str

    def __call__(
        self,
        subject: str,
        timestamp: datetime,
        action: ConsentAction = ConsentAction.COLLECT,
        resource_types: Collection[str] = (),
    ) -> PermissionDecision:
        """Return the consent gate's decision from the registry for a subject, an action and resource types."""
        query = ConsentQuery(subject_pseudonym(self.key, subject), self.study, self.document, action)
        reason, uncovered = self.registry.permission(query, resource_types, timestamp)
        if reason.permits:
            legal_basis = self.registry.audited_basis(f"consent to {self.study} {self.document}")
            return PermissionDecision(allowed=True, legal_basis=legal_basis, uncovered_types=uncovered)
        return PermissionDecision(
            allowed=False, reason=_DENIAL_TEXTS.get(reason, f"the consent is not valid: {reason.value}")
        )

    def legal_basis_text(self) -> str:
        """Return the consents behind the registry's gate in plain words, for a report."""
        return f"used with the consent of each subject to document {self.document}"

    def __repr__(self) -> str:
        return f"RegistryGate({self.study})"


def publish(registry: ConsentRegistry, study: Study, timestamp: datetime) -> None:
    """Publish a study document in the registry that the consent gate reads, with its end and retention period."""
    content = {"format": FORMAT, **study.content()}
    registry.publish(
        study.study.id, study.hash, timestamp, ends=study.end, keep_until=study.keep_until, content=content
    )


def earlier_studies(gate: ConsentGate) -> list[Study]:
    """Return the study documents in the registry of a consent gate; none if the site has no registry."""
    opt_outs = gate.opt_outs if isinstance(gate, StatedLegalBasis | PermittedUse) else None
    source = gate if isinstance(gate, RegistryGate) else opt_outs
    studies = []
    for published in source.registry.studies() if source else ():
        try:
            table = json.loads(published.content)
            del table["format"]
            studies.append(Study.model_validate_json(json.dumps(table), strict=True))
        except (ValueError, TypeError, KeyError):
            continue  # a document of another version cannot be compared
    return studies


def subject_pseudonym(key: bytes, subject: str) -> str:
    """Return the registry pseudonym of a Patient id under the site's key, as the consent gate looks it up.

    >>> subject_pseudonym(b"k" * 32, "p1") == registry_pseudonym(b"k" * 32, "subject", "p1")
    True
    """
    return registry_pseudonym(key, "subject", subject)
