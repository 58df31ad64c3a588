"""State of the controller, without any model, and its conversion to JSON values for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from immutables import Map

from abaton.controller.differential_privacy import AccountedRound
from abaton.controller.events import Instruction, StartTraining, UpdateReceived
from abaton.controller.learning_rate_plateau import EvaluationProgress
from abaton.errors import StoreError
from abaton.metrics.counts import Counts
from abaton.training import TrainSettings, UpdateThresholds


@dataclass(frozen=True, slots=True)
class LearnerInfo:
    """Group and counts that a learner declared when it joined."""

    examples: int
    group: str = ""
    labels: Counts = ()

    @property
    def max_examples(self) -> int:
        """Upper bound of a learner's examples in the controller state, validation included, by what it declared."""
        return 2 * self.examples + int(sum(self.labels))

    def min_with(self, other: LearnerInfo) -> LearnerInfo:
        """Return the smaller counts of two declarations; a learner that rejoins cannot declare more than at first."""
        pairs = zip_longest(self.labels, other.labels, fillvalue=0)
        labels = tuple(map(min, pairs))[: len(self.labels)]
        return LearnerInfo(min(self.examples, other.examples), self.group, labels)


@dataclass(frozen=True, slots=True)
class LastCommit:
    """Weight and steps of a learner's last commit."""

    weight: float
    steps: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Open training task.

    Attributes:
        learner: Learner that trains.
        version: Version that it starts from.
        committed_steps: Steps committed when the task started.
        use_validation_data: Whether it also trains on its validation set.
    """

    learner: str
    version: int
    committed_steps: int
    use_validation_data: bool = False


class Contribution(NamedTuple):
    """Update that has been received but not committed.

    Attributes:
        update: The event.
        version: Version it started from.
        versions_missed: Number of versions published since.
        staleness: Steps committed by others since, plus its own (effective staleness).
        pending_evaluators: Evaluators that have not replied yet.
        evaluations_received: Counts of the evaluators that replied; the author's own first, if included.
        counts: Sum of all counts, once no evaluator is pending.
        score: Mean score of the learner's models over all evaluations, for a weighting by means; None without one.
        used_validation_data: Whether it was trained on the learner's validation set, too.
        is_final: Whether it arrived in the final rounds, where no model is evaluated and the last weight is used.
    """

    update: UpdateReceived
    version: int
    versions_missed: int
    staleness: int
    pending_evaluators: frozenset[str] = frozenset()
    evaluations_received: tuple[Counts, ...] = ()
    counts: Counts = ()
    used_validation_data: bool = False
    is_final: bool = False
    score: float | None = None


class ControllerState(NamedTuple):
    """State between two events. It is a named tuple because a new one is created for each event.

    Attributes:
        version: Latest version of the community model; 0 is the initial model.
        committed_steps: Training steps of all commits.
        attempt: Number of times the current round has been started (synchronous scheduler).
        is_past_deadline: Whether the deadline of the current round has passed.
        requested: Number of training tasks started (asynchronous schedulers).
        has_started: Whether enough learners have joined and training has started.
        present: Learners that are present.
        declared: What each learner declared when it joined for the first time.
        missing: Learners that left before training started and are not waited for.
        examples: Training examples of all present learners.
        labels: Label counts of all their validation sets.
        open_tasks: Open training tasks.
        awaiting_evaluation: Updates with pending evaluators, by task.
        ready: Updates to be aggregated, under a key of the scheduler.
        failures: Consecutive failed tasks of each learner (asynchronous schedulers).
        cycles: Staleness of each learner's first commits, for the staleness criterion.
        releases: Updates requested from each learner, if there is a privacy budget per learner.
        sampled: Sample size and population of the current round, if the community models have a privacy budget.
        rounds: Number of released rounds by accounted parameters, for the same budget.
        progress: Development of the distributed validation loss.
        last_commits: Last commit of each learner, if there are final rounds.
        final_updates: Updates of the final rounds that each learner has committed (asynchronous schedulers).
        scores: Sum and number of the evaluators' scores of each learner's models, for a weighting by means.
        capped_updates: Updates whose examples were capped, if the strategy's robustness is `capped`.
        capped_evaluations: Models of which one evaluator's counts were capped, likewise.
        scheduler_state: Values that a user-defined scheduler remembers, by name.
        stop_reason: Why the run stopped; None while it runs.
    """

    version: int = 0
    committed_steps: int = 0
    attempt: int = 0
    is_past_deadline: bool = False
    requested: int = 0
    has_started: bool = False
    present: Map[str, LearnerInfo] = Map()
    declared: Map[str, LearnerInfo] = Map()
    missing: frozenset[str] = frozenset()
    examples: int = 0
    labels: Counts = ()
    open_tasks: Map[str, Assignment] = Map()
    awaiting_evaluation: Map[str, Contribution] = Map()
    ready: Map[str, Contribution] = Map()
    failures: Map[str, int] = Map()
    cycles: Map[str, tuple[int, ...]] = Map()
    releases: Map[str, int] = Map()
    sampled: tuple[int, int] = (0, 0)
    rounds: Map[AccountedRound, int] = Map()
    progress: EvaluationProgress = EvaluationProgress()
    last_commits: Map[str, LastCommit] = Map()
    final_updates: Map[str, int] = Map()
    scores: Map[str, tuple[float, int]] = Map()
    capped_updates: int = 0
    capped_evaluations: int = 0
    scheduler_state: Map[str, float] = Map()
    stop_reason: str | None = None


Transition: TypeAlias = tuple[ControllerState, tuple[Instruction, ...]]
"""State after an event, and the instructions that follow from it."""


def to_json_value(value: Any) -> Any:
    """Convert the controller state, or any value in one, to JSON values for a checkpoint.

    >>> from_json_value(to_json_value(ControllerState(version=3))) == ControllerState(version=3)
    True
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "type": _TAGS[type(value)],
            **{f.name: to_json_value(getattr(value, f.name)) for f in fields(value)},
        }
    if isinstance(value, AccountedRound | ControllerState | Contribution):
        return {
            "type": _TAGS[type(value)],
            **{name: to_json_value(part) for name, part in zip(value._fields, value, strict=True)},
        }
    if isinstance(value, Map | dict):
        tag = "map" if isinstance(value, Map) else "dict"
        return {
            "type": tag,
            "items": [[to_json_value(k), to_json_value(v)] for k, v in sorted(value.items())],
        }
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    if isinstance(value, frozenset):
        return {"type": "frozenset", "items": sorted(value)}
    return value


