"""Tables of the governance database: consents, cohorts, envelopes, audit log, withdrawals.

The mapping table has its own databases (:mod:`abaton.governance.vault`). A database of another version is refused
before any change. There are no migrations in place, because a registry is evidence and an old vault would assign new
pseudonyms.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text, UniqueConstraint

from abaton.store import mark_version

VERSION = 4
DONE = "done"
"""Value of `withdrawals.step` for a completed withdrawal."""

metadata = MetaData()

studies = Table(
    "studies",
    metadata,
    Column("study", Text, primary_key=True),
    Column("document", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("published", Text, nullable=False),
    Column("ends", Text, nullable=False),
    Column("keep_until", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("closed", Text, nullable=False),
    UniqueConstraint("study", "version"),
)

consents = Table(
    "consents",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("study", Text, primary_key=True),  # empty: general opt-in to studies
    Column("version", Integer, primary_key=True),
    Column("document", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
    Column("resource", Text, nullable=False),
)

subjects = Table(
    "subjects",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("study", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
    Column("resource", Text, nullable=False),
)

opt_outs = Table(  # opt-out of all research use; overrides every consent and permit
    "opt_outs",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("listed_at", Text, nullable=False),
)

form_consents = Table(  # subjects whose latest consent was imported from a form
    "form_consents",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
)

legal_bases = Table(  # permits and stated legal bases for using records without individual consent
    "legal_bases",
    metadata,
    Column("study", Text, primary_key=True),
    Column("document", Text, primary_key=True),
    Column("legal_basis", Text, primary_key=True),
    Column("recorded_at", Text, nullable=False),
    Column(
        "permit", Text, nullable=False, server_default=""
    ),  # permit and purpose of the study as JSON; empty if not a permit
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("study", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("taken_at", Text, nullable=False),
    Column(
        "base", Text, nullable=False, server_default=""
    ),  # snapshot from which this one differs in few subjects
)

members = Table(
    "members",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("removed_at", Text, nullable=False),  # time of removal; empty while included
    Index("members_by_subject", "subject"),
)

snapshot_removals = Table(  # subjects of the base that are not in the snapshot
    "snapshot_removals",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Index("snapshot_removals_by_subject", "subject"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("study", Text, primary_key=True),
    Column("run", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("snapshot", Text, nullable=False),
    Column("recorded_at", Text, nullable=False),
)

marked_rounds = Table(
    "marked_rounds",
    metadata,
    Column("study", Text, primary_key=True),
    Column("run", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("marked_at", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("hash", Text, nullable=False),
)

senders = Table(
    "senders",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("key_set", Text, nullable=False),
    Column("registered_at", Text, nullable=False),
    Column("valid_until", Text, nullable=False),
)

sender_keys = Table(
    "sender_keys", metadata, Column("key", Text, primary_key=True), Column("name", Text, nullable=False)
)

counters = Table(
    "counters", metadata, Column("study", Text, primary_key=True), Column("last", BigInteger, nullable=False)
)

outbox = Table(
    "outbox",
    metadata,
    Column("study", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created", Text, nullable=False),
    Column("content_digest", Text, nullable=False),  # SHA-256 of the content: equal content is not sent twice
    Column("receipt", Text, nullable=False),
    Index("outbox_by_subject", "study", "subject"),
)

inbox = Table(
    "inbox",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("study", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("subject", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("received_at", Text, nullable=False),
    Index("inbox_by_subject", "study", "subject"),
)

received_sequences = (
    Table(  # stays after records are deleted, so that they cannot be replayed; names no subject
        "received_sequences",
        metadata,
        Column("sender", Text, primary_key=True),
        Column("study", Text, primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
        Column("digest", Text, nullable=False),
        Column("receipt", Text, nullable=False),
        Index("received_sequences_by_digest", "digest"),
    )
)

deletions = Table(
    "deletions",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("sender", Text, primary_key=True),
    Column("receipt", Text, nullable=False),
)

withdrawals = Table(
    "withdrawals",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("vault_row", Text, nullable=False),  # pseudonym of the subject's row in the vault
    Column("step", Text, nullable=False),
    Column("opened_at", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
    Column("pending_on", Text, nullable=False),
    Column("evidence", Text, nullable=False),
)

custodians = Table(  # sender of a subject's first consent; no other sender may act for the subject
    "custodians", metadata, Column("subject", Text, primary_key=True), Column("sender", Text, nullable=False)
)

citizens = Table(  # citizens who take part with their own key, one row per study
    "citizens",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("recovery", Text, nullable=False),  # public recovery key, which can only order the deletion
    Column("receipt", Text, nullable=False),
    Index("citizens_by_sender", "sender"),
)

admissions = Table(  # digests of unused one-time enrolment codes
    "admissions",
    metadata,
    Column("code", Text, primary_key=True),
    Column("study", Text, nullable=False),
    Column("valid_until", Text, nullable=False),
)

uploads = Table(  # announced and incomplete uploads
    "uploads",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("started_at", Text, nullable=False),
    Index("uploads_by_sender", "sender"),
)

nonces = Table(  # nonces of accepted requests; each is valid once
    "nonces",
    metadata,
    Column("key", Text, primary_key=True),
    Column("nonce", Text, primary_key=True),
    Column("created_at", Text, nullable=False),
    Index("nonces_by_time", "created_at"),
)

consent_receipts = Table(  # at a site: the centre's receipts for consents
    "consent_receipts",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("study", Text, primary_key=True),
    Column("consent", Text, nullable=False),
    Column("receipt", Text, nullable=False),
)


tables = mark_version(
    metadata,
    "governance",
    VERSION,
    "use the version of Abaton that created it, or configure a new registry and obtain consents again",
)
