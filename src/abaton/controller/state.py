"""The controller's memory: who is there, what is under way, what has come in. No model is in it.

As plain values a checkpoint can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from immutables import Map

from abaton.controller.differential_privacy import Round
from abaton.controller.events import Arrived, Instruction, Train
from abaton.errors import StoreError
from abaton.metrics.counts import Counts, Progress
from abaton.training import Thresholds, TrainSettings


@dataclass(frozen=True, slots=True)
class Member:
    """A learner that is there."""

    examples: int
    group: str = ""
    labels: Counts = ()

    @property
    def most(self) -> int:
        """As many examples as it can have, validation included, by what it declared."""
        return 2 * self.examples + int(sum(self.labels))

    def lessened(self, now: Member) -> Member:
        """What holds of a learner that comes back and declares something else: nothing that is more than at first."""
        pairs = zip_longest(self.labels, now.labels, fillvalue=0)
        labels = tuple(map(min, pairs))[: len(self.labels)]
        return Member(min(self.examples, now.examples), self.group, labels)


@dataclass(frozen=True, slots=True)
class Past:
    """A learner's last commit: what it weighed, and how many steps it was."""

    weight: float
    steps: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task under way: who trains, from which version, after how many committed steps, and whether on all data."""

    learner: str
    version: int
    committed: int
    complete: bool = False


class Contribution(NamedTuple):
    """An update on its way into the mix.

    Attributes:
        update: what arrived.
        version: the version it started from.
        versions_missed: how many versions were published since.
        staleness: steps committed by others since, plus its own (effective staleness).
        waiting: evaluators that have not answered yet.
        heard: what each of those who answered counted, its own learner's first if that counts.
        score: what they counted, all together, once nobody is waited for.
        complete: whether it was trained on all of its learner's data.
        frozen: whether it came in the post-validation phase: nobody scores it; its learner's last weight counts.
    """

    update: Arrived
    version: int
    versions_missed: int
    staleness: int
    waiting: frozenset[str] = frozenset()
    heard: tuple[Counts, ...] = ()
    score: Counts = ()
    complete: bool = False
    frozen: bool = False


class State(NamedTuple):
    """What the controller knows between two events; a new one is made for each event, which a named tuple does fastest.

    Attributes:
        version: the newest version of the community model; 0 is the initial model.
        committed: how many steps all commits together were trained for.
        attempt: how often the present round has been started (synchronous pacing).
        late: whether the present round's deadline has passed.
        asked: how many training tasks have been given out (asynchronous pacing).
        begun: whether enough learners have joined and training has begun.
        present: the learners that are there.
        declared: what each learner declared when it joined for the first time.
        missing: who has gone before training began, and is not waited for.
        examples: on how many examples those who are there train, all together.
        labels: the label counts of all their validation sets together.
        open: the training tasks under way.
        scoring: updates that wait for evaluators, by task.
        ready: updates that wait for the mix, under a key that the pacing chose.
        failures: how often in a row a learner's tasks have failed (asynchronous pacing).
        cycles: each learner's staleness at its first commits, for the staleness criterion.
        releases: how many updates each learner has been asked for, if there is a privacy budget for each.
        drawn: how many learners the round has asked, among how many, if the community models have a privacy budget.
        rounds: how many rounds of each kind have been released, for the same budget.
        progress: how the distributed validation loss has come along.
        past: each learner's last commit, kept if there is a post-validation phase.
        finished: how many updates of the post-validation phase each learner has committed (asynchronous pacing).
        notes: numbers that a pacing of your own remembers, by name.
        stopped: why the run is over, or nothing.
    """

    version: int = 0
    committed: int = 0
    attempt: int = 0
    late: bool = False
    asked: int = 0
    begun: bool = False
    present: Map[str, Member] = Map()
    declared: Map[str, Member] = Map()
    missing: frozenset[str] = frozenset()
    examples: int = 0
    labels: Counts = ()
    open: Map[str, Assignment] = Map()
    scoring: Map[str, Contribution] = Map()
    ready: Map[str, Contribution] = Map()
    failures: Map[str, int] = Map()
    cycles: Map[str, tuple[int, ...]] = Map()
    releases: Map[str, int] = Map()
    drawn: tuple[int, int] = (0, 0)
    rounds: Map[Round, int] = Map()
    progress: Progress = Progress()
    past: Map[str, Past] = Map()
    finished: Map[str, int] = Map()
    notes: Map[str, float] = Map()
    stopped: str | None = None


Answer: TypeAlias = tuple[State, tuple[Instruction, ...]]
"""What the controller knows after an event, and what is to be done."""


def to_plain(value: Any) -> Any:
    """A state, or anything in one, as values that JSON can hold.

    >>> from_plain(to_plain(State(version=3))) == State(version=3)
    True
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "is": type(value).__name__,
            **{f.name: to_plain(getattr(value, f.name)) for f in fields(value)},
        }
    if isinstance(value, Round | State | Contribution):
        return {
            "is": type(value).__name__,
            **{name: to_plain(part) for name, part in zip(value._fields, value, strict=True)},
        }
    if isinstance(value, Map | dict):
        kind = "Map" if isinstance(value, Map) else "dict"
        return {"is": kind, "items": [[to_plain(k), to_plain(v)] for k, v in sorted(value.items())]}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, frozenset):
        return {"is": "frozenset", "items": sorted(value)}
    return value


def from_plain(plain: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(plain, list):
        return tuple(from_plain(item) for item in plain)
    if not isinstance(plain, dict):
        return plain
    kind = plain["is"]
    if kind in ("Map", "dict"):
        pairs = {from_plain(k): from_plain(v) for k, v in plain["items"]}
        return Map(pairs) if kind == "Map" else pairs
    if kind == "frozenset":
        return frozenset(plain["items"])
    try:
        return _KINDS[kind](**{name: from_plain(value) for name, value in plain.items() if name != "is"})
    except (KeyError, TypeError) as error:
        raise StoreError(f"the checkpoint holds a '{kind}' that this version does not know") from error


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Arrived, Assignment, Contribution, Member, Past, Progress, Round, State),
        *(Thresholds, Train, TrainSettings),
    )
}
