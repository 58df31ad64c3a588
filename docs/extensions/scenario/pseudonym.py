"""Write one pseudonym of the mapping table to pseudonym.txt, as an incidental finding would name it."""

import sqlite3
from pathlib import Path

with sqlite3.connect("vault.db") as rows:
    (pseudonym,) = rows.execute(
        "SELECT pseudonym FROM vault_rows ORDER BY subject_pseudonym LIMIT 1"
    ).fetchone()
Path("pseudonym.txt").write_text(pseudonym)
