"""Which engine carries a run: by a word for those of this machine and its cluster, or anything that opens one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.engines import Ended, Running, local, on_ray, virtual
from abaton.engines.ray import require_ray
from abaton.errors import SettingsError
from abaton.federation.secret import kept_secret, simulated_secret

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
