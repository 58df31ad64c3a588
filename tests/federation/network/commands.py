"""A federation by its commands: a centre and its sites, each on a host of its own."""

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
from tests.engines.flower.programs import processes

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 900.0


class Federation:
    """The commands of a centre and its sites, each on its own host."""

    def __init__(self, net: Hosts, folder: Path, sites: Sequence[str]) -> None:
        self.net, self.folder, self.store, self.sites = net, folder, folder / "store", sites
        self.programs: dict[str, subprocess.Popen[str]] = {}
        self.sampled = folder / "sampled"
        self.sampled.mkdir()

    def abaton(self, host: str, *words: str) -> list[str]:
        return self.net.words(
            host, [sys.executable, "-c", "from abaton.cli import main; main()", *map(str, words)]
        )

    def start(self, host: str, *words: str) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }
        with (self.folder / f"{host}.err").open("w") as err, (self.folder / f"{host}.out").open("w") as out:
            self.programs[host] = subprocess.Popen(
                self.abaton(host, *words), env=env, stdout=out, stderr=err, text=True, cwd=self.folder
            )

    def call(self, host: str, *words: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            self.abaton(host, *words), env=env, capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self, host: str) -> str:
        return (self.folder / f"{host}.err").read_text()

    def until(self, what: Callable[[], bool], why: str) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, (why, self.said("centre"))
            assert self.programs["centre"].poll() is None, self.said("centre")
            self.sample()
            time.sleep(0.5)

    def sample(self) -> None:
        """What the SuperLink holds at this moment, after TLS: messages on their way, as they are."""
        for path in (self.store / "network").glob("superlink.db*"):
            target = self.sampled / f"{path.name}.{int(time.monotonic() // 15)}"
            if not target.exists():
                shutil.copyfile(path, target)

    def serve(self, *words: str) -> None:
        """Start the centre and wait until it is there."""
        self.start(
            "centre", "serve", "study", self.folder / "study.toml", "--store", self.store,
            "--at-least", str(len(self.sites)), *words,
        )  # fmt: skip
        self.until(lambda: "the centre listens at" in self.said("centre"), "start")

    def join(self, site: str, document: Path) -> None:
        """Invite a site, let it join, admit its key."""
        invitation, member = self.folder / f"{site}.invitation", self.folder / "members" / site
        self.call("centre", "keys", "invite", site, "--store", self.store, "-o", invitation)
        self.start(site, "site", "join", invitation, "--site", document, "--home", member)
        key = member / f"{site}.node"
        self.until(key.exists, f"{site} makes its key")
        self.call("centre", "keys", "admit", site, key, "--store", self.store)

    def ended(self) -> str:
        """Wait until the centre has ended; the name of its run."""
        end = time.monotonic() + PATIENCE
        while self.programs["centre"].poll() is None:
            assert time.monotonic() < end, self.said("centre")
            self.sample()
            time.sleep(0.5)
        assert self.programs["centre"].returncode == 0, self.said("centre")
        return str(json.loads((self.folder / "centre.out").read_text())["run"])

    def kill(self, *words: str) -> None:
        """Kill, as a power cut would, the one program whose command holds some words."""
        found = processes(*(str(word) for word in words))
        assert found, words
        for pid in found:
            with suppress(ProcessLookupError):  # it may end with the one before
                os.kill(pid, signal.SIGKILL)

    def version(self) -> int:
        return self.said("centre").count(": version ")

    def stop(self) -> None:
        for program in self.programs.values():
            program.send_signal(signal.SIGTERM)
        for program in self.programs.values():
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
