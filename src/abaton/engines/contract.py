"""What an engine is: something that carries tasks to learners, brings events back, and knows the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from abaton.codecs import Difference
from abaton.controller import Event, TrainSettings
from abaton.learners import Signed
from abaton.kernels import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How a task's model can be made from versions that a site holds, in a run whose way down is compressed.

    Attributes:
        version: the version of the community model that it is, or was made from.
        start: that version.
        lately: the newest differences between versions.
        author: the learner whose model it is; nobody if it is the version itself.
        payload: the update that makes it the author's model.
    """

    version: int
    start: Vector
    lately: tuple[Difference, ...]
    author: str = ""
    payload: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class TrainTask:
    """Training for one learner; submitted or answered twice under the same key, it counts once."""

    key: str
    learner: str
    version: int
    model: Vector
    settings: TrainSettings
    way: Way | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateTask:
    """Another learner's model, to be scored by a learner's evaluator; signed by its site, where sites sign."""

    key: str
    learner: str
    model: Vector
    way: Way | None = None
    signed: Signed | None = None


Task = TrainTask | EvaluateTask


class Engine(Protocol):
    """Carries tasks and events; it never decides anything.

    Attributes:
        real: whether tasks leave this process; the journal is then written before they do.
    """

    real: ClassVar[bool]

    def now(self) -> float:
        """The time, in seconds since the run began."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand over work; never waits for it."""

    def events(self) -> Sequence[Event]:
        """What happened next, in order; empty if nothing can happen any more."""

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""

    def cancel(self, key: str) -> None:
        """Say that nobody waits for a task any more; it may still be answered."""

    def tell(self, committed: int) -> None:
        """Let learners know how many steps have been committed, as soon as that can be done."""
