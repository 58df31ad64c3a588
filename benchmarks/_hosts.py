"""Hosts for measurements and tests: network namespaces on one machine, joined by a switch in a namespace of its own.

Nothing of it touches the machine's own network. It needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PORT = "eth0"
RATE = "1mbit"

# Frames go to a file as they are, each after its length: nothing is taken apart.
CAPTURE = """
import socket, sys
with open(sys.argv[1], "wb", buffering=0) as out, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300) as tap:
    tap.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE: lose nothing
    tap.bind((sys.argv[2], 0))
    while True:
        frame = tap.recv(1 << 17)
        out.write(len(frame).to_bytes(4, "little") + frame)
"""


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "network namespaces need root and Debian's 'iproute2'"
    probe = f"abaton-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow network namespaces"
    ip("netns", "del", probe)
    return ""


def ip(*words: str) -> str:
    """What a command of iproute2 says."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def counted(spaces: Sequence[str]) -> tuple[int, int]:
    """How many bytes some hosts have sent and received, by the kernel's own count."""
    rows = [json.loads(ip("-n", space, "-s", "-j", "link", "show", "dev", PORT))[0] for space in spaces]
    sent, received = ([row["stats64"][way]["bytes"] for row in rows] for way in ("tx", "rx"))
    return sum(sent), sum(received)


class Hosts:
    """One host for each name, with an address on a network that only they are on."""

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = secrets.token_hex(3)
        self.addresses = {name: f"10.77.0.{i}" for i, name in enumerate(names, 10)}
        self._ports = {name: f"p{i}" for i, name in enumerate(names)}

    def space(self, name: str) -> str:
        """The namespace of a host."""
        return f"abaton-{self._tag}-{name}"

    def start(self) -> None:
        """Make the hosts, the switch and the cables."""
        switch = self.space("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for name, address in self.addresses.items():
            space, port = self.space(name), self._ports[name]
            ip("netns", "add", space)
            ip("link", "add", PORT, "netns", space, "type", "veth", "peer", "name", port, "netns", switch)
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", PORT)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", PORT, "up")

    def stop(self) -> None:
        """Take everything down."""
        for name in (*self.addresses, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)

    def words(self, name: str, words: Sequence[str]) -> list[str]:
        """A command that runs on a host."""
        return ["ip", "netns", "exec", self.space(name), *words]

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Let this thread, and what it starts, be on a host."""
        with (
            Path("/proc/thread-self/ns/net").open() as home,
            Path("/run/netns", self.space(name)).open() as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "down")

    def mend(self, name: str) -> None:
        """Put it back."""
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "up")

    def slow(self, name: str, *, queue: str, loss: str = "0%") -> str:
        """Make a host's line slow in both directions, and let it lose packets; says how.

        Netem loses packets at random; without it in the kernel, a short queue loses those that come too fast.

        Args:
            name: the host.
            queue: how long the queue is, without netem.
            loss: which part is lost, with netem.
        """
        for how in (f"netem rate {RATE} delay 20ms loss {loss}", f"tbf rate {RATE} burst 2kb limit {queue}"):
            if all(self._shape(space, port, how) for space, port in self._ends(name)):
                return how
        raise AssertionError("neither netem nor tbf")

    def quick(self, name: str) -> None:
        """Let a host's line be as quick as it was."""
        for space, port in self._ends(name):
            subprocess.run(
                ["tc", "-n", space, "qdisc", "del", "dev", port, "root"], capture_output=True, check=False
            )

    def lost(self, name: str) -> int:
        """How many packets a slow line has lost, by the kernel's own count."""
        told = [
            subprocess.run(
                ["tc", "-n", space, "-s", "qdisc", "show", "dev", port],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for space, port in self._ends(name)
        ]
        return sum(int(each.split("dropped ")[1].split(",")[0]) for each in told)

    @contextmanager
    def captured(self, name: str, path: Path) -> Iterator[None]:
        """Every frame that a host sends or receives, in a file."""
        words = [sys.executable, "-c", CAPTURE, str(path), self._ports[name]]
        process = subprocess.Popen(self.words("switch", words))
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _ends(self, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.space(name), PORT), (self.space("switch"), self._ports[name])

    @staticmethod
    def _shape(space: str, port: str, how: str) -> bool:
        words = ["tc", "-n", space, "qdisc", "replace", "dev", port, "root", *how.split()]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _enter(space: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")
