"""Read one site's records in a process: to a feature table, or with the reader only.

Usage: _read_source.py FOLDER SITE.toml table|reader. Prints processor seconds, peak memory in MiB, wall-clock seconds
and a digest of the result as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from abaton.site import build_site, load_site
from abaton.study import load_study


def main(folder: Path, site_file: str, target: str) -> None:
    """Read the records and print the cost."""
    now = datetime(2026, 11, 16, tzinfo=UTC)
    site = build_site(load_site(folder / site_file), load_study(folder / "study.toml"), now)
    started, cpu_started = time.perf_counter(), time.process_time()
    if target == "reader":
        digest = str(sum(1 for _ in site.source.records()))
    else:
        table = site.table().table
        assert table is not None
        digest = hashlib.sha256(table.x.tobytes() + table.y.tobytes()).hexdigest()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    # The peak of getrusage includes that of the parent; the peak in /proc starts with the program.
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None
    print(json.dumps([cpu_seconds, int(peak[1]) / 1024, seconds, digest]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
