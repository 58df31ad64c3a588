"""What the store tells of a run: who committed what with which weight, how stale it was, and which models travelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from abaton.controller import Rules
from abaton.errors import StoreError
from abaton.store import CommitLine, Store, commit_lines, kinds_of
from abaton.training import CYCLES


@dataclass(frozen=True, slots=True)
class History:
    """A run as the store tells it.

    Attributes:
        requests: how many updates arrived: each is a request for the next community model.
        evaluations: how many models were sent to evaluators.
        commits: what entered the mix, in order.
        staleness: each learner's effective staleness at its first twenty commits.
    """

    requests: int = 0
    evaluations: int = 0
    commits: tuple[CommitLine, ...] = ()
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


def history(store: Store, run: str, rules: Rules) -> History:
    """A run that has ended, as what its controller decided was written down."""
    result = store.run(run).result
    if result is None:
        raise StoreError(
            f"run '{run}' has not ended", where="history", remedy="bring it to its end with 'abaton resume'"
        )
    # What comes after the time is up is written down, but not heard any more.
    requests = kinds_of(store, run, until=rules.seconds).get("Arrived", 0)
    commits = commit_lines(store, run)
    staleness: dict[str, list[int]] = {}
    for commit in commits:
        staleness.setdefault(commit.learner, []).append(commit.staleness)
    first = {learner: tuple(each[:CYCLES]) for learner, each in staleness.items()}
    return History(requests, result["evaluations"], tuple(commits), first)
