"""All rows of a journal are read back as written, on every database."""

from __future__ import annotations

import sqlalchemy as sql

from abaton.store import Journal, ModelRow, RunRow, Store, schema


def test_a_journal_writes_to_every_table_and_reads_its_events_back(tmp_path, database_url):
    body = {"timestamp": 0.5, "learner": "100 % 'kos'", "counts": [1, 2.5], "metrics": {"loss": 0.25}}
    with Store(tmp_path / "files", database_url) as store:
        store.add_run(RunRow("r", "2026-01-01T00:00:00+00:00", "virtual", {"name": "x"}, "", "running", None))
        journal = Journal(store, "r")
        payload = journal.payloads.put(b"payload")
        journal.append("update_received", body)
        journal.publish(ModelRow(0, 0.5, "digest", {"accuracy": 0.75}), updates=1, size=7)
        task = {"learner": "kos", "task": "0.1.kos", "version": 0, "timestamp": 0.0}
        times = {"started_at": 0.0, "received_at": 0.5, "upload_seconds": 0.1}
        counts = {"payload_bytes": 7, "steps": 3, "weight": 1.0, "versions_missed": 0, "staleness": 3}
        journal.record_activity([task], [{**task, **times, **counts, "loss": 0.25, "validation": None}])
        journal.flush()
        assert list(journal.rows()) == [("update_received", body)]
        assert [(m.version, m.metrics) for m in store.models("r")] == [(0, {"accuracy": 0.75})]
        assert Journal(store, "r").payloads.get(payload) == b"payload"
        with store.reading() as connection:
            (commit,) = connection.execute(sql.select(schema.commits)).mappings()
            assert (commit["weight"], commit["validation"], commit["staleness"]) == (1.0, None, 3)
            for table in (schema.tasks, schema.version_totals):
                assert connection.scalar(sql.select(sql.func.count()).select_from(table)) == 1
