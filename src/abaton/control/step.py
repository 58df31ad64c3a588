"""The controller: one pure function from what happened to what is to be done.

Its invariants are numbered in docs/controller.md, each with the test that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable

from abaton.control import assigning, asynchronous, evaluators, scoring, synchronous
from abaton.control.messages import (
    Arrived,
    Event,
    Failed,
    Instruction,
    Joined,
    Left,
    Noted,
    Retire,
    Scored,
    Tick,
)
from abaton.control.rules import Latest, Rules, Synchronous
from abaton.control.scoring import Answer
from abaton.control.state import Contribution, Member, State


def step(rules: Rules, state: State, event: Event) -> Answer:
    """What the controller knows and asks for after an event.

    >>> rules = Rules(learners=1, rounds=3)
    >>> state, instructions = step(rules, State(), Joined(at=0.0, learner="cleveland", examples=303))
    >>> [(i.learner, i.version) for i in instructions]
    [('cleveland', 0)]
    """
    if state.stopped is not None:
        return state, ()
    if rules.seconds is not None and event.at > rules.seconds:
        return synchronous.stop(state, "the time is up")
    match event:
        case Joined():
            return _joined(rules, state, event)
        case Left():
            return _left(rules, state, event)
        case Arrived():
            return _arrived(rules, state, event)
        case Scored():
            return _scored(rules, state, event)
        case Failed():
            return _failed(rules, state, event)
        case Tick():
            if event.name != synchronous.deadline(state.version, state.attempt):
                return state, ()
            return _settle(rules, state._replace(late=True), event.at)
        case Noted():
            return state, ()


def _joined(rules: Rules, state: State, event: Joined) -> Answer:
    known = event.learner in state.present
    state = _forget_labels(state, event.learner)
    member = Member(event.examples, event.group, event.labels)
    labels = evaluators.together([state.labels, event.labels])
    state = state._replace(present=state.present.set(event.learner, member), labels=labels)
    if not state.begun:
        if len(state.present) < rules.learners:
            return state, ()
        return _train(rules, state._replace(begun=True), sorted(state.present), event.at)
    if known or isinstance(rules.pacing, Synchronous):
        return state, ()
    return _train(rules, state, [event.learner], event.at)


def _train(rules: Rules, state: State, learners: list[str], now: float) -> Answer:
    if isinstance(rules.pacing, Synchronous):
        return synchronous.begin(rules, rules.pacing, state, now)
    said: list[Instruction] = []
    for learner in learners:
        state, asked = asynchronous.train(rules, state, learner)
        said += asked
    return state, tuple(said)


def _left(rules: Rules, state: State, event: Left) -> Answer:
    learner = event.learner
    if learner not in state.present:
        return state, ()
    lost = [task for task, work in state.open.items() if work.learner == learner]
    still_open = state.open
    for task in lost:
        still_open = still_open.delete(task)
    state = _forget_labels(state, learner)
    state = state._replace(present=state.present.delete(learner), open=still_open)
    asked = [task for task, made in state.scoring.items() if learner in made.waiting]
    for task in asked:
        state = scoring.hear(state, task, learner)
    said: tuple[Instruction, ...] = ()
    if not isinstance(rules.pacing, Synchronous) and rules.mixing == Latest("subtract"):
        said = (Retire(learner),)
    state, more = _settle(rules, state, event.at, scoring.complete(state, asked))
    if state.stopped is None and state.begun:
        if not isinstance(rules.pacing, Synchronous):
            state, over = asynchronous.rest(rules, state)
            more += over
        elif not state.present:
            state, over = synchronous.stop(state, "too few learners are left")
            more += over
    return state, said + more


def _forget_labels(state: State, learner: str) -> State:
    member = state.present.get(learner)
    if member is None or not member.labels:
        return state
    gone = tuple(-n for n in member.labels)
    return state._replace(labels=evaluators.together([state.labels, gone]))


def _arrived(rules: Rules, state: State, event: Arrived) -> Answer:
    work = state.open.get(event.task)
    if work is None or work.learner != event.learner:
        return state, ()
    made = Contribution(
        event,
        version=work.version,
        versions_missed=state.version - work.version,
        staleness=state.committed - work.committed + event.steps,
        complete=work.complete,
        frozen=assigning.finishing(rules, state),
    )
    made, asked = scoring.ask(rules, state, made)
    state = state._replace(open=state.open.delete(event.task))
    if made.waiting:
        state = state._replace(scoring=state.scoring.set(event.task, made))
    state, more = _settle(rules, state, event.at, () if made.waiting else (made,))
    return state, asked + more


def _scored(rules: Rules, state: State, event: Scored | Failed) -> Answer:
    """Take what an evaluator says of a model; one that failed counts nothing, and is not waited for."""
    task = scoring.scored_task(event.task, event.learner)
    state = scoring.hear(state, task, event.learner, event.score if isinstance(event, Scored) else ())
    return _settle(rules, state, event.at, scoring.complete(state, (task,)))


def _failed(rules: Rules, state: State, event: Failed) -> Answer:
    work = state.open.get(event.task)
    if work is None:
        return _scored(rules, state, event)
    if work.learner != event.learner:
        return state, ()
    state = state._replace(open=state.open.delete(event.task))
    if isinstance(rules.pacing, Synchronous):
        return _settle(rules, state, event.at)
    return asynchronous.failed(rules, rules.pacing, state, event.learner)


def _settle(rules: Rules, state: State, now: float, done: Iterable[Contribution] = ()) -> Answer:
    """Move updates that wait for no evaluator any more on to the mix."""
    said: tuple[Instruction, ...] = ()
    for made in done:
        if made.update.task in state.scoring:
            state = state._replace(scoring=state.scoring.delete(made.update.task))
        if isinstance(rules.pacing, Synchronous):
            state = state._replace(ready=state.ready.set(made.update.learner, made))
        else:
            state, asked = asynchronous.commit(rules, state, made)
            said += asked
            if state.stopped is not None:
                return state, said
    if isinstance(rules.pacing, Synchronous) and state.begun:
        state, asked = synchronous.close(rules, rules.pacing, state, now)
        said += asked
    return state, said
