"""Take the last update of the lab's run out of its store, as it travelled."""

from pathlib import Path

from abaton.store import Journal, Store

with Store(Path("lab")) as store:
    run = store.run("latest")
    journal = Journal(store, run.run)
    last = [body for kind, body in journal.rows() if kind == "Arrived"][-1]
    Path("payload.bin").write_bytes(journal.payloads.get(last["payload"]))
