"""Consent, pseudonym vault, sealed transfer, audit log and withdrawal.

Names are imported on first use: evaluating a consent needs neither a database nor cryptography.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abaton.governance.audit_log import AuditedLegalBasis, AuditEntry, AuditLog, verify
    from abaton.governance.cohorts import (
        AuditSummary,
        CohortSnapshot,
        StudyCounts,
        record_round,
        rounds_with,
        snapshot_members,
        study_counts,
        summarise_audit_log,
        take_snapshot,
    )
    from abaton.governance.consent import (
        ConsentAction,
        ConsentQuery,
        DataPermit,
        DenialReason,
        evaluate_consent,
        make_consent,
    )
    from abaton.governance.consent_registry import ConsentRegistry
    from abaton.governance.envelope_format import EnvelopeHeader
    from abaton.governance.external_consent import (
        ConsentImportResult,
        import_consents,
        record_basis_once,
        record_legal_basis,
        record_permit,
        set_opt_outs,
    )
    from abaton.governance.identifiers import registry_pseudonym
    from abaton.governance.inbox import Inbox
    from abaton.governance.keys import KeySet, PrivateKey, PublicKeySet, verifier
    from abaton.governance.outbox import Outbox, QueuedEnvelope
    from abaton.governance.refusals import DeniedError, RefusalCode
    from abaton.governance.reidentification import (
        ReidentificationRequest,
        VaultPurpose,
        approve,
        reidentify,
        request,
    )
    from abaton.governance.retention import RetentionTargets, due_items, enforce
    from abaton.governance.schema import metadata
    from abaton.governance.sealed_envelope import EnvelopeInfo, inspect_envelope, open_envelope, seal
    from abaton.governance.senders import SenderRegistry, SenderRole
    from abaton.governance.signed_statements import Statement
    from abaton.governance.vault import Vault, vault_pseudonym
    from abaton.governance.withdrawal import (
        CascadeStep,
        CentreWithdrawal,
        SiteWithdrawal,
        WithdrawalCascade,
        WithdrawalCase,
        open_case,
        pending,
        site_steps,
    )

__all__ = [
    "AuditEntry",
    "AuditLog",
    "AuditSummary",
    "AuditedLegalBasis",
    "CascadeStep",
    "CentreWithdrawal",
    "CohortSnapshot",
    "ConsentAction",
    "ConsentImportResult",
    "ConsentQuery",
    "ConsentRegistry",
    "DataPermit",
    "DenialReason",
    "DeniedError",
    "EnvelopeHeader",
    "EnvelopeInfo",
    "Inbox",
    "KeySet",
    "Outbox",
    "PrivateKey",
    "PublicKeySet",
    "QueuedEnvelope",
    "RefusalCode",
    "ReidentificationRequest",
    "RetentionTargets",
    "SenderRegistry",
    "SenderRole",
    "SiteWithdrawal",
    "Statement",
    "StudyCounts",
    "Vault",
    "VaultPurpose",
    "WithdrawalCascade",
    "WithdrawalCase",
    "approve",
    "due_items",
    "enforce",
    "evaluate_consent",
    "import_consents",
    "inspect_envelope",
    "make_consent",
    "metadata",
    "open_case",
    "open_envelope",
    "pending",
    "record_basis_once",
    "record_legal_basis",
    "record_permit",
    "record_round",
    "registry_pseudonym",
    "reidentify",
    "request",
    "rounds_with",
    "seal",
    "set_opt_outs",
    "site_steps",
    "snapshot_members",
    "study_counts",
    "summarise_audit_log",
    "take_snapshot",
    "vault_pseudonym",
    "verifier",
    "verify",
]

_EXPORTS = {
    "audit_log": "AuditLog AuditEntry AuditedLegalBasis verify",
    "cohorts": "AuditSummary CohortSnapshot StudyCounts record_round rounds_with snapshot_members study_counts "
    "summarise_audit_log take_snapshot",
    "consent": "ConsentAction ConsentQuery DataPermit DenialReason evaluate_consent make_consent",
    "external_consent": "ConsentImportResult import_consents record_basis_once record_legal_basis record_permit "
    "set_opt_outs",
    "inbox": "Inbox",
    "keys": "PrivateKey PublicKeySet KeySet verifier",
    "outbox": "Outbox QueuedEnvelope",
    "consent_registry": "ConsentRegistry",
    "retention": "RetentionTargets due_items enforce",
    "schema": "metadata",
    "envelope_format": "EnvelopeHeader",
    "sealed_envelope": "EnvelopeInfo inspect_envelope open_envelope seal",
    "senders": "SenderRole SenderRegistry",
    "signed_statements": "Statement",
    "reidentification": "VaultPurpose ReidentificationRequest approve reidentify request",
    "vault": "Vault vault_pseudonym",
    "withdrawal": "CascadeStep CentreWithdrawal SiteWithdrawal WithdrawalCascade WithdrawalCase open_case pending "
    "site_steps",
    "identifiers": "registry_pseudonym",
    "refusals": "DeniedError RefusalCode",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exported = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = exported
    return exported
