"""The controller's memory: who is there, what is under way, what has come in. No model is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from immutables import Map

from abaton.control.accountant import Round
from abaton.control.decay import Progress
from abaton.control.messages import Arrived, Counts


@dataclass(frozen=True, slots=True)
class Member:
    """A learner that is there."""

    examples: int
    group: str = ""
    labels: Counts = ()


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
        score: what the evaluators counted so far, all together.
        complete: whether it was trained on all of its learner's data.
        frozen: whether it came in the post-validation phase: nobody scores it; its learner's last weight counts.
    """

    update: Arrived
    version: int
    versions_missed: int
    staleness: int
    waiting: frozenset[str] = frozenset()
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
        labels: the label counts of all their validation sets together.
        open: the training tasks under way.
        scoring: updates that wait for evaluators, by task.
        ready: updates of the present round that wait for the mix, by learner (synchronous pacing).
        failures: how often in a row a learner's tasks have failed (asynchronous pacing).
        cycles: each learner's staleness at its first commits, for the staleness criterion.
        releases: how many updates each learner has been asked for, if there is a privacy budget for each.
        drawn: how many learners the round has asked, among how many, if the community models have a privacy budget.
        rounds: how many rounds of each kind have been released, for the same budget.
        progress: how the distributed validation loss has come along.
        past: each learner's last commit, kept if there is a post-validation phase.
        finished: how many updates of the post-validation phase each learner has committed (asynchronous pacing).
        stopped: why the run is over, or nothing.
    """

    version: int = 0
    committed: int = 0
    attempt: int = 0
    late: bool = False
    asked: int = 0
    begun: bool = False
    present: Map[str, Member] = Map()
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
    stopped: str | None = None
