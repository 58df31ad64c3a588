"""Engine of a run, by name or factory, and a site's secret of a run.

The secret keys the digest of the site's data, shuffles its rows and seeds its privacy noise. In a simulation it follows
from the seed, so that a run can be reproduced to the bit. In real time it is random and stored in the state folder of
the site's learner, readable by its account only.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.atomic_files import map_os_errors, temporary_name
from abaton.engines import ClosableEngine, RunContext, open_local_engine, open_ray_engine, open_virtual_engine
from abaton.engines.ray import require_ray
from abaton.errors import SettingsError
from abaton.store import content_digest

_SECRET_BYTES = 32


def simulated_run_secret(seed: int, site: str) -> bytes:
    """Return the secret of a site in a run of the virtual engine, from seed and name."""
    return f"simulated {seed} {site}".encode()  # frozen: part of the bytes


def load_run_secret(folder: Path, site: str) -> bytes:
    """Return a site's secret in a run of a real engine; it is created at the first call."""
    path = folder / f"{content_digest(site.encode())[:32]}.secret"
    if not path.exists():
        with map_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary_path = folder / temporary_name(secrets.token_hex(8))
            try:
                temporary_path.touch(mode=0o600)
                temporary_path.write_bytes(secrets.token_bytes(_SECRET_BYTES))
                with suppress(FileExistsError):  # another process created it first
                    path.hardlink_to(temporary_path)
            finally:
                temporary_path.unlink(missing_ok=True)
    return path.read_bytes()


ENGINES = ("virtual", "local", "ray")


def resolve_engine(name: str, address: str = "") -> str | EngineFactory:
    """Return the engine name, or an engine factory if a Ray cluster has an address."""
    return LocalEngineFactory(name, address) if name == "ray" and address else name


class EngineFactory(Protocol):
    """Factory of the engine of a run."""

    @property
    def name(self) -> str:
        """Name of the factory's engine in the run's row."""

    def secret(self, seed: int, site: str, states: Path) -> bytes:
        """Interface of engine factories: return a site's secret in a run."""

    def open(self, context: RunContext) -> ClosableEngine:
        """Interface of engine factories: open the engine, ready for a run."""


@dataclass(frozen=True, slots=True)
class LocalEngineFactory:
    """Factory of engines whose learners are created in this process.

    Attributes:
        name: `virtual` (simulated clock), `local` (processes of this machine) or `ray` (tasks on a Ray cluster).
        address: Address of the Ray cluster; `RAY_ADDRESS` or a new local cluster if empty. Not stored.
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
        """Return a site's secret for the factory's engine: from the seed in a simulation, else random and stored."""
        return simulated_run_secret(seed, site) if self.name == "virtual" else load_run_secret(states, site)

    def open(self, context: RunContext) -> ClosableEngine:
        """Open the virtual, local or Ray engine that the engine factory names, ready for a run."""
        match self.name:
            case "virtual":
                return open_virtual_engine(context)
            case "local":
                return open_local_engine(context)
            case _:
                return open_ray_engine(context, self.address)
