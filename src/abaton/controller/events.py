"""What the controller hears and says: small values that can be written to a journal and read back.

An event is something that happened; an instruction is something to be done. Models and payloads never travel inside
them: they are named by the digest of their content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

from abaton.errors import StoreError
from abaton.metrics.counts import Counts
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class Joined:
    """A learner is there and ready to train.

    Attributes:
        at: when.
        learner: who.
        examples: how many examples it trains on.
        group: which group of learners it belongs to.
        labels: how many examples of each class its validation set holds; nothing if it does not say.
    """

    at: float
    learner: str
    examples: int
    group: str = ""
    labels: Counts = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A learner has gone and will not answer any more."""

    at: float
    learner: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A learner's update has arrived.

    `cohort` is the fingerprint of whose records it was trained on, if the learner is bound to consents; `size` and
    `down` are the bytes of the update and of the model that was sent for it; `signature` is its site's, where sites
    sign what they learned.
    """

    at: float
    learner: str
    task: str
    payload: str
    size: int
    steps: int
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    score: Counts = ()
    cohort: str = ""
    down: int = 0
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """An evaluator has scored another learner's model, which was sent in so many bytes, on its own validation set."""

    at: float
    learner: str
    task: str
    score: Counts
    down: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """A time that the controller asked to be woken at has come."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A task will not be answered; the reason is one of a few fixed words, never free text."""

    at: float
    learner: str
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something happened on the way that changes nothing but explains a delay; one of a few fixed words."""

    at: float
    learner: str
    what: str


@dataclass(frozen=True, slots=True)
class Train:
    """Let a learner train, starting from a version of the community model."""

    task: str
    learner: str
    version: int
    settings: TrainSettings


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Let an evaluator score the model that another learner sent with a task."""

    task: str
    learner: str
    model: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for a task any more."""

    task: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Send a tick at a time."""

    name: str
    at: float


@dataclass(frozen=True, slots=True)
class Retire:
    """Take a learner's share out of the mix."""

    learner: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Let a learner's update enter the mix with a weight.

    Attributes:
        update: what arrived.
        version: the version of the community model that it was made from.
        weight: how much it counts.
        missed: how many versions were published since.
        staleness: steps committed by others since, plus its own (effective staleness).
        validation: the mean loss of its model on validation sets, if anybody told one: of all that evaluators were
            heard of, or else of its own learner.
    """

    update: Arrived
    version: int
    weight: float
    missed: int
    staleness: int
    validation: float | None = None

    @property
    def learner(self) -> str:
        """Whose update it is."""
        return self.update.learner

    @property
    def task(self) -> str:
        """The task that it answers."""
        return self.update.task


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the mix of all commits the next version of the community model."""

    version: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run."""

    reason: str


Event: TypeAlias = Joined | Left | Arrived | Scored | Failed | Tick | Noted
Instruction: TypeAlias = Train | Evaluate | Commit | Retire | Publish | Wake | Cancel | Stop

_EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Joined, Left, Arrived, Scored, Failed, Tick, Noted)
}
_VALUES = {kind: attrgetter(*kind.__slots__) for kind in _EVENTS.values()}


def to_row(event: Event) -> tuple[str, dict[str, Any]]:
    """An event as a kind and plain values, ready for the journal.

    >>> to_row(Left(at=2.0, learner="cleveland"))
    ('Left', {'at': 2.0, 'learner': 'cleveland'})
    """
    kind = type(event)
    values = zip(kind.__slots__, _VALUES[kind](event), strict=True)
    return kind.__name__, {name: list(v) if isinstance(v, tuple) else v for name, v in values}


def from_row(kind: str, body: Mapping[str, Any]) -> Event:
    """The event that a journal row holds."""
    try:
        # JSON knows lists only; what an evaluator counted is a tuple.
        plain: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in body.items()}
        return _EVENTS[kind](**plain)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"the journal holds an event '{kind}' that this version does not know",
            remedy="open it with the version of Abaton that wrote it",
        ) from error
