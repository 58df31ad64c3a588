"""What an engine is: something that carries tasks to learners, brings events back, and knows the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from abaton.control import Event, TrainSettings
from abaton.vectors import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Work for one learner; submitted or answered twice under the same key, it counts once."""

    key: str
    learner: str
    version: int
    model: Vector
    settings: TrainSettings


class Engine(Protocol):
    """Carries tasks and events; it never decides anything."""

    def now(self) -> float:
        """The time, in seconds since the run began."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand over work; never waits for it."""

    def events(self) -> Sequence[Event]:
        """What happened next, in order; empty if nothing can happen any more."""
