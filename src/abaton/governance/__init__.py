"""Consent, the mapping table, sealed transfer, the audit chain and withdrawal: nothing happens without consent.

Each name is loaded when it is first used: judging a consent needs neither a database nor cryptography.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abaton.governance.audit import Audit, Entry, Fault, verify
    from abaton.governance.cohorts import (
        Snapshot,
        marked_rounds,
        members_of,
        note_round,
        rounds_with,
        take_snapshot,
    )
    from abaton.governance.consents import Action, Ask, Reason, judge, make_consent
    from abaton.governance.counting import Chain, Cohort, StudyCensus, census, chain
    from abaton.governance.elsewhere import (
        Permit,
        TakenOver,
        ground_noted,
        keep_terms,
        note_permit,
        set_opt_outs,
    )
    from abaton.governance.enrolling import Confirmed, take_consent
    from abaton.governance.inbox import Inbox, Received, Room, Uploads
    from abaton.governance.keys import Kind, PrivateKey, PublicKey, PublicRing, Ring, verifier
    from abaton.governance.outbox import Outbox, Queued
    from abaton.governance.refusals import Denied, RefusalCode
    from abaton.governance.registry import Registry
    from abaton.governance.retention import Due, Holdings, due, enforce
    from abaton.governance.schema import metadata
    from abaton.governance.sealing import Compression, Header, Looked, look, opened, seal
    from abaton.governance.senders import Sender, SenderRole, Senders
    from abaton.governance.statements import Statement, check, state
    from abaton.governance.tags import tag
    from abaton.governance.vault import Vault, VaultPurpose, Wish, approve, reidentify, request, row_tag
    from abaton.governance.withdrawal import Cascade, CascadeStep, Case, LeavingSite, Waiting, site_actions

__all__ = [
    "Action",
    "Ask",
    "Audit",
    "Cascade",
    "CascadeStep",
    "Case",
    "Chain",
    "Cohort",
    "Compression",
    "Confirmed",
    "Denied",
    "Due",
    "Entry",
    "Fault",
    "Header",
    "Holdings",
    "Inbox",
    "Kind",
    "LeavingSite",
    "Looked",
    "Outbox",
    "Permit",
    "PrivateKey",
    "PublicKey",
    "PublicRing",
    "Queued",
    "Reason",
    "Received",
    "RefusalCode",
    "Registry",
    "Ring",
    "Room",
    "Sender",
    "SenderRole",
    "Senders",
    "Snapshot",
    "Statement",
    "StudyCensus",
    "TakenOver",
    "Uploads",
    "Vault",
    "VaultPurpose",
    "Waiting",
    "Wish",
    "approve",
    "census",
    "chain",
    "check",
    "due",
    "enforce",
    "ground_noted",
    "judge",
    "keep_terms",
    "look",
    "make_consent",
    "marked_rounds",
    "members_of",
    "metadata",
    "note_permit",
    "note_round",
    "opened",
    "reidentify",
    "request",
    "rounds_with",
    "row_tag",
    "seal",
    "set_opt_outs",
    "site_actions",
    "state",
    "tag",
    "take_consent",
    "take_snapshot",
    "verifier",
    "verify",
]

_PLACES = {
    "audit": "Audit Entry Fault verify",
    "counting": "Chain Cohort StudyCensus census chain",
    "cohorts": "Snapshot marked_rounds members_of note_round rounds_with take_snapshot",
    "consents": "Action Ask Reason judge make_consent",
    "elsewhere": "Permit TakenOver ground_noted keep_terms note_permit set_opt_outs",
    "enrolling": "Confirmed take_consent",
    "inbox": "Inbox Received Room Uploads",
    "keys": "Kind PrivateKey PublicKey PublicRing Ring verifier",
    "outbox": "Outbox Queued",
    "refusals": "Denied RefusalCode",
    "registry": "Registry",
    "retention": "Due Holdings due enforce",
    "schema": "metadata",
    "sealing": "Compression Header Looked look opened seal",
    "senders": "Sender SenderRole Senders",
    "statements": "Statement check state",
    "tags": "tag",
    "vault": "Vault VaultPurpose Wish approve reidentify request row_tag",
    "withdrawal": "Cascade CascadeStep Case LeavingSite Waiting site_actions",
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACE_OF[name]}"), name)
    globals()[name] = found
    return found
