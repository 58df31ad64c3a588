"""What a run's journal tells: who committed what with which weight, how stale it was, and which models travelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from abaton.control import Arrived, Commit, Evaluate, Rules, State, from_row, step


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit: when, by whom, for which task, from which version, after how many steps, with which weight."""

    at: float
    learner: str
    task: str
    version: int
    steps: int
    weight: float


@dataclass(frozen=True, slots=True)
class History:
    """A run as its journal tells it.

    Attributes:
        requests: how many updates arrived: each is a request for the next community model.
        evaluations: how many models were sent to evaluators.
        commits: what entered the mix, in order.
        staleness: each learner's effective staleness at its first twenty commits.
    """

    requests: int = 0
    evaluations: int = 0
    commits: tuple[Committed, ...] = ()
    staleness: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def exchanged(self) -> int:
        """How many models travelled: one up and one down for each request, and one to each evaluator (Fig. 9)."""
        return 2 * self.requests + self.evaluations

    def shares(self) -> dict[str, float]:
        """Each learner's share of the weight of all newest models, at the end."""
        newest = {commit.learner: commit.weight for commit in self.commits}
        total = sum(newest.values())
        return {name: weight / total for name, weight in newest.items()} if total else {}


def history(rules: Rules, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> History:
    """Ask the controller again what it decided at every event of a journal: it is a pure function."""
    state, requests, evaluations = State(), 0, 0
    commits: list[Committed] = []
    steps: dict[str, int] = {}
    for kind, body in rows:
        event = from_row(kind, body)
        state, said = step(rules, state, event)
        if state.stopped is not None and not said[:-1]:
            break  # what came after the time was up was not heard any more
        if isinstance(event, Arrived):
            requests += 1
            steps[event.task] = event.steps
        for instruction in said:
            if isinstance(instruction, Evaluate):
                evaluations += 1
            elif isinstance(instruction, Commit):
                one = instruction
                commits.append(
                    Committed(event.at, one.learner, one.task, one.version, steps[one.task], one.weight)
                )
    return History(requests, evaluations, tuple(commits), dict(state.cycles))