def from_json_value(json_value: Any) -> Any:
    """Restore a value of the controller state from the JSON values of a checkpoint."""
    if isinstance(json_value, list):
        return tuple(from_json_value(item) for item in json_value)
    if not isinstance(json_value, dict):
        return json_value
    tag = json_value["type"]
    if tag in ("map", "dict"):
        pairs = {from_json_value(k): from_json_value(v) for k, v in json_value["items"]}
        return Map(pairs) if tag == "map" else pairs
    if tag == "frozenset":
        return frozenset(json_value["items"])
    try:
        return CHECKPOINT_TYPES[tag](
            **{name: from_json_value(value) for name, value in json_value.items() if name != "type"}
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"the checkpoint contains an unknown '{tag}'") from error


CHECKPOINT_TYPES: dict[str, type] = {
    "update_received": UpdateReceived,
    "assignment": Assignment,
    "contribution": Contribution,
    "learner_info": LearnerInfo,
    "last_commit": LastCommit,
    "evaluation_progress": EvaluationProgress,
    "accounted_round": AccountedRound,
    "controller_state": ControllerState,
    "update_thresholds": UpdateThresholds,
    "start_training": StartTraining,
    "train_settings": TrainSettings,
}
"""Tag of each type in a checkpoint. Tags are part of the file format; class names are not."""

_TAGS = {stored_type: tag for tag, stored_type in CHECKPOINT_TYPES.items()}
