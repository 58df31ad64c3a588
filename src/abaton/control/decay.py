"""A learning rate that comes down when the distributed validation loss does (Metis, future work).

The evaluators of all sites tell the summed loss of every model they score. A round's loss is the mean over all of them;
in asynchronous pacing so many commits as there are learners count as a round. When it has not come below its best for
`period` rounds, the rate of every task given out from then on is multiplied by `decay` once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from abaton.control import score
from abaton.control.messages import Counts


@dataclass(frozen=True, slots=True)
class Progress:
    """How the distributed validation loss has come along.

    Attributes:
        models: how many models of the present round have been scored.
        examples, total: on how many examples, and the sum of their losses.
        best: the lowest loss of a round so far.
        stalls: how many rounds in a row did not come below it.
        decays: how often the rate has come down.
    """

    models: int = 0
    examples: float = 0.0
    total: float = 0.0
    best: float = float("inf")
    stalls: int = 0
    decays: int = 0


def hear(progress: Progress, scores: Iterable[Counts]) -> Progress:
    """Add what evaluators said of models that were committed; what tells no loss changes nothing."""
    for counts in scores:
        examples, total = score.losses(counts)
        if examples:
            progress = replace(
                progress,
                models=progress.models + 1,
                examples=progress.examples + examples,
                total=progress.total + total,
            )
    return progress


def judge(progress: Progress, period: int) -> Progress:
    """Close a round: remember its loss if it is the best, or let the rate come down after too many that were not.

    >>> worse = judge(judge(hear(Progress(), [(1, 1, 2, 1, 1, 2, 0.9)]), 1), 1)
    >>> (worse.best, worse.decays)
    (0.3, 0)
    >>> judge(hear(worse, [(1, 1, 2, 1, 1, 2, 1.2)]), 1).decays
    1
    """
    if not progress.models:
        return progress
    loss = progress.total / progress.examples
    fresh = Progress(best=min(loss, progress.best), decays=progress.decays)
    if loss < progress.best:
        return fresh
    if progress.stalls + 1 < period:
        return replace(fresh, stalls=progress.stalls + 1)
    return replace(fresh, decays=progress.decays + 1)
