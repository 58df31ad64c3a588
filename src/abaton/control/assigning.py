"""What a learner is told with its task, and what its update counts when it comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from abaton.control import score
from abaton.control.adaptive import staleness_limit
from abaton.control.messages import Commit, TrainSettings
from abaton.control.rules import Asynchronous, Rules, SemiSynchronous
from abaton.control.state import Contribution, State
from abaton.control.weighting import weigh


def finishing(rules: Rules, state: State) -> bool:
    """Whether the post-validation phase has begun: learners train on all their data, and nobody is scored."""
    return rules.finishing > 0 and state.version >= rules.rounds


def settings(rules: Rules, state: State, learner: str) -> TrainSettings:
    """The settings of a learner's next task."""
    training, pacing = rules.training, rules.pacing
    told: dict[str, Any] = {}
    if isinstance(pacing, SemiSynchronous):
        told["budget"] = pacing.budget
    if training.schedule == "driven":
        told["decay"] = training.decay**state.progress.decays
    elif training.schedule != "constant":
        rounds = state.version // rules.learners if isinstance(pacing, Asynchronous) else state.version
        told["elapsed"] = training.elapsed + rounds * training.epochs
    if finishing(rules, state):
        told["complete"] = True
    if isinstance(pacing, Asynchronous) and pacing.adaptive is not None:
        if finishing(rules, state):
            told["steps"] = _last_steps(
                state, learner
            )  # without a validation set nobody can tell when to send
        else:
            group = state.present[learner].group
            told["adaptive"] = pacing.adaptive.get(group, pacing.adaptive.get(""))
            told["committed"] = state.committed
            told["staleness_limit"] = staleness_limit(state.cycles.get(learner, ()))
    return replace(training, **told) if told else training


def _last_steps(state: State, learner: str) -> int:
    if learner in state.past:
        return state.past[learner].steps
    return max(1, sum(past.steps for past in state.past.values()) // len(state.past))


def commit(rules: Rules, state: State, made: Contribution) -> Commit:
    """Let an update enter the mix, and say all that is known of it."""
    examples, losses = score.losses(made.score or made.update.score)
    return Commit(
        made.update,
        made.version,
        _weight(rules, state, made),
        made.versions_missed,
        made.staleness,
        losses / examples if examples else None,
    )


def _weight(rules: Rules, state: State, made: Contribution) -> float:
    """How much an update counts: by the weighting, or in the post-validation phase as much as its learner's last one.

    A learner that is new by then counts as much as the others on average.
    """
    if not made.frozen:
        return weigh(rules.weighting, made)
    if made.update.learner in state.past:
        return state.past[made.update.learner].weight
    return sum(past.weight for past in state.past.values()) / len(state.past)
