"""Databases of another version are refused with both versions and a remedy."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sql
from tests.governance.conftest import WHEN, random_source

from abaton.deid.mapping_table import MappingRow
from abaton.errors import StoreError
from abaton.governance import KeySet, Vault, metadata, schema, vault
from abaton.store import Database, Store
from abaton.store import schema as store_schema

CONTROLLER = KeySet.new("controller", random_source("controller"), WHEN).public.sealing_key


@pytest.mark.parametrize("version", [1, schema.VERSION - 1, schema.VERSION + 1])
def test_a_registry_of_another_version_is_refused_unchanged(database_url, version):
    with Database(database_url, metadata) as first:
        first.write(lambda connection: connection.execute(schema.tables.update().values(version=version)))
    remedy = "use a newer Abaton" if version > schema.VERSION else "configure a new registry"
    message = f"have version {version}, this version of Abaton reads {schema.VERSION}.*{remedy}"
    for _ in range(2):  # opening it changes nothing
        with pytest.raises(StoreError, match=f"(?s){message}"):
            Database(database_url, metadata)


def test_the_same_version_can_be_reopened(database_url):
    for _ in range(2):
        with Database(database_url, metadata) as opened:
            assert opened.read(lambda c: c.execute(sql.select(schema.tables)).all()) == [
                ("governance", schema.VERSION)
            ]


@pytest.mark.parametrize("half", ["rows", "keys"])
def test_a_vault_without_a_version_is_refused(tmp_path, half):
    """Such a vault uses another derivation of subject pseudonyms and would assign new ones."""

    def opened() -> Vault:
        return Vault(tmp_path / "rows.db", tmp_path / "keys.db", CONTROLLER, os.urandom)

    opened_vault = opened()
    opened_vault.add(MappingRow("heart", "A" * 26, "PSEUDO", "4711"))
    database = opened_vault.database if half == "rows" else opened_vault.keys
    database.write(lambda connection: connection.execute(sql.text(f"DROP TABLE vault_{half[:-1]}_tables")))
    opened_vault.close()
    message = f"vault {half[:-1]} tables have version 1, this version of Abaton reads {vault.VERSION}"
    with pytest.raises(StoreError, match=f"(?s){message}.*configure new databases under") as error:
        opened()
    assert "4711" not in str(error.value)


def test_a_store_of_another_version_is_refused(tmp_path):
    with Store(tmp_path) as store:
        store._database.write(
            lambda connection: connection.execute(store_schema.schema_info.update().values(schema=0))
        )
    with pytest.raises(StoreError, match="schema version 0, this version of Abaton reads"):
        Store(tmp_path)
