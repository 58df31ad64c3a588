"""Events and instructions of the controller, and their journal format.

Models and payloads are not part of them: they are referenced by the digest of their content.
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
class LearnerJoined:
    """A learner joined and is ready to train.

    Attributes:
        timestamp: Seconds of the engine's clock.
        learner: Name of the learner.
        examples: Number of its training examples.
        group: Group of learners that it belongs to.
        labels: Label counts of its validation set; empty if not declared.
    """

    timestamp: float
    learner: str
    examples: int
    group: str = ""
    labels: Counts = ()


@dataclass(frozen=True, slots=True)
class LearnerLeft:
    """A learner left and will not reply any more."""

    timestamp: float
    learner: str


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """A learner's update was received.

    `cohort` is the digest of the subjects that it was trained on, if the learner depends on consents; `payload_bytes`
    and `downlink_bytes` are the sizes of the update and of the model that was sent for it; `signature` is the site's,
    where sites sign updates.
    """

    timestamp: float
    learner: str
    task: str
    payload: str
    payload_bytes: int
    steps: int
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: Counts = ()
    cohort: str = ""
    downlink_bytes: int = 0
    signature: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """An evaluator scored another learner's model on its validation set; the model took `downlink_bytes`."""

    timestamp: float
    learner: str
    task: str
    counts: Counts
    downlink_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of the controller fired."""

    timestamp: float
    name: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed; the reason is one of the fixed codes of `engines.base`."""

    timestamp: float
    learner: str
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunNote:
    """Note that explains a delay and does not change the state; one of the fixed codes."""

    timestamp: float
    learner: str
    note: str


@dataclass(frozen=True, slots=True)
class StartTraining:
    """Train at a learner, starting from a version of the community model."""

    task: str
    learner: str
    version: int
    settings: TrainSettings


@dataclass(frozen=True, slots=True)
class StartEvaluation:
    """Score the model of another learner's task at an evaluator."""

    task: str
    learner: str
    model: str


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Cancel a task whose result is no longer needed."""

    task: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire a timer at a timestamp."""

    name: str
    timestamp: float


@dataclass(frozen=True, slots=True)
class RemoveLearner:
    """Remove a learner's contribution from the community model."""

    learner: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Aggregate a learner's update with a weight.

    Attributes:
        update: The update.
        version: Version of the community model that it started from.
        weight: Its weight.
        versions_missed: Number of versions published since.
        staleness: Steps committed by others since, plus its own (effective staleness).
        validation: Mean validation loss of its model: of all evaluators, or else of its own learner; None if unknown.
    """

    update: UpdateReceived
    version: int
    weight: float
    versions_missed: int
    staleness: int
    validation: float | None = None

    @property
    def learner(self) -> str:
        """Learner that sent the update of this commit instruction."""
        return self.update.learner

    @property
    def task(self) -> str:
        """Task of the update of this commit instruction."""
        return self.update.task


@dataclass(frozen=True, slots=True)
class PublishVersion:
    """Publish the aggregate of all commits as the next version of the community model."""

    version: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop the run."""

    reason: str


Event: TypeAlias = (
    LearnerJoined | LearnerLeft | UpdateReceived | EvaluationReceived | TaskFailed | TimerFired | RunNote
)
Instruction: TypeAlias = (
    StartTraining
    | StartEvaluation
    | Commit
    | RemoveLearner
    | PublishVersion
    | SetTimer
    | CancelTask
    | StopRun
)

EVENT_TYPES: dict[str, type[Event]] = {
    "learner_joined": LearnerJoined,
    "learner_left": LearnerLeft,
    "update_received": UpdateReceived,
    "evaluation_received": EvaluationReceived,
    "task_failed": TaskFailed,
    "timer_fired": TimerFired,
    "run_note": RunNote,
}
"""Tag of each event in the journal. Tags are part of the file format; class names are not."""

_TAGS = {event_type: tag for tag, event_type in EVENT_TYPES.items()}
_VALUES = {event_type: attrgetter(*event_type.__slots__) for event_type in EVENT_TYPES.values()}


def event_to_row(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the tag and the JSON values of a controller event for the journal.

    >>> event_to_row(LearnerLeft(timestamp=2.0, learner="cleveland"))
    ('learner_left', {'timestamp': 2.0, 'learner': 'cleveland'})
    """
    event_type = type(event)
    values = zip(event_type.__slots__, _VALUES[event_type](event), strict=True)
    return _TAGS[event_type], {name: list(v) if isinstance(v, tuple) else v for name, v in values}


def event_from_row(tag: str, body: Mapping[str, Any]) -> Event:
    """Return the controller event of a journal row."""
    try:
        # JSON has only lists; validation counts are tuples.
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in body.items()}
        return EVENT_TYPES[tag](**values)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"the journal contains an unknown event '{tag}'",
            remedy="open it with the version of Abaton that wrote it",
        ) from error
