"""The cycles of learners that decide themselves when to send: their validation losses, read back from a run.

The store says which task a learner finished after how many steps, and has the version it started from. A
task's training depends on nothing else, so it can be trained again, epoch by epoch, and must end where it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from abaton.controller import TrainSettings
from abaton.errors import StoreError
from abaton.federation import Making
from abaton.lab.run_history import history
from abaton.lab.recipes import build
from abaton.learners import Learner
from abaton.store import CommitLine, Store


def cycles(store: Store, run: str, learner: str, count: int = 10) -> list[list[float]]:
    """The validation loss after every epoch, for the first cycles of a learner."""
    row = store.run(run)
    federation = build(row.recipe)
    told = history(store, row.run, federation.rules)
    mine = [commit for commit in told.commits if commit.learner == learner][:count]
    rules = federation.rules
    making = Making(learner, row.run, federation.model, federation.codec, rules.seed, b"")
    one = federation.sites[learner].learner(making)
    digests = {model.version: model.digest for model in store.models(row.run)}
    return [_losses(store, one, commit, digests[commit.version], rules.training) for commit in mine]


def _losses(
    store: Store, learner: Learner, commit: CommitLine, digest: str, training: TrainSettings
) -> list[float]:
    steps = learner.steps(training) // training.epochs
    epochs = commit.steps // steps
    start = store.vectors.get(digest)
    taken = list(islice(learner.train_epochs(commit.task, start, training), epochs))
    if not taken or taken[-1].trained.steps != commit.steps:
        raise StoreError(
            f"task '{commit.task}' does not come out as it did",
            remedy="read it with the version of Abaton and the data that made it",
        )
    return [epoch.validation_loss for epoch in taken]


def median_and_spread(values: Sequence[int]) -> tuple[float, float, float]:
    """Median, mean and standard deviation, as the paper gives for each group in Fig. 4.

    >>> median_and_spread([1, 2, 3])
    (2.0, 2.0, 0.816496580927726)
    """
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    return float(np.median(values)), float(np.mean(values)), float(np.std(values))
