"""What those who look on are told: which training was asked for, which update entered the mix, how stale it was.

The controller's decisions follow from the journal, so nothing here is needed to resume a run. They are written as
columns, so that a page with a hundred thousand events can be added up by the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abaton.control import Arrived, Cancel, Commit, Event, Failed, Instruction, Scored, State, Train, score
from abaton.control.messages import Counts
from abaton.control.scoring import evaluation
from abaton.control.state import Contribution
from abaton.store import Journal


class Onlooker:
    """Notes decisions in a journal.

    Args:
        journal: of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._began: dict[str, float] = {}

    def tell(self, before: State, event: Event, instructions: Sequence[Instruction]) -> None:
        """Note what the controller said at an event, given what it knew before."""
        commits = [self._commit(before, event, one) for one in instructions if isinstance(one, Commit)]
        tasks: list[dict[str, Any]] = []
        for one in instructions:
            if isinstance(one, Train):
                self._began[one.task] = event.at
                tasks.append(
                    {"learner": one.learner, "task": one.task, "version": one.version, "at": event.at}
                )
            elif isinstance(one, Cancel):
                self._began.pop(one.task, None)
        if isinstance(event, Failed):
            self._began.pop(event.task, None)
        if tasks or commits:
            self._journal.note(tasks, commits)

    def _commit(self, before: State, event: Event, commit: Commit) -> dict[str, Any]:
        made = _contribution(before, event, commit)
        update, task = made.update, commit.task
        number, summed = score.losses(_heard(made, event, task))
        began = self._began.pop(task, None)
        if began is None:  # asked for before a checkpoint
            began = self._journal.began(task)
        return {
            "learner": commit.learner,
            "task": task,
            "version": commit.version,
            "began": update.at if began is None else began,
            "arrived": update.at,
            "uploading": update.metrics.get("upload", 0.0),
            "at": event.at,
            "size": update.size,
            "steps": update.steps,
            "weight": commit.weight,
            "missed": made.versions_missed,
            "staleness": made.staleness,
            "loss": update.metrics.get("loss"),
            "validation": summed / number if number else None,
        }


def _contribution(before: State, event: Event, commit: Commit) -> Contribution:
    """The update as the controller knew it; one that enters the mix as it arrives was not known before."""
    made = before.scoring.get(commit.task) or before.ready.get(commit.learner)
    if made is not None and made.update.task == commit.task:
        return made
    assert isinstance(event, Arrived)
    given = before.open[event.task]
    staleness = before.committed - given.committed + event.steps
    return Contribution(event, given.version, before.version - given.version, staleness)


def _heard(made: Contribution, event: Event, task: str) -> Counts:
    """What evaluators counted of a model, with what the newest event adds; if nobody did, what its own learner did."""
    heard = made.score
    if isinstance(event, Scored) and event.task == evaluation(task, event.learner):
        heard = score.add(heard, event.score)
    return heard or made.update.score
