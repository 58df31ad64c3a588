"""Asynchronous pacing: every learner goes at its own pace, every commit makes a version."""

from __future__ import annotations

from dataclasses import replace

from abaton.control.adaptive import CYCLES, staleness_limit
from abaton.control.messages import Commit, Instruction, Publish, Train
from abaton.control.privacy import SPENT
from abaton.control.rules import Asynchronous, Rules
from abaton.control.scoring import Answer
from abaton.control.state import Assignment, Contribution, State
from abaton.control.synchronous import stop
from abaton.control.weighting import weigh


def train(rules: Rules, pacing: Asynchronous, state: State, learner: str) -> Answer:
    """Let a learner train from the newest version, unless it is gone or its privacy budget is spent."""
    if learner not in state.present:
        return state, ()
    if rules.privacy is not None:
        asked_for = state.releases.get(learner, 0)
        if asked_for >= rules.privacy.allowance:
            return (state, ()) if state.open or state.scoring else stop(state, SPENT)
        state = replace(state, releases=state.releases.set(learner, asked_for + 1))
    task = f"{state.asked}.{learner}"
    settings = rules.training
    if pacing.adaptive is not None:
        group = state.present[learner].group
        thresholds = pacing.adaptive.get(group, pacing.adaptive.get(""))
        limit = staleness_limit(state.cycles.get(learner, ()))
        settings = replace(settings, adaptive=thresholds, committed=state.committed, staleness_limit=limit)
    started = Assignment(learner, state.version, state.committed)
    asked = replace(state, asked=state.asked + 1, open=state.open.set(task, started))
    return asked, (Train(task, learner, state.version, settings),)


def commit(rules: Rules, pacing: Asynchronous, state: State, made: Contribution) -> Answer:
    """Let an update enter the mix, publish it, and let its learner go on from there."""
    learner = made.update.learner
    weight = weigh(rules.weighting, made)
    version = state.version + 1
    past = state.cycles.get(learner, ())
    state = replace(
        state,
        version=version,
        committed=state.committed + made.update.steps,
        failures=state.failures.delete(learner) if learner in state.failures else state.failures,
        cycles=state.cycles.set(learner, (*past, made.staleness)) if len(past) < CYCLES else state.cycles,
    )
    said: list[Instruction] = [
        Commit(learner, made.update.task, made.version, made.update.payload, weight),
        Publish(version),
    ]
    state, asked = (
        stop(state, "all rounds are done")
        if version >= rules.rounds
        else train(rules, pacing, state, learner)
    )
    return state, (*said, *asked)


def failed(rules: Rules, pacing: Asynchronous, state: State, learner: str) -> Answer:
    """Try again, or leave a learner out that keeps failing."""
    count = state.failures.get(learner, 0) + 1
    state = replace(state, failures=state.failures.set(learner, count))
    if count < pacing.attempts:
        return train(rules, pacing, state, learner)
    if not state.open and not state.scoring:
        return stop(state, "every learner's tasks keep failing")
    return state, ()
