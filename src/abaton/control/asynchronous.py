"""Asynchronous pacing: every learner goes at its own pace, every commit makes a version."""

from __future__ import annotations

from abaton.control import assigning, decay
from abaton.control.adaptive import CYCLES
from abaton.control.messages import Publish, Train
from abaton.control.privacy import SPENT
from abaton.control.rules import Asynchronous, Rules
from abaton.control.scoring import Answer
from abaton.control.state import Assignment, Contribution, Past, State
from abaton.control.synchronous import stop


def train(rules: Rules, state: State, learner: str) -> Answer:
    """Let a learner train from the newest version, unless it is gone, has done its part, or has spent its budget."""
    complete = assigning.finishing(rules, state)
    if learner not in state.present or (complete and state.finished.get(learner, 0) >= rules.finishing):
        return rest(rules, state)
    if rules.privacy is not None:
        asked_for = state.releases.get(learner, 0)
        if asked_for >= rules.privacy.allowance:
            return (state, ()) if state.open or state.scoring else stop(state, SPENT)
        state = state._replace(releases=state.releases.set(learner, asked_for + 1))
    task = f"{state.asked}.{learner}"
    settings = assigning.settings(rules, state, learner)
    started = Assignment(learner, state.version, state.committed, complete)
    asked = state._replace(asked=state.asked + 1, open=state.open.set(task, started))
    return asked, (Train(task, learner, state.version, settings),)


def commit(rules: Rules, state: State, made: Contribution) -> Answer:
    """Let an update enter the mix, publish it, and let its learner go on from there."""
    learner = made.update.learner
    entering = assigning.commit(rules, state, made)
    version = state.version + 1
    past = state.cycles.get(learner, ())
    state = state._replace(
        version=version,
        committed=state.committed + made.update.steps,
        failures=state.failures.delete(learner) if learner in state.failures else state.failures,
        cycles=state.cycles.set(learner, (*past, made.staleness)) if len(past) < CYCLES else state.cycles,
        progress=decay.hear(state.progress, (made.score,)),
    )
    if state.progress.models >= rules.learners:
        state = state._replace(progress=decay.judge(state.progress, rules.training.period))
    if rules.finishing:
        done = state.finished.get(learner, 0) + made.complete
        last = Past(entering.weight, made.update.steps)
        state = state._replace(past=state.past.set(learner, last), finished=state.finished.set(learner, done))
    state, asked = (
        stop(state, "all rounds are done")
        if version >= rules.rounds and not rules.finishing
        else train(rules, state, learner)
    )
    return state, (entering, Publish(version), *asked)


def failed(rules: Rules, pacing: Asynchronous, state: State, learner: str) -> Answer:
    """Try again, or leave a learner out that keeps failing."""
    count = state.failures.get(learner, 0) + 1
    state = state._replace(failures=state.failures.set(learner, count))
    if count < pacing.attempts:
        return train(rules, state, learner)
    return rest(rules, state)


def rest(rules: Rules, state: State) -> Answer:
    """Ask for nothing more; the run is over when nothing is under way."""
    if state.open or state.scoring:
        return state, ()
    if assigning.finishing(rules, state):
        return stop(state, "all rounds are done")
    gone = "too few learners are left" if not state.present else "every learner's tasks keep failing"
    return stop(state, gone)
