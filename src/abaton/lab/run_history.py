"""History of a run from the store: commits, weights, staleness and models sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from abaton.controller import Strategy
from abaton.errors import StoreError
from abaton.store import CommitRow, Store, commit_rows, count_event_types
from abaton.training import STALENESS_CYCLES


@dataclass(frozen=True, slots=True)
class RunHistory:
    """History of a run.

    Attributes:
        requests: number of updates: each is a request for the next community model.
        evaluations: number of models sent to evaluators.
        commits: committed updates, in order.
        staleness: each learner's effective staleness at its first twenty commits.
    """

    requests: int = 0
    evaluations: int = 0
    commits: tuple[CommitRow, ...] = ()
    staleness: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def exchanged(self) -> int:
        """Number of models sent in the run's history: two per request, and one to each evaluator (Fig. 9)."""
        return 2 * self.requests + self.evaluations

    def weight_fractions(self) -> dict[str, float]:
        """Return each learner's fraction of the weight of all latest models at the end of the run's history."""
        newest = {commit.learner: commit.weight for commit in self.commits}
        total = sum(newest.values())
        return {name: weight / total for name, weight in newest.items()} if total else {}


def load_history(store: Store, run: str, strategy: Strategy) -> RunHistory:
    """Return the history of a finished run from its recorded decisions."""
    result = store.run(run).result
    if result is None:
        raise StoreError(
            f"run '{run}' has not finished", where="history", remedy="finish it with 'abaton resume'"
        )
    # Updates after the end of the run are in the journal but not used.
    requests = count_event_types(store, run, until=strategy.max_seconds).get("update_received", 0)
    commits = commit_rows(store, run)
    staleness: dict[str, list[int]] = {}
    for commit in commits:
        staleness.setdefault(commit.learner, []).append(commit.staleness)
    first = {learner: tuple(values[:STALENESS_CYCLES]) for learner, values in staleness.items()}
    return RunHistory(requests, result["evaluations"], tuple(commits), first)
