"""Consent, the mapping table, sealed transfer, the audit chain and withdrawal: nothing happens without consent.

Each name is loaded when it is first used: judging a consent needs neither a database nor cryptography.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abaton.governance.audit_log import Audit, Entry, Held, verify
    from abaton.governance.cohorts import (
        Chain,
        Snapshot,
        StudyCensus,
        census,
        chain,
        members_of,
        note_round,
        rounds_with,
        take_snapshot,
    )
    from abaton.governance.consent import Action, Ask, Permit, Reason, judge, make_consent
    from abaton.governance.external_consent import (
        TakenOver,
        ground_noted,
        keep_terms,
        note_permit,
        set_opt_outs,
        state_ground,
    )
    from abaton.governance.inbox import Inbox
    from abaton.governance.keys import PrivateKey, PublicRing, Ring, verifier
    from abaton.governance.outbox import Outbox, Queued
    from abaton.governance.consent_registry import Registry
    from abaton.governance.retention import Holdings, due, enforce
    from abaton.governance.schema import metadata
    from abaton.governance.sealed_envelope import Header, Looked, look, opened, seal
    from abaton.governance.senders import SenderRole, Senders
    from abaton.governance.signed_statements import Statement
    from abaton.governance.vault import Vault, VaultPurpose, Wish, approve, reidentify, request, row_tag
    from abaton.governance.withdrawal import (
        Cascade,
        CascadeStep,
        Case,
        LeavingSite,
        ToCentre,
        open_case,
        pending,
        site_actions,
    )
    from abaton.governance.identifiers import Denied, RefusalCode, tag

__all__ = [
    "Action",
    "Ask",
    "Audit",
    "Cascade",
    "CascadeStep",
    "Case",
    "Chain",
    "Denied",
    "Entry",
    "Header",
    "Held",
    "Holdings",
    "Inbox",
    "LeavingSite",
    "Looked",
    "Outbox",
    "Permit",
    "PrivateKey",
    "PublicRing",
    "Queued",
    "Reason",
    "RefusalCode",
    "Registry",
    "Ring",
    "SenderRole",
    "Senders",
    "Snapshot",
    "Statement",
    "StudyCensus",
    "TakenOver",
    "ToCentre",
    "Vault",
    "VaultPurpose",
    "Wish",
    "approve",
    "census",
    "chain",
    "due",
    "enforce",
    "ground_noted",
    "judge",
    "keep_terms",
    "look",
    "make_consent",
    "members_of",
    "metadata",
    "note_permit",
    "note_round",
    "open_case",
    "opened",
    "pending",
    "reidentify",
    "request",
    "rounds_with",
    "row_tag",
    "seal",
    "set_opt_outs",
    "site_actions",
    "state_ground",
    "tag",
    "take_snapshot",
    "verifier",
    "verify",
]

_PLACES = {
    "audit_log": "Audit Entry Held verify",
    "cohorts": "Chain Snapshot StudyCensus census chain members_of note_round rounds_with take_snapshot",
    "consent": "Action Ask Permit Reason judge make_consent",
    "external_consent": "TakenOver ground_noted keep_terms note_permit set_opt_outs state_ground",
    "inbox": "Inbox",
    "keys": "PrivateKey PublicRing Ring verifier",
    "outbox": "Outbox Queued",
    "consent_registry": "Registry",
    "retention": "Holdings due enforce",
    "schema": "metadata",
    "sealed_envelope": "Header Looked look opened seal",
    "senders": "SenderRole Senders",
    "signed_statements": "Statement",
    "vault": "Vault VaultPurpose Wish approve reidentify request row_tag",
    "withdrawal": "Cascade CascadeStep Case LeavingSite ToCentre open_case pending site_actions",
    "identifiers": "Denied RefusalCode tag",
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACE_OF[name]}"), name)
    globals()[name] = found
    return found
