"""Check durable logs: one transaction or nothing, several processes, damage without a secret in the error."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest
from tests.secure_sum.in_process import InProcess, make_settings

from abaton.errors import StoreError
from abaton.secure_sum import FileLog, MemoryLog


@pytest.fixture(params=["memory", "file"])
def log(request, tmp_path):
    return MemoryLog() if request.param == "memory" else FileLog(tmp_path / "folder" / "log.db")


def test_a_transaction_is_all_or_nothing(log):
    with log.transaction() as transaction:
        transaction.append(b"one")
        transaction.attach("a", b"1")
    with contextlib.suppress(KeyError), log.transaction() as transaction:
        transaction.append(b"two")
        transaction.attach("a", b"2")
        transaction.detach("a")
        raise KeyError
    with log.transaction() as transaction:
        assert transaction.events_after(0) == [b"one"]
        assert transaction.attachment("a") == b"1"
        transaction.append(b"two")
        transaction.detach("a")
        assert transaction.events_after(1) == [b"two"]
    with log.transaction() as transaction:
        assert transaction.events_after(0) == [b"one", b"two"]
        with pytest.raises(StoreError, match="'a' is missing"):
            transaction.attachment("a")
        with pytest.raises(StoreError, match="missing"):
            transaction.events_after(3)
    log.erase()
    with log.transaction() as transaction:
        assert transaction.events_after(0) == []


def test_only_the_owner_can_read_the_file_and_what_is_deleted_is_overwritten(tmp_path):
    file = tmp_path / "log.db"
    log = FileLog(file)
    content = b"a contribution of one site" * 1000
    with log.transaction() as transaction:
        transaction.attach("a", content)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}
    assert content[:500] in file.read_bytes()
    with log.transaction() as transaction:
        transaction.detach("a")
    assert content[:26] not in file.read_bytes()


def test_a_transaction_excludes_others_from_its_first_read_on(tmp_path):
    log = FileLog(tmp_path / "log.db")
    with log.transaction() as transaction:
        transaction.append(b"one")
    with log.transaction() as transaction:
        assert transaction.events_after(0) == [b"one"]
        other = sqlite3.connect(log.path, timeout=0)
        with contextlib.closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")


def test_concurrent_transactions_lose_nothing(tmp_path):
    log = FileLog(tmp_path / "log.db")

    def add(count: int) -> None:
        for _ in range(count):
            with log.transaction() as transaction:
                transaction.append(str(len(transaction.events_after(0))).encode())

    threads = [threading.Thread(target=add, args=(20,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with log.transaction() as transaction:
        assert transaction.events_after(0) == [str(number).encode() for number in range(60)]


def test_a_process_that_dies_in_a_transaction_leaves_nothing(tmp_path):
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom abaton.secure_sum import FileLog\n"
        "with FileLog(Path(sys.argv[1])).transaction() as transaction:\n"
        "    transaction.append(b'lost')\n    os._exit(9)\n"
    )
    file = tmp_path / "log.db"
    with FileLog(file).transaction() as transaction:
        transaction.append(b"kept")
    assert subprocess.run([sys.executable, "-c", program, str(file)], check=False).returncode == 9
    with FileLog(file).transaction() as transaction:
        assert transaction.events_after(0) == [b"kept"]


def test_a_damaged_state_stops_the_site_and_shows_no_secret(tmp_path):
    file = tmp_path / "site-00.db"
    parties = InProcess(make_settings(3), make_log=lambda name: FileLog(tmp_path / f"{name}.db"))
    secret = parties.sites["site-00"].state.created.secret
    assert secret.hex() not in repr(parties.sites["site-00"].state)
    assert repr(secret) not in repr(parties.sites["site-00"].state)
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("UPDATE events SET body = CAST(replace(body, '\"kind\"', '\"kinds\"') AS BLOB)")
    connection.close()
    with pytest.raises(StoreError, match="damaged") as caught:
        parties.make_site("site-00")
    assert secret.hex() not in str(caught.value)
    assert caught.value.__cause__ is None
    file.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="not readable or writable"):
        parties.make_site("site-00")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"), FileLog(tmp_path / "file" / "log.db").transaction():
        pass
