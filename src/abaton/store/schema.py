"""The tables of the store: runs, the journal of events, where payloads lie, the published models.

The last three are for those who look on: what the controller decided, as columns that a database can add up. They
follow from the journal, so a run resumes without them, and a store without them is still of the same form. On
SQLite their rows lie in the order of their keys, so that those of one run are read in one go.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, MetaData, Table, Text

VERSION = 1

metadata = MetaData()

about = Table("about", metadata, Column("schema", Integer, nullable=False))

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
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
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
    Column("at", Float, nullable=False),
    Column("digest", Text, nullable=False),
    Column("metrics", JSON, nullable=False),
)

tasks = Table(  # training that a learner was asked for, by the event that led to it
    "tasks",
    metadata,
    Column("run", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("learner", Text, primary_key=True),
    Column("task", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", Float, nullable=False),
    sqlite_with_rowid=False,
)

commits = Table(  # updates that entered the mix, by the event that led to it
    "commits",
    metadata,
    Column("run", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("learner", Text, primary_key=True),
    Column("task", Text, primary_key=True),  # a buffer may hold several updates of a learner
    Column("version", Integer, nullable=False),
    Column("began", Float, nullable=False),
    Column("arrived", Float, nullable=False),
    Column("uploading", Float, nullable=False),
    Column("at", Float, nullable=False),
    Column("wall", Float, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("weight", Float, nullable=False),
    Column("missed", Integer, nullable=False),
    Column("staleness", BigInteger, nullable=False),
    Column("loss", Float, nullable=True),
    Column("validation", Float, nullable=True),
    sqlite_with_rowid=False,
)

milestones = Table(  # what had happened when a version was published
    "milestones",
    metadata,
    Column("run", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("wall", Float, nullable=False),
    Column("updates", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
