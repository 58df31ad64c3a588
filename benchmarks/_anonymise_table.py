"""Anonymise one table in a process. Usage: _anonymise_table.py TABLE STUDY.toml OUT. Prints its cost as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import polars  # noqa: F401 - imported before the memory is measured

from abaton.anonymity import examine, read_settings
from abaton.anonymity.table_files import scan, write


def peak_memory() -> float:
    """Return the peak memory of this process in MiB, without that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main(table: Path, study: Path, out: Path) -> None:
    """Examine and write the table, and print the cost."""
    start, before = time.perf_counter(), peak_memory()
    settings, frame = read_settings(study), scan(table)
    examination = examine(frame, settings, folder=study.parent)
    searched = time.perf_counter()
    assert examination.release is not None
    assert examination.after is not None
    write(frame, examination.table, examination.release, settings, out)
    cost = {
        "search": searched - start,
        "write": time.perf_counter() - searched,
        "k": examination.after.k,
        "memory": peak_memory() - before,
    }
    print(json.dumps(cost))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
