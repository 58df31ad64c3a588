"""Hosts for a test: network namespaces on one machine, joined by a switch in a namespace of its own.

Nothing of it touches the machine's own network. Where namespaces are not allowed, tests say so and are skipped.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

PORT = "eth0"
RATE = "1mbit"

# Frames go to a file as they are, each after its length: nothing is taken apart.
CAPTURE = """
import socket, sys
with open(sys.argv[1], "wb", buffering=0) as out, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300) as tap:
    tap.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE: lose nothing
    tap.bind(("switch", 0))
    while True:
        frame = tap.recv(1 << 17)
        out.write(len(frame).to_bytes(4, "little") + frame)
"""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def skip_unless_allowed() -> None:
    """Skip where this machine has no namespaces for us."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root and Debian's 'iproute2'")
    probe = f"abaton-{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow network namespaces")
    ip("netns", "del", probe)


class Hosts:
    """One host for each name, with an address on a network that only they are on."""

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = secrets.token_hex(3)
        self.addresses = {name: f"10.77.0.{i}" for i, name in enumerate(names, 10)}
        self._ports = {name: f"p{i}" for i, name in enumerate(names)}

    def space(self, name: str) -> str:
        return f"abaton-{self._tag}-{name}"

    def start(self) -> None:
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
        for name in (*self.addresses, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)

    def words(self, name: str, words: Sequence[str]) -> list[str]:
        """A command that runs on a host."""
        return ["ip", "netns", "exec", self.space(name), *words]

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "down")

    def mend(self, name: str) -> None:
        ip("-n", self.space("switch"), "link", "set", self._ports[name], "up")

    def slow(self, name: str, rate: str = RATE) -> str:
        """Make a host's line slow in both directions, and let it lose packets; says how.

        Netem loses packets at random; without it in the kernel, a short queue loses those that come too fast.
        """
        ends = ((self.space(name), PORT), (self.space("switch"), self._ports[name]))
        for how in (f"netem rate {rate} delay 20ms loss 2%", f"tbf rate {rate} burst 4kb limit 16kb"):
            done = [
                subprocess.run(
                    ["tc", "-n", space, "qdisc", "replace", "dev", port, "root", *how.split()],
                    capture_output=True,
                    check=False,
                ).returncode
                for space, port in ends
            ]
            if not any(done):
                return how
        raise AssertionError("neither netem nor tbf")

    def lost(self, name: str) -> int:
        """How many packets the slow line has lost, by the kernel's own count."""
        ends = ((self.space(name), PORT), (self.space("switch"), self._ports[name]))
        told = [
            subprocess.run(
                ["tc", "-n", space, "-s", "qdisc", "show", "dev", port],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for space, port in ends
        ]
        return sum(int(each.split("dropped ")[1].split(",")[0]) for each in told)

    def sent(self, name: str) -> tuple[int, int]:
        """How many bytes a host has sent and received, by the kernel's own count."""
        place = f"/sys/class/net/{PORT}/statistics"
        words = self.words(name, ["cat", f"{place}/tx_bytes", f"{place}/rx_bytes"])
        up, down = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        return int(up), int(down)

    @contextmanager
    def captured(self, path: Path) -> Iterator[None]:
        """Every frame that passes the switch, in a file."""
        process = subprocess.Popen(self.words("switch", [sys.executable, "-c", CAPTURE, str(path)]))
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@contextmanager
def hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """Hosts from their start to their end."""
    skip_unless_allowed()
    made = Hosts(names)
    try:
        made.start()
        yield made
    finally:
        made.stop()
