"""The version of the tables stands in the database, and a newer one is refused."""

from __future__ import annotations

import pytest

from abaton.errors import StoreError
from abaton.governance import metadata, schema
from abaton.store import Database


def test_a_newer_version_is_refused_with_a_clear_word(database_url):
    with Database(database_url, metadata) as first:
        first.write(
            lambda connection: connection.execute(schema.tables.update().values(version=schema.VERSION))
        )
    with Database(database_url, metadata) as again:  # the same version is fine, and written once
        again.write(
            lambda connection: connection.execute(schema.tables.update().values(version=schema.VERSION + 1))
        )
    with pytest.raises(StoreError, match=f"of version {schema.VERSION + 1}, and this Abaton knows"):
        Database(database_url, metadata)
