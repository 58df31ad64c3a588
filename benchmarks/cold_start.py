"""The first federation on a machine without compiled kernels: processor time, and kernels compiled twice.

Each measurement is a process with an empty folder for compiled kernels. Processor time is user and system time of the
process and its workers, without importing torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from abaton.benchmark import BenchmarkResult, at_most

LIMIT = 3.5  # seconds; compiling the one kernel that trains and scores takes 2.4 of 3.0


def run() -> list[BenchmarkResult]:
    """Measure the first federation."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as other:
        cold, _ = _first(Path(empty), "virtual", "cold")
        warm, again = _first(Path(empty), "virtual", "warm")
        workers, shared = _first(Path(other), "local", "workers")
    return [
        BenchmarkResult("importing torch", cold["imported"], "s"),
        at_most(
            "first federation, without compiled kernels, beyond importing torch", cold["beyond"], LIMIT, "s"
        ),
        BenchmarkResult("the same with compiled kernels", warm["beyond"], "s"),
        BenchmarkResult("the same in processes, without compiled kernels", workers["beyond"], "s"),
        at_most("kernels compiled again", again.total(), 0, "kernels"),
        at_most("kernels compiled twice by workers forked together", _extra(shared), 0, "kernels"),
    ]


def _extra(counts: Counter[str]) -> int:
    return sum(times - 1 for times in counts.values())


def _first(folder: Path, engine: str, store: str) -> tuple[dict[str, Any], Counter[str]]:
    """Run the first federation in a process; return its times and how often each kernel was compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels"), "NUMBA_NUM_THREADS": "1"}
    program = [
        sys.executable,
        str(Path(__file__).with_name("_first_federation.py")),
        str(folder),
        engine,
        store,
    ]
    completed = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(completed), Counter((folder / "compiled").read_text().splitlines())
