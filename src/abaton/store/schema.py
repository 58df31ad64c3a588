"""The tables of the store: runs, the journal of events, where payloads lie, the published models."""

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
