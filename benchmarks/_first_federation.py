"""Run a first federation in a process. Usage: _first_federation.py FOLDER ENGINE STORE.

Prints processor seconds as JSON and writes the compiled kernels to the file `compiled` of the folder. The import order
is part of the measurement.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any


def cpu_seconds() -> float:
    """Return the processor time of this process and its children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def log_compilations(path: Path) -> None:
    """Append each compilation of a kernel, also by child processes, to a file."""
    from numba.core import event

    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    class CompilationLog(event.Listener):
        """Listener of Numba's compilations."""

        def on_start(self, event: Any) -> None:
            """Write the kernel and its argument types."""
            function = event.data["dispatcher"].py_func
            if function.__module__.startswith("abaton"):
                line = f"{function.__module__}.{function.__qualname__} {event.data['args']}\n"
                os.write(log, line.encode())

        def on_end(self, event: Any) -> None:
            """Do nothing."""

    event.register("numba:compile", CompilationLog())  # type: ignore[no-untyped-call]


def main(folder: Path, engine: str, store: str) -> None:
    """Run the federation and print its cost."""
    import torch  # noqa: F401 - its import is measured separately

    imported = cpu_seconds()
    log_compilations(folder / "compiled")
    import numpy as np

    import abaton

    rng, sites = np.random.default_rng(1990), {}
    for name, size in (("athens", 520), ("kos", 140), ("pergamon", 300), ("trikala", 220)):
        x = rng.normal(size=(size, 8)).astype(np.float32)
        sites[name] = abaton.Examples(x, (x[:, 0] + x[:, 1] > 0).astype(np.int64))
    model = abaton.mlp(features=8, classes=2, hidden=(16,))
    federation = abaton.Federation(model, sites, abaton.Strategy(rounds=10), test=sites["kos"])
    run = federation.run("first", engine=engine, store=folder / store)
    assert run.status == "finished"
    print(json.dumps({"imported": imported, "beyond": cpu_seconds() - imported}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
