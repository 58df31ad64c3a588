"""What an engine is: something that carries tasks to learners, brings events back, and knows the time.

What may be said of a task that came to nothing: a few fixed words, never the text of an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from abaton.codecs import Difference
from abaton.controller import Event
from abaton.errors import AbatonError
from abaton.kernels import Vector
from abaton.learners import Signed
from abaton.training import TrainSettings


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


DIED = "process ended"
DROPPED = "dropped out"
FAILED = "learner failed"
GONE = "learner is gone"
LATE = "no answer in time"
NO_BASE = "base is gone"
OTHER_LAYOUT = "another layout"
OTHER_SOFTWARE = "another version of Abaton"
OTHER_TERMS = "other terms"
REFUSED = "task was refused"
STRANGER = "not in this run"
UNKNOWN = "unknown message"
UNREADABLE_ANSWER = "unreadable answer"
UNREADABLE_UPDATE = "unreadable update"

REASONS = frozenset({DIED, FAILED, LATE, NO_BASE, OTHER_LAYOUT, OTHER_TERMS, REFUSED, STRANGER, UNKNOWN})
"""Everything that a site may say went wrong; no other text of a site's errors is ever passed on."""


class Said(Exception):
    """One of the fixed words, on its way to the controller."""


def plain_reason(said: object) -> str:
    """A site's reason if it is one of those that a site may give.

    >>> plain_reason("another layout"), plain_reason("patient 4711 is not finite")
    ('another layout', 'learner failed')
    """
    return said if isinstance(said, str) and said in REASONS else FAILED


def word_for(error: Exception) -> str:
    """The fixed word for an error.

    >>> word_for(Said(NO_BASE)), word_for(AbatonError("row 4711")), word_for(ValueError("row 4711"))
    ('base is gone', 'task was refused', 'learner failed')
    """
    if isinstance(error, Said):
        return plain_reason(str(error))
    return REFUSED if isinstance(error, AbatonError) else FAILED
