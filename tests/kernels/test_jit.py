"""A kernel that several processes need at once is compiled by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

# Every compilation of an abaton kernel, in this process and its forks, writes a line to a file.
_COUNTING = """
import os, sys
from pathlib import Path
from numba.core import event

counts = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Count(event.Listener):
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith("abaton"):
            line = f"{function.__module__}.{function.__qualname__} {event.data['args']}\\n"
            os.write(counts, line.replace(" at 0x", "").encode())

    def on_end(self, event):
        pass

event.register("numba:compile", Count())
"""

_ONE_KERNEL = """
import time
import numpy as np
from abaton.kernels.vector_ops import exchange_weighted

Path(sys.argv[2]).touch()
while len(list(Path(sys.argv[2]).parent.glob("ready-*"))) < 3:
    time.sleep(0.001)
total, new_model = np.zeros(4, np.int64), np.ones(4, np.float32)
old_model, community_model = np.zeros(4, np.float32), np.zeros(4, np.float32)
exchange_weighted(total, new_model, old_model, 2.0, 0.0, 0.5, community_model)
assert community_model.tolist() == [1, 1, 1, 1]
"""

_A_FEDERATION = """
import numpy as np
import abaton

rng = np.random.default_rng(1)
sites = {
    name: abaton.Examples(rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60))
    for name in ("athens", "kos", "pergamon", "trikala")
}
model = abaton.mlp(features=3, classes=2, hidden=(4,))
federation = abaton.Federation(model, sites, abaton.Strategy(rounds=2), codec="quicfl(bits=2)")
assert federation.run("counted", engine="local", store=Path(sys.argv[2])).status == "finished"
"""


def _started(source: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels")}
    code = textwrap.dedent(_COUNTING + source)
    return subprocess.Popen([sys.executable, "-c", code, str(folder / "counts"), *arguments], env=environment)


def _compiled(folder: Path) -> Counter[str]:
    return Counter((folder / "counts").read_text().splitlines())


def test_processes_that_start_together_compile_a_kernel_once(tmp_path):
    (tmp_path / "ready").mkdir()
    processes = [_started(_ONE_KERNEL, tmp_path, str(tmp_path / "ready" / f"ready-{i}")) for i in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    counts = _compiled(tmp_path)
    assert [name.split()[0] for name in counts] == ["abaton.kernels.vector_ops.exchange_weighted"]
    assert set(counts.values()) == {1}


@pytest.mark.slow
def test_forked_workers_compile_nothing_twice(tmp_path):
    assert _started(_A_FEDERATION, tmp_path, str(tmp_path / "store")).wait(300) == 0
    counts = _compiled(tmp_path)
    assert any("dense_kernels.train_epoch" in name for name in counts)
    assert [name for name, times in counts.items() if times > 1] == []
