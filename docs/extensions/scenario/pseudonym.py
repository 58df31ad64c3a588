"""Take one pseudonym from the mapping table, as it would stand in a finding that somebody must be told of."""

import sqlite3
from pathlib import Path

with sqlite3.connect("vault.db") as rows:
    (found,) = rows.execute("SELECT pseudonym FROM vault_rows ORDER BY tag LIMIT 1").fetchone()
Path("pseudonym.txt").write_text(found)
