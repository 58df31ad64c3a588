"""Consent, the mapping table, sealed transfer, the audit chain and withdrawal: nothing happens without consent."""

from abaton.governance.actions import Site, site_actions
from abaton.governance.audit import Audit, Entry, Fault, verify
from abaton.governance.census import Chain, Cohort, StudyCensus, census, chain
from abaton.governance.cohorts import (
    Snapshot,
    marked_rounds,
    members_of,
    note_round,
    rounds_with,
    take_snapshot,
)
from abaton.governance.consents import Action, Ask, Reason, judge, make_consent
from abaton.governance.elsewhere import (
    Permit,
    TakenOver,
    ground_noted,
    keep_terms,
    note_permit,
    set_opt_outs,
)
from abaton.governance.enrolling import Confirmed, take_consent
from abaton.governance.envelope import Compression, Header
from abaton.governance.gate import Gate, study_gate
from abaton.governance.inbox import Inbox, Received
from abaton.governance.keys import Kind, PrivateKey, PublicKey, verifier
from abaton.governance.leaving import leave, write_notice
from abaton.governance.outbox import Outbox, Queued
from abaton.governance.refusals import Code, Denied
from abaton.governance.registry import Registry
from abaton.governance.reidentify import Purpose, Wish, approve, reidentify, request
from abaton.governance.retention import Due, Holdings, due, enforce
from abaton.governance.rings import PublicRing, Ring
from abaton.governance.schema import metadata
from abaton.governance.seal import Looked, look, opened, seal
from abaton.governance.senders import Role, Sender, Senders
from abaton.governance.statements import Statement, check, state
from abaton.governance.tags import tag
from abaton.governance.uploads import Room, Uploads
from abaton.governance.vault import Vault, row_tag
from abaton.governance.withdrawal import Cascade, Case, Step, Waiting

__all__ = [
    "Action",
    "Ask",
    "Audit",
    "Cascade",
    "Case",
    "Chain",
    "Code",
    "Cohort",
    "Compression",
    "Confirmed",
    "Denied",
    "Due",
    "Entry",
    "Fault",
    "Gate",
    "Header",
    "Holdings",
    "Inbox",
    "Kind",
    "Looked",
    "Outbox",
    "Permit",
    "PrivateKey",
    "PublicKey",
    "PublicRing",
    "Purpose",
    "Queued",
    "Reason",
    "Received",
    "Registry",
    "Ring",
    "Role",
    "Room",
    "Sender",
    "Senders",
    "Site",
    "Snapshot",
    "Statement",
    "Step",
    "StudyCensus",
    "TakenOver",
    "Uploads",
    "Vault",
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
    "leave",
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
    "study_gate",
    "tag",
    "take_consent",
    "take_snapshot",
    "verifier",
    "verify",
    "write_notice",
]
