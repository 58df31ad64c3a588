"""Serve the intake of a benchmark on a free port. Usage: _intake_server.py FOLDER. Prints its address."""

from __future__ import annotations

import sys
from pathlib import Path

from abaton.governance import Inbox, metadata
from abaton.governance.intake import IntakeLimits, IntakeService, ListenSettings, serve
from abaton.governance.key_files import read_key_set
from abaton.store import Database


def main(folder: Path) -> None:
    """Serve until the process is ended."""
    key_set = read_key_set(folder / "centre.keys", b"benchmark")
    database = Database(folder / "centre.db", metadata)
    inbox = Inbox(folder / "inbox", database, key_set.public, key_set.signing_key)
    service = IntakeService(inbox, IntakeLimits(sender_rate=1e6, address_rate=1e6))
    serve(service, ListenSettings(port=0), lambda address: print(address, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
