"""The version of the tables stands in the database, and any other one is refused, naming both and what to do."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sql
from tests.governance.conftest import WHEN, drawing

from abaton.deid.mapping_table import MappingRow
from abaton.errors import StoreError
from abaton.governance import Ring, Vault, metadata, schema, vault
from abaton.store import Database, Store
from abaton.store import schema as store_schema

CONTROLLER = Ring.new("controller", drawing("controller"), WHEN).public.sealing


@pytest.mark.parametrize("version", [1, schema.VERSION - 1, schema.VERSION + 1])
def test_a_registry_of_another_version_is_refused_and_left_as_it_is(database_url, version):
    with Database(database_url, metadata) as first:
        first.write(lambda connection: connection.execute(schema.tables.update().values(version=version)))
    remedy = "use a newer Abaton" if version > schema.VERSION else "name a new registry"
    told = f"of version {version}, and this Abaton knows version {schema.VERSION}.*{remedy}"
    for _ in range(2):  # looking at it changes nothing
        with pytest.raises(StoreError, match=f"(?s){told}"):
            Database(database_url, metadata)


def test_the_same_version_is_opened_as_often_as_one_likes(database_url):
    for _ in range(2):
        with Database(database_url, metadata) as opened:
            assert opened.read(lambda c: c.execute(sql.select(schema.tables)).all()) == [
                ("governance", schema.VERSION)
            ]


@pytest.mark.parametrize("half", ["rows", "keys"])
def test_a_vault_from_before_versions_were_written_down_is_refused(tmp_path, half):
    """Its people are under tags of another kind: it would find nobody, and name everybody anew."""

    def opened() -> Vault:
        return Vault(tmp_path / "rows.db", tmp_path / "keys.db", CONTROLLER, os.urandom)

    made = opened()
    made.add(MappingRow("heart", "A" * 26, "PSEUDO", "4711"))
    part = made.database if half == "rows" else made.keys
    part.write(lambda connection: connection.execute(sql.text(f"DROP TABLE vault_{half[:-1]}_tables")))
    made.close()
    told = f"vault {half[:-1]} tables are of version 1, and this Abaton knows version {vault.VERSION}"
    with pytest.raises(StoreError, match=f"(?s){told}.*name new places under") as error:
        opened()
    assert "4711" not in str(error.value)


def test_a_store_of_another_version_is_refused(tmp_path):
    with Store(tmp_path) as made:
        made._database.write(
            lambda connection: connection.execute(store_schema.about.update().values(schema=0))
        )
    with pytest.raises(StoreError, match="form 0, this version of Abaton reads form"):
        Store(tmp_path)
