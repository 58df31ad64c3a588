"""What those who look on are told: which training was asked for, which update entered the mix, how stale it was.

The controller's decisions follow from the journal, so nothing here is needed to resume a run. They are written as
columns, so that a page with a hundred thousand events can be added up by the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abaton.controller import Cancel, Commit, Event, Failed, Instruction, Train
from abaton.store import Journal


class Onlooker:
    """Notes decisions in a journal.

    Args:
        journal: of the run.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._began: dict[str, float] = {}

    def tell(self, event: Event, instructions: Sequence[Instruction]) -> None:
        """Note what the controller said at an event."""
        tasks: list[dict[str, Any]] = []
        commits: list[dict[str, Any]] = []
        for one in instructions:
            if isinstance(one, Commit):
                commits.append(self._commit(one, event.at))
            elif isinstance(one, Train):
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

    def _commit(self, commit: Commit, at: float) -> dict[str, Any]:
        update = commit.update
        began = self._began.pop(update.task, None)
        if began is None:  # asked for before a checkpoint
            began = self._journal.began(update.task)
        return {
            "learner": update.learner,
            "task": update.task,
            "version": commit.version,
            "began": update.at if began is None else began,
            "arrived": update.at,
            "uploading": update.metrics.get("upload", 0.0),
            "at": at,
            "size": update.size,
            "steps": update.steps,
            "weight": commit.weight,
            "missed": commit.missed,
            "staleness": commit.staleness,
            "loss": update.metrics.get("loss"),
            "validation": commit.validation,
        }
