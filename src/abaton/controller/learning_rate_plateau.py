"""Plateau learning rate: progress of the validation loss over rounds, after which the learning rate decays.

Evaluators' losses drive it (Metis, future work). A round's loss is the mean over all models that evaluators scored;
with an asynchronous scheduler as many commits as learners count as a round. When it was not below its best for
`schedule_period` rounds, the learning rate of later tasks is multiplied by `learning_rate_decay`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from abaton.metrics.counts import Counts, summed_loss


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """Progress of the distributed validation loss.

    Attributes:
        models: Models of the current round that were scored.
        examples, total: Number of examples, and the sum of their losses.
        best: Lowest loss of a round.
        stalls: Consecutive rounds that were not below it.
        decays: Number of reductions of the learning rate.
    """

    models: int = 0
    examples: float = 0.0
    total: float = 0.0
    best: float = float("inf")
    stalls: int = 0
    decays: int = 0


def add_round_losses(progress: EvaluationProgress, evaluations: Iterable[Counts]) -> EvaluationProgress:
    """Add validation counts of committed models to the round's loss; counts without a loss are ignored."""
    for counts in evaluations:
        examples, loss_sum = summed_loss(counts)
        if examples:
            progress = replace(
                progress,
                models=progress.models + 1,
                examples=progress.examples + examples,
                total=progress.total + loss_sum,
            )
    return progress


def close_round(progress: EvaluationProgress, period: int) -> EvaluationProgress:
    """Close a round of a plateau learning rate: store the best loss, or count a decay after `period` worse rounds.

    >>> worse = close_round(close_round(add_round_losses(EvaluationProgress(), [(1, 1, 2, 1, 1, 2, 0.9)]), 1), 1)
    >>> (worse.best, worse.decays)
    (0.3, 0)
    >>> close_round(add_round_losses(worse, [(1, 1, 2, 1, 1, 2, 1.2)]), 1).decays
    1
    """
    if not progress.models:
        return progress
    loss = progress.total / progress.examples
    next_progress = EvaluationProgress(best=min(loss, progress.best), decays=progress.decays)
    if loss < progress.best:
        return next_progress
    if progress.stalls + 1 < period:
        return replace(next_progress, stalls=progress.stalls + 1)
    return replace(next_progress, decays=progress.decays + 1)
