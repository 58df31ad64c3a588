from __future__ import annotations

import threading

import pytest
import sqlalchemy as sql

from abaton.errors import SettingsError, StoreError
from abaton.store import Database, insert_new

TABLES = sql.MetaData()
notes = sql.Table(
    "notes", TABLES, sql.Column("name", sql.Text, primary_key=True), sql.Column("n", sql.Integer)
)


@pytest.fixture
def database(database_url):
    with Database(database_url, TABLES) as opened:
        yield opened


def value(database) -> int:
    return database.read(lambda connection: connection.scalar(sql.select(notes.c.n)))


def test_writers_that_read_first_are_serialised(database):
    database.write(lambda connection: connection.execute(notes.insert().values(name="x", n=0)))

    def add(connection):
        value_read = connection.scalar(sql.select(notes.c.n))
        connection.execute(notes.update().values(n=value_read + 1))

    def add_repeatedly():
        for _ in range(20):
            database.write(add, lock="x")

    threads = [threading.Thread(target=add_repeatedly) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(database) == 100


def test_a_transaction_is_atomic(database):
    def work(connection):
        connection.execute(notes.insert().values(name="x", n=1))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        database.write(work)
    assert value(database) is None


def test_existing_rows_are_skipped(database):
    for _ in range(2):
        database.write(lambda c: insert_new(c, notes, [{"name": "x", "n": 1}, {"name": "y", "n": 2}]))
    assert database.read(lambda c: c.scalar(sql.select(sql.func.count()).select_from(notes))) == 2


def test_scrubbed_rows_are_not_in_the_files(database, tmp_path):
    database.write(lambda c: c.execute(notes.insert().values(name="Peter Chalmers", n=1)))
    database.write(lambda c: c.execute(notes.delete()))
    database.scrub(notes)
    assert not [p for p in tmp_path.iterdir() if p.is_file() and b"Chalmers" in p.read_bytes()]


def test_errors_contain_no_content(database):
    def broken(connection):
        connection.execute(sql.text("INSERT INTO nothing VALUES (:name)"), {"name": "Chalmers"})

    with pytest.raises(StoreError) as caught:
        database.write(broken)
    assert "Chalmers" not in str(caught.value)

    def twice(connection):
        for _ in range(2):
            connection.execute(notes.insert().values(name="Chalmers", n=1))

    with pytest.raises(sql.exc.IntegrityError) as again:
        database.write(twice)
    assert "[SQL parameters hidden" in str(again.value)


@pytest.mark.parametrize(
    "url", ["mysql://x", "sqlite://", "sqlite:///:memory:", "://", "sqlite+nothing:///x"]
)
def test_other_database_urls_are_refused_and_leave_no_file(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError):
        Database(url, TABLES)
    assert not list(tmp_path.iterdir())


def test_a_password_is_not_in_an_error(tmp_path):
    with pytest.raises(StoreError) as caught:
        Database(f"postgresql+psycopg://me:secret-word@/x?host={tmp_path}", TABLES)
    assert "secret-word" not in str(caught.value)
    assert "***" in str(caught.value)
