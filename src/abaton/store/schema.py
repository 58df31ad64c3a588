"""Tables of the store: runs, journal events, payload positions, published models, and statistics.

`tasks`, `commits` and `version_totals` hold the controller's decisions as columns that the database can aggregate. They
follow from the journal, so a run can be resumed without them. On SQLite their rows are stored in key order, so that the
rows of one run are contiguous.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, MetaData, Table, Text

VERSION = 1

metadata = MetaData()

schema_info = Table("schema_info", metadata, Column("schema", Integer, nullable=False))

runs = Table(
    "runs",
    metadata,
    Column("run", Text, primary_key=True),
    Column("created", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("recipe", JSON, nullable=False),
    Column("layout", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("result", JSON, nullable=True),
)

events = Table(
    "events",
    metadata,
    Column("run", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("timestamp", Float, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", JSON, nullable=False),
)

payloads = Table(
    "payloads",
    metadata,
    Column("run", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("run", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("timestamp", Float, nullable=False),
    Column("digest", Text, nullable=False),
    Column("metrics", JSON, nullable=False),
)

tasks = Table(  # training tasks that were started, by the event that caused them
    "tasks",
    metadata,
    Column("run", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("learner", Text, primary_key=True),
    Column("task", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("timestamp", Float, nullable=False),
    sqlite_with_rowid=False,
)

commits = Table(  # committed updates, by the event that caused the commit
    "commits",
    metadata,
    Column("run", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("learner", Text, primary_key=True),
    Column("task", Text, primary_key=True),  # a buffer may contain several updates of a learner
    Column("version", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("upload_seconds", Float, nullable=False),
    Column("timestamp", Float, nullable=False),
    Column("wall_time", Float, nullable=False),
    Column("payload_bytes", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("weight", Float, nullable=False),
    Column("versions_missed", Integer, nullable=False),
    Column("staleness", BigInteger, nullable=False),
    Column("loss", Float, nullable=True),
    Column("validation", Float, nullable=True),
    sqlite_with_rowid=False,
)

version_totals = Table(  # totals of the run when a version was published
    "version_totals",
    metadata,
    Column("run", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("wall_time", Float, nullable=False),
    Column("updates", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
