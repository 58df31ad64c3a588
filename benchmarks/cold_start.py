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

LIMIT = 5.0  # seconds

_PROGRAM = """
import json, os, resource, sys
from pathlib import Path

def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)

import torch
imported = used()
from numba.core import event

log = os.open(sys.argv[1] + "/compiled", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

class Tell(event.Listener):
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith("abaton"):
            os.write(log, f"{function.__module__}.{function.__qualname__} {event.data['args']}\\n".encode())

    def on_end(self, event):
        pass

event.register("numba:compile", Tell())
import numpy as np
import abaton

chance = np.random.default_rng(1990)
sites = {}
for name, size in (("athens", 520), ("kos", 140), ("pergamon", 300), ("trikala", 220)):
    x = chance.normal(size=(size, 8)).astype(np.float32)
    sites[name] = abaton.Examples(x, (x[:, 0] + x[:, 1] > 0).astype(np.int64))
model = abaton.mlp(features=8, classes=2, hidden=(16,))
federation = abaton.Federation(model, sites, abaton.Strategy(rounds=10), test=sites["kos"])
run = federation.run("first", engine=sys.argv[2], store=Path(sys.argv[1], sys.argv[3]))
assert run.status == "finished"
print(json.dumps({"imported": imported, "beyond": used() - imported}))
"""


def run() -> list[BenchmarkResult]:
    """Measure the first federation."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as other:
        cold, _ = _first(Path(empty), "virtual", "cold")
        warm, again = _first(Path(empty), "virtual", "warm")
        workers, shared = _first(Path(other), "local", "workers")
    return [
        BenchmarkResult("importing torch", cold["imported"], "s"),
        at_most(
            "first federation, nothing compiled before, beyond importing torch", cold["beyond"], LIMIT, "s"
        ),
        BenchmarkResult("the same, compiled before", warm["beyond"], "s"),
        BenchmarkResult("the same in processes, nothing compiled before", workers["beyond"], "s"),
        at_most("kernels compiled again when compiled before", again.total(), 0, "kernels"),
        at_most("kernels compiled twice by workers forked together", _extra(shared), 0, "kernels"),
    ]


def _extra(counts: Counter[str]) -> int:
    return sum(times - 1 for times in counts.values())


def _first(folder: Path, engine: str, store: str) -> tuple[dict[str, Any], Counter[str]]:
    """Run the first federation in a process; return its times and how often each kernel was compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels"), "NUMBA_NUM_THREADS": "1"}
    program = [sys.executable, "-c", _PROGRAM, str(folder), engine, store]
    completed = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(completed), Counter((folder / "compiled").read_text().splitlines())
