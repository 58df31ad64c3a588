"""Federation by its commands: a centre and its sites, each on its own host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks._hosts import Hosts
from tests.engines.flower.flower_processes import processes

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 900.0


class Federation:
    """Commands of a centre and its sites, each on its own host."""

    def __init__(self, net: Hosts, folder: Path, sites: Sequence[str]) -> None:
        self.net, self.folder, self.store, self.sites = net, folder, folder / "store", sites
        self.programs: dict[str, subprocess.Popen[str]] = {}
        self.sampled = folder / "sampled"
        self.sampled.mkdir()

    def abaton(self, host: str, *arguments: str) -> list[str]:
        return self.net.command(
            host, [sys.executable, "-c", "from abaton.cli import main; main()", *map(str, arguments)]
        )

    def start(self, host: str, *arguments: str) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }
        with (self.folder / f"{host}.err").open("w") as err, (self.folder / f"{host}.out").open("w") as out:
            self.programs[host] = subprocess.Popen(
                self.abaton(host, *arguments), env=env, stdout=out, stderr=err, text=True, cwd=self.folder
            )

    def call(self, host: str, *arguments: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            self.abaton(host, *arguments),
            env=env,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log_of(self, host: str) -> str:
        return (self.folder / f"{host}.err").read_text()

    def until(self, condition: Callable[[], bool], description: str) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < end, (description, self.log_of("centre"))
            assert self.programs["centre"].poll() is None, self.log_of("centre")
            self.sample()
            time.sleep(0.5)

    def sample(self) -> None:
        """Copy the SuperLink's database, which contains decrypted messages."""
        for path in (self.store / "network").glob("superlink.db*"):
            target = self.sampled / f"{path.name}.{int(time.monotonic() // 15)}"
            if not target.exists():
                shutil.copyfile(path, target)

    def serve(self, *arguments: str) -> None:
        """Start the centre and wait until it listens."""
        self.start(
            "centre", "serve", "study", self.folder / "study.toml", "--store", self.store,
            "--min-sites", str(len(self.sites)), *arguments,
        )  # fmt: skip
        self.until(lambda: "the centre listens at" in self.log_of("centre"), "start")

    def join(self, site: str, config: Path) -> None:
        """Invite a site, let it join, admit its key."""
        invitation, member = self.folder / f"{site}.invitation", self.folder / "sites" / site
        self.call("centre", "keys", "invite", site, "--store", self.store, "-o", invitation)
        self.start(site, "site", "join", invitation, "--site", config, "--data-dir", member)
        key = member / f"{site}.node"
        self.until(key.exists, f"{site} makes its key")
        self.call("centre", "keys", "admit", site, key, "--store", self.store)

    def wait_for_run(self) -> str:
        """Wait until the centre has ended; return the name of its run."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.programs["centre"].poll() is None:
            assert time.monotonic() < end, self.log_of("centre")
            self.sample()
            time.sleep(0.5)
        assert self.programs["centre"].returncode == 0, self.log_of("centre")
        return str(json.loads((self.folder / "centre.out").read_text())["run"])

    def kill(self, *arguments: str) -> None:
        """Kill the processes whose command line contains the arguments, like a power cut."""
        pids = processes(*(str(argument) for argument in arguments))
        assert pids, arguments
        for pid in pids:
            with suppress(ProcessLookupError):  # it may have ended with another one
                os.kill(pid, signal.SIGKILL)

    def version(self) -> int:
        return self.log_of("centre").count(": version ")

    def stop(self) -> None:
        for program in self.programs.values():
            program.send_signal(signal.SIGTERM)
        for program in self.programs.values():
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
