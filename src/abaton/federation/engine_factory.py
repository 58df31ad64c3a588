"""Which engine carries a run: by a word for those of this machine and its cluster, or anything that opens one.

A site's own secret of a run: it keys the fingerprint of its data, shuffles its rows and feeds its noise for privacy.

In a simulation it follows from the seed, so that a run can be made again to the bit. In real time it is drawn, and
kept in the folder where the site keeps its learner's memory, readable by its account alone.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.atomic_files import begun_name, writing
from abaton.engines import Ended, Running, local, on_ray, virtual
from abaton.engines.ray import require_ray
from abaton.errors import SettingsError
from abaton.store import digest_of

_LENGTH = 32


def simulated_secret(seed: int, site: str) -> bytes:
    """The secret of a site in a simulation."""
    return f"simulated {seed} {site}".encode()


def kept_secret(folder: Path, site: str) -> bytes:
    """The secret of a site in a run, drawn when it is first asked for."""
    path = folder / f"{digest_of(site.encode())[:32]}.secret"
    if not path.exists():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            drawn = folder / begun_name(secrets.token_hex(8))
            drawn.touch(mode=0o600)
            drawn.write_bytes(secrets.token_bytes(_LENGTH))
            with suppress(FileExistsError):  # whoever was first has drawn it for all
                path.hardlink_to(drawn)
            drawn.unlink()
    return path.read_bytes()


ENGINES = ("virtual", "local", "ray")


def engine_of(name: str, address: str = "") -> str | Carrier:
    """The engine of a name, with the address of a Ray cluster if it needs one."""
    return Here(name, address) if name == "ray" and address else name


class Carrier(Protocol):
    """Opens the engine of a run."""

    @property
    def name(self) -> str:
        """What the engine is called in the run's row."""

    def secret(self, seed: int, site: str, states: Path) -> bytes:
        """A site's own secret in a run."""

    def open(self, running: Running) -> Ended:
        """The engine, ready for a run."""


@dataclass(frozen=True, slots=True)
class Here:
    """An engine whose learners this process makes.

    Attributes:
        name: `virtual` (a simulated clock), `local` (processes of this machine) or `ray` (tasks on a Ray cluster).
        address: Where the Ray cluster is; without one `RAY_ADDRESS` counts, or one is started here. Not kept.
    """

    name: str
    address: str = ""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise SettingsError(
                f"there is no engine '{self.name}'", where="engine", remedy=f"use {' or '.join(ENGINES)}"
            )
        if self.name == "ray":
            require_ray()

    def secret(self, seed: int, site: str, states: Path) -> bytes:
        """From the seed in a simulation, which can be replayed; real ones are drawn and kept."""
        return simulated_secret(seed, site) if self.name == "virtual" else kept_secret(states, site)

    def open(self, running: Running) -> Ended:
        """The engine, ready for a run."""
        match self.name:
            case "virtual":
                return virtual(running)
            case "local":
                return local(running)
            case _:
                return on_ray(running, self.address)
