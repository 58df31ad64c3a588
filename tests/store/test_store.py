from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from abaton.errors import SettingsError, StoreError
from abaton.store import Journal, ModelRow, RunRow, Store


def row(name: str = "demo-1", status: str = "running") -> RunRow:
    return RunRow(
        name, "2026-01-01T00:00:00", "virtual", {"name": "demo", "settings": {}}, "abc", status, None
    )


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def test_runs_are_found_by_name_or_by_its_beginning(store):
    for name in ("demo-1", "demo-2", "heart-1"):
        store.add_run(row(name))
    assert store.run("heart") == row("heart-1")
    assert store.run("demo-1").run == "demo-1"
    with pytest.raises(SettingsError, match="matches 2 runs"):
        store.run("demo")
    with pytest.raises(SettingsError, match="abaton runs"):
        store.run("unknown")
    with pytest.raises(SettingsError, match="already"):
        store.add_run(row("demo-1"))


def test_a_run_ends_with_its_result(store):
    store.add_run(row())
    store.finish_run("demo-1", "finished", {"version": 3})
    assert store.run("demo-1").status == "finished"
    assert store.run("demo-1").result == {"version": 3}


def test_the_journal_keeps_order_and_checks_a_replay(store):
    first = Journal(store, "r")
    for i in range(2500):
        first.append("learner_left", {"timestamp": float(i), "learner": f"site{i}"})
    first.publish(ModelRow(1, 2.0, "d1", {"loss": 0.5}))
    first.flush()
    assert [body["learner"] for _, body in first.rows()] == [f"site{i}" for i in range(2500)]

    again = Journal(store, "r")
    assert again.stored_events == 2500
    again.append("learner_left", {"timestamp": 0.0, "learner": "site0"})
    with pytest.raises(StoreError, match="deviates from its journal at event 1"):
        again.append("learner_left", {"timestamp": 1.0, "learner": "site99"})
    assert again.is_published(1, "d1")
    assert not again.is_published(2, "d2")
    with pytest.raises(StoreError, match="differs from the stored one"):
        again.is_published(1, "other")


def test_the_journal_writes_by_itself_after_a_while(store):
    now = [0.0]
    journal = Journal(store, "r", clock=lambda: now[0])
    journal.append("learner_left", {"timestamp": 0.0, "learner": "a"})
    assert not list(journal.rows())
    now[0] = 1.0
    journal.append("learner_left", {"timestamp": 1.0, "learner": "b"})
    assert len(list(journal.rows())) == 2


def test_a_run_is_locked_by_one_process_and_a_crash_releases_it(store):
    code = (
        "import pathlib, sys; from abaton.store import Store\n"
        f"with Store(pathlib.Path({str(store.folder)!r})) as s, s.lock_run('r'):\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"locked\n"
    assert store.is_locked("r")
    with pytest.raises(StoreError, match="another process"), store.lock_run("r"):
        pass
    child.kill()
    child.communicate()
    assert not store.is_locked("r")
    with store.lock_run("r"):
        assert store.is_locked("r")


def test_children_of_a_killed_process_are_waited_for(store):
    """A forked child also has the lock until it ends, since it may still write."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        with store.lock_run("r"):
            if not os.fork():
                time.sleep(0.8)
                os._exit(0)
            os.write(write_end, b"1")
            time.sleep(60)
    assert os.read(read_end, 1) == b"1"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert store.is_locked("r")
    with store.lock_run("r"):
        pass


def test_many_processes_may_open_a_new_store_at_once(tmp_path):
    code = f"import pathlib; from abaton.store import Store; Store(pathlib.Path({str(tmp_path / 'new')!r})).close()"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
    assert [child.wait() for child in children] == [0] * 6


def test_a_damaged_database_is_one_clear_error(tmp_path):
    (tmp_path / "abaton.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path)


def test_a_damaged_page_in_the_middle_is_one_clear_error(tmp_path):
    with Store(tmp_path) as store:
        for i in range(200):
            store.add_run(row(f"run-{i}" + "x" * 100))
    with Store(tmp_path) as store, store.reading() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray((tmp_path / "abaton.db").read_bytes())
    data[4096 * 2 :] = os.urandom(len(data) - 4096 * 2)
    (tmp_path / "abaton.db").write_bytes(data)
    with pytest.raises(StoreError, match="abaton.db"), Store(tmp_path) as store:
        store.runs()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="--store"):
        Store(tmp_path / "file" / "store")


def test_a_store_of_another_schema_version_is_refused(tmp_path):
    with Store(tmp_path) as store, store.reading() as connection:
        connection.exec_driver_sql("UPDATE schema_info SET schema = 99")
    with pytest.raises(StoreError, match="schema version 99, this version of Abaton reads 1") as refused:
        Store(tmp_path)
    assert "use the version of Abaton that wrote it, or another folder" in str(refused.value)


def test_runs_and_journals_work_in_any_database(tmp_path, database_url):
    with Store(tmp_path / "store", database_url) as store:
        store.add_run(row())
        journal = Journal(store, "demo-1")
        for i in range(1200):
            journal.append("learner_left", {"timestamp": float(i), "learner": f"site{i}"})
        journal.publish(ModelRow(1, 2.0, "d1", {"loss": 0.5}))
        journal.flush()
        store.finish_run("demo-1", "finished", {"version": 1})
    with Store(tmp_path / "store", database_url) as again:
        assert again.run("demo").result == {"version": 1}
        assert Journal(again, "demo-1").stored_events == 1200
        assert again.models("demo-1") == [ModelRow(1, 2.0, "d1", {"loss": 0.5})]
        with pytest.raises(SettingsError, match="already"):
            again.add_run(row())


def test_a_new_store_is_readable_by_its_owner_only(tmp_path):
    """It contains updates of single sites."""
    with Store(tmp_path / "new" / "store"):
        assert (tmp_path / "new" / "store").stat().st_mode & 0o077 == 0
        assert (tmp_path / "new" / "store" / "abaton.db").stat().st_mode & 0o077 == 0
