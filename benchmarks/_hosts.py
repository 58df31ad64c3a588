"""Hosts for benchmarks and tests: network namespaces on one machine, joined by a switch in another namespace.

The machine's own network is not changed. Requires root and iproute2.
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
    """Return why hosts cannot be created; empty if they can."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "network namespaces need root and Debian's 'iproute2'"
    probe = f"abaton-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow network namespaces"
    ip("netns", "del", probe)
    return ""


def ip(*arguments: str) -> str:
    """Return the output of an iproute2 command."""
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def counted(spaces: Sequence[str]) -> tuple[int, int]:
    """Return the bytes that hosts sent and received, counted by the kernel."""
    rows = [json.loads(ip("-n", space, "-s", "-j", "link", "show", "dev", PORT))[0] for space in spaces]
    sent, received = ([row["stats64"][way]["bytes"] for row in rows] for way in ("tx", "rx"))
    return sum(sent), sum(received)


class Hosts:
    """One host per name, with an address on an isolated network."""

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = secrets.token_hex(3)
        self.addresses = {name: f"10.77.0.{i}" for i, name in enumerate(names, 10)}
        self._ports = {name: f"p{i}" for i, name in enumerate(names)}

    def space(self, name: str) -> str:
        """Return the namespace of a host."""
        return f"abaton-{self._tag}-{name}"

    def start(self) -> None:
        """Create the hosts, the switch and the links."""
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
        """Remove everything."""
        for name in (*self.addresses, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """Return a command line that runs on a host."""
        return ["ip", "netns", "exec", self.space(name), *arguments]

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Run this thread, and what it starts, on a host."""
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
        """Disconnect a host."""
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "down")

    def mend(self, name: str) -> None:
        """Reconnect a host."""
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "up")

    def slow(self, name: str, *, queue: str, loss: str = "0%") -> str:
        """Limit the bandwidth of a host in both directions and drop packets; return how.

        Netem drops packets at random. Without it in the kernel, a short queue drops packets that arrive too fast.

        Args:
            name: the host.
            queue: length of the queue without netem.
            loss: fraction of dropped packets with netem.
        """
        for how in (f"netem rate {RATE} delay 20ms loss {loss}", f"tbf rate {RATE} burst 2kb limit {queue}"):
            if all(self._shape(space, port, how) for space, port in self._ends(name)):
                return how
        raise AssertionError("neither netem nor tbf")

    def quick(self, name: str) -> None:
        """Remove the limits of a host's link."""
        for space, port in self._ends(name):
            subprocess.run(
                ["tc", "-n", space, "qdisc", "del", "dev", port, "root"], capture_output=True, check=False
            )

    def lost(self, name: str) -> int:
        """Return the packets that a slow link dropped, counted by the kernel."""
        statistics = [
            subprocess.run(
                ["tc", "-n", space, "-s", "qdisc", "show", "dev", port],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for space, port in self._ends(name)
        ]
        return sum(int(line.split("dropped ")[1].split(",")[0]) for line in statistics)

    @contextmanager
    def captured(self, name: str, path: Path) -> Iterator[None]:
        """Write every frame that a host sends or receives to a file."""
        arguments = [sys.executable, "-c", CAPTURE, str(path), self._ports[name]]
        process = subprocess.Popen(self.command("switch", arguments))
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _ends(self, name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.space(name), PORT), (self.space("switch"), self._ports[name])

    @staticmethod
    def _shape(space: str, port: str, how: str) -> bool:
        arguments = ["tc", "-n", space, "qdisc", "replace", "dev", port, "root", *how.split()]
        return subprocess.run(arguments, capture_output=True, check=False).returncode == 0


def _enter(space: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")
