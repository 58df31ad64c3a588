"""Whether somebody answers at an address, and whether it is who it should be."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Door:
    """Where something is to answer.

    Attributes:
        what: what it is called in messages.
        address: ``host:port``.
        authority: what its certificate is signed with.
        status: what it answers when asked for its health.
        name: what its certificate is for, if not for the address.
    """

    what: str
    address: str
    authority: Path
    status: int
    name: str = ""

    def trouble(self) -> str:
        """Nothing if it answers as it should; otherwise what is wrong."""
        import httpx

        trusted = ssl.create_default_context(cafile=str(self.authority))
        known = {"sni_hostname": self.name} if self.name else {}
        try:
            with httpx.Client(verify=trusted, trust_env=False) as client:
                status = client.get(f"https://{self.address}/health", extensions=known).status_code
        except httpx.TransportError as error:
            return str(error) or "no answer"
        return "" if status == self.status else f"status {status}"


def is_free(address: str) -> bool:
    """Whether nobody listens at an address of this machine."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True
