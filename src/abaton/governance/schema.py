"""The tables of governance: consents, cohorts, what was sent and received, the audit chain, withdrawals.

The mapping table is not among them: it has databases of its own (see :mod:`abaton.governance.vault`). The version of
the tables stands in a row; whoever meets another one than it knows stops before it does harm.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text, UniqueConstraint

from abaton.store import mark_version

VERSION = 4
DONE = "done"
"""The step of a withdrawal that has come to its end."""

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
    Column("study", Text, primary_key=True),  # empty: the general wish to be told of studies
    Column("version", Integer, primary_key=True),
    Column("document", Text, nullable=False),
    Column("changed", Text, nullable=False),
    Column("resource", Text, nullable=False),
)

subjects = Table(
    "subjects",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("study", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("changed", Text, nullable=False),
    Column("resource", Text, nullable=False),
)

opt_outs = Table(  # who has opted out of every use for research; wins over any consent and any permit
    "opt_outs",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("since", Text, nullable=False),
)

form_consents = Table(  # whose newest consent was read from a form that is kept elsewhere
    "form_consents",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
)

grounds = (
    Table(  # permits and stated grounds on which a study's document is worked on without single consents
        "grounds",
        metadata,
        Column("study", Text, primary_key=True),
        Column("document", Text, primary_key=True),
        Column("ground", Text, primary_key=True),
        Column("noted", Text, nullable=False),
        Column(
            "permit", Text, nullable=False, server_default=""
        ),  # a permit and the study's purpose, if it is one
    )
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("study", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("base", Text, nullable=False, server_default=""),  # the snapshot it differs little from
)

members = Table(
    "members",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("left", Text, nullable=False),  # when the person left it; empty while in
    Index("members_by_subject", "subject"),
)

leavers = Table(  # who is in the snapshot's base, and not in the snapshot
    "leavers",
    metadata,
    Column("snapshot", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Index("leavers_by_subject", "subject"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("study", Text, primary_key=True),
    Column("run", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("snapshot", Text, nullable=False),
    Column("at", Text, nullable=False),
)

marks = Table(
    "marks",
    metadata,
    Column("study", Text, primary_key=True),
    Column("run", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("at", Text, nullable=False),
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
    Column("ring", Text, nullable=False),
    Column("since", Text, nullable=False),
    Column("until", Text, nullable=False),
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
    Column("content", Text, nullable=False),  # the fingerprint of what is inside: the same is not sent twice
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
    Column("received", Text, nullable=False),
    Index("inbox_by_subject", "study", "subject"),
)

ledger = Table(  # stays when records are deleted, so that they cannot be sent again; holds nobody
    "ledger",
    metadata,
    Column("sender", Text, primary_key=True),
    Column("study", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", Text, nullable=False),
    Column("receipt", Text, nullable=False),
    Index("ledger_by_digest", "digest"),
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
    Column("row", Text, nullable=False),  # the tag of the person's row in the vault
    Column("step", Text, nullable=False),
    Column("since", Text, nullable=False),
    Column("changed", Text, nullable=False),
    Column("waits_for", Text, nullable=False),
    Column("evidence", Text, nullable=False),
)

keepers = Table(  # which sender spoke first for a person: nobody else may speak for them
    "keepers", metadata, Column("subject", Text, primary_key=True), Column("sender", Text, nullable=False)
)

persons = Table(  # people who take part themselves, each in one study
    "persons",
    metadata,
    Column("study", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("recovery", Text, nullable=False),  # the public half of the key on paper, which can only withdraw
    Column("receipt", Text, nullable=False),
    Index("persons_by_sender", "sender"),
)

admissions = Table(  # one-time codes that were not used yet, as fingerprints
    "admissions",
    metadata,
    Column("code", Text, primary_key=True),
    Column("study", Text, nullable=False),
    Column("until", Text, nullable=False),
)

uploads = Table(  # announced and not yet complete
    "uploads",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("sender", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("begun", Text, nullable=False),
    Index("uploads_by_sender", "sender"),
)

nonces = Table(  # signed requests that were taken; each counts once
    "nonces",
    metadata,
    Column("key", Text, primary_key=True),
    Column("nonce", Text, primary_key=True),
    Column("at", Text, nullable=False),
    Index("nonces_by_time", "at"),
)

acknowledged = Table(  # at a site: consents that the centre has confirmed
    "acknowledged",
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
    "go on with the version of Abaton that made it, or name a new registry and let people say yes again",
)
