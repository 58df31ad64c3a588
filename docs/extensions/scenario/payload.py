"""Write the newest update of the experiment's run, as it was sent, to payload.bin."""

from pathlib import Path

from abaton.store import Journal, Store

with Store(Path("lab")) as store:
    run = store.run("latest")
    journal = Journal(store, run.run)
    newest = [body for event_type, body in journal.rows() if event_type == "update_received"][-1]
    Path("payload.bin").write_bytes(journal.payloads.get(newest["payload"]))
